# Two commands: `make demo` and `make test`. Both build .venv on the first call.

# One core at least has nothing else to do while pip downloads and unpacks, or mypy reads.
MAKEFLAGS += --jobs=2

PYTHON ?= python3
VENV   ?= .venv
# Any pip requirement, options included. An unpinned torch may pull gigabytes of CUDA libraries.
TORCH  ?= torch==2.13.0
# Folder of public data sets (Planetoid/...); tests that need it are skipped without.
DATA_ROOT ?=
DEMO   ?=
PYTEST ?=

bin       := $(VENV)/bin
packages  := $(VENV)/packages
library   := runtime/libgqc_cpu.so
ready     := $(packages) $(library)
parallel  := --numprocesses=auto --dist=loadgroup
with_data := $(if $(DATA_ROOT),--data-root=$(DATA_ROOT))

# Tests take all cores already: OpenMP threads that wait must sleep, or they take a third of the time from those that work.
test nightly: export OMP_WAIT_POLICY = passive

.PHONY: demo test suite lint format nightly accuracy clean

demo: $(ready)
	$(bin)/python -m examples.demo $(with_data) $(DEMO)

# Warnings are errors here only: a later compiler may know more of them, and users should still be able to build.
test: export CXXFLAGS += -Werror
test: suite lint

suite: $(ready)
	$(bin)/python -m pytest -q $(parallel) --durations=10 $(with_data) $(PYTEST)

# Coverage nearly doubles the time of whatever is Python: it is counted here only.
nightly: $(ready)
	$(bin)/python -m pytest -q $(parallel) --cov -m "slow or not slow" --durations=25 $(with_data) $(PYTEST)

lint: $(ready)
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/mypy
	find csrc tests -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | xargs -r $(bin)/clang-format --dry-run --Werror

format: $(ready)
	$(bin)/ruff check --fix
	$(bin)/ruff format
	find csrc tests -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | xargs -r $(bin)/clang-format -i

accuracy: $(ready)
	$(bin)/python -m examples.sweep $(with_data)

clean:
	rm -rf $(VENV) build dist

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV) || { \
	  echo "Python's venv module is missing; on Debian and Ubuntu: apt install python3-venv" >&2; rm -rf $(VENV); exit 1; }

# All that the build of the library needs, which goes on beside the installation of torch.
$(VENV)/setuptools: | $(VENV)/bin/python
	$(bin)/python -m pip install -q -c constraints.txt 'setuptools>=77'
	touch $@

# torch comes before and without the others, so that no other requirement can choose its build.
$(VENV)/torch: | $(VENV)/setuptools
	$(bin)/python -m pip install -q $(TORCH)
	touch $@

# Its build finds the library's objects compiled.
$(packages): pyproject.toml constraints.txt setup.py $(VENV)/torch | $(library)
	$(bin)/python -m pip install -q -c constraints.txt -e '.[dgl,pyg,dev]'
	touch $@

# After a change in csrc/ only what changed is compiled again.
$(library): $(shell find csrc -not -path "*__pycache__*") | $(VENV)/setuptools
	$(bin)/python setup.py -q build_ext --inplace
	touch $@
