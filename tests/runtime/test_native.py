"""Loading of the native library and the checks on its way in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gqc
from csrc.build import compiler
from gqc.errors import KernelError, LibraryError
from gqc.runtime import native
from gqc.runtime.kernels import pointer

PRINT_ISA = "from gqc.runtime import native; print(native.isa())"


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_the_best_instruction_set_is_the_default() -> None:
    assert native.isas()[0] == "portable"
    assert run_python(PRINT_ISA, GQC_ISA="").stdout.strip() == native.isas()[-1]


@pytest.mark.parametrize("name", native.isas())
def test_the_environment_forces_an_instruction_set(name: str) -> None:
    assert run_python(PRINT_ISA, GQC_ISA=name).stdout.strip() == name


def test_an_unknown_instruction_set_names_those_that_exist() -> None:
    refused = run_python(PRINT_ISA, GQC_ISA="avx1024")
    assert refused.returncode != 0
    assert "GQC_ISA='avx1024'" in refused.stderr


def test_a_model_is_not_compiled_for_an_unknown_one() -> None:
    code = "import gqc, torch; gqc.compile(torch.nn.Linear(2, 2))(torch.ones(1, 2))"
    refused = run_python(code, GQC_ISA="avx1024")
    assert refused.returncode != 0
    assert "LibraryError: GQC_ISA='avx1024': this processor and build have portable" in refused.stderr
    assert ", ".join(native.isas()) in refused.stderr


PRINT_SETS = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
for tell in (library.gqc_isas, library.gqc_wrong_isas):
    tell.restype = ctypes.c_char_p
    print(tell().decode())
"""


TESTED = [
    (name, kernel)
    for name in native.isas()[1:]
    for kernel in ("qgemm", "quantize", "qspmm", "gat_bwd")
    if hasattr(native._library(), f"gqc_{kernel}_{name}")
]


@pytest.mark.parametrize(("name", "kernel"), TESTED)
def test_an_instruction_set_that_computes_wrongly_is_not_used(name: str, kernel: str, tmp_path: Path) -> None:
    """Another library's function, which does nothing, takes the place of a kernel."""
    (tmp_path / "wrong.cpp").write_text(f'extern "C" const char* gqc_{kernel}_{name}() {{ return nullptr; }}')
    wrong = tmp_path / "wrong.so"
    subprocess.run([*compiler(), "-shared", "-fPIC", tmp_path / "wrong.cpp", "-o", wrong], check=True)
    printed = subprocess.run(
        [sys.executable, "-c", PRINT_SETS, native.library_path()],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LD_PRELOAD": str(wrong)},
    )
    needed = {"avxvnni": {"avx2"}, "avx512": {"avx2"}, "amx": {"avx2", "avx512"}}
    usable = [other for other in native.isas() if other != name and name not in needed.get(other, ())]
    assert printed.stdout.splitlines() == [" ".join(usable), f"{name}:{kernel}"]


def test_an_instruction_set_that_computes_wrongly_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GQC_ISA", raising=False)
    monkeypatch.setattr(native, "wrong_isas", lambda: {"avx1024": "quantize"})
    told = f"this processor runs avx1024 wrongly, by a test of the kernel quantize; gqc runs {native.isas()[-1]}"
    with pytest.warns(gqc.IsaWarning, match=told):
        assert native._chosen_isa.__wrapped__() == native.isas()[-1]


def test_a_missing_library_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "_LIBRARY", tmp_path / "libgqc_cpu.so")
    with pytest.raises(KernelError, match=r"python setup\.py build_ext --inplace"):
        native._library.__wrapped__()


@pytest.mark.parametrize(
    ("refusal", "kind"), [(b"out of memory for scratch space", LibraryError), (b"a label is wrong", KernelError)]
)
def test_a_lack_of_memory_is_the_librarys_and_bad_arguments_are_the_callers(refusal, kind, monkeypatch) -> None:
    monkeypatch.setattr(native, "_functions", {"absmax": lambda *_: refusal})
    with pytest.raises(KernelError, match=f"gqc kernel absmax: {refusal.decode()}") as raised:
        native.run("absmax")
    assert raised.type is kind


def test_a_library_without_a_kernel_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(native.SIGNATURES, "not_there", "p")
    with pytest.raises(KernelError, match=r"no kernel 'not_there'.*python setup\.py build_ext --inplace"):
        native.run("not_there", None)


def test_a_library_for_other_arguments_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_INTERFACE", 0)
    with pytest.raises(KernelError, match=r"older than the sources, or newer: .*python setup\.py build_ext --inplace"):
        native._library.__wrapped__()


def test_every_declared_kernel_is_exported(isa: str) -> None:
    for name in native.SIGNATURES:
        assert native._bind(name)


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(3, dtype=torch.float64), torch.zeros(4, 3).t(), torch.zeros(3, device="meta")],
    ids=["dtype", "strides", "device"],
)
def test_a_pointer_is_refused_for_what_a_kernel_would_misread(tensor: torch.Tensor) -> None:
    with pytest.raises(KernelError, match=re.escape(f"got {tensor.dtype} on {tensor.device}")):
        pointer(tensor, torch.float32)


def test_no_function_is_shared_between_instruction_sets() -> None:
    """A shared inline function would run with whichever instructions the linker met first."""
    symbols = subprocess.run(["nm", "--demangle", str(native._LIBRARY)], capture_output=True, text=True, check=True)
    code = [line.split(maxsplit=2)[2] for line in symbols.stdout.splitlines() if re.match(r"\S+ [tTwW] ", line)]
    of_kernels = [name for name in code if re.search(r"(\b|_)(portable|avx2|avxvnni|avx512|amx)\b", name)]
    assert of_kernels
    shared = [name for name in set(code) - set(of_kernels) if "std::" in name or "gqc::" in name]
    assert shared == []
