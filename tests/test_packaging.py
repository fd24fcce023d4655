"""Each way of installing gqc gives a package that compiles and trains a model with its native kernels.

The virtual environments hold nothing of their own: torch and setuptools come from the environment of the tests, so
nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import setuptools
import torch

from csrc.nvcc import Nvcc
from csrc.objects import OBJECTS

pytestmark = pytest.mark.xdist_group("packaging")  # one process builds the packages that all tests here install

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("gqc", "passes", "runtime", "csrc", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md")
BORROWED = {str(Path(module.__file__).parent.parent) for module in (torch, setuptools)}

# One training step in which the GEMMs must be quantized; prints where gqc was found.
TRAIN = """
import gqc, torch
from torch import nn
layers = nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 8)
model = gqc.compile(nn.Sequential(*layers), min_size=0)
before = [p.detach().clone() for p in model.parameters()]
model(torch.randn(256, 64)).square().mean().backward()
torch.optim.SGD(model.parameters(), 0.1).step()
assert all((p != b).any() for p, b in zip(model.parameters(), before))
assert gqc.explain(model).variants[0].stages[0].decisions("quantized")
print("found at", gqc.__file__)
"""

# `setup.py` without the library for CPUs, which takes minutes.
BUILD_FATBIN = """
from setuptools import setup
from csrc.build import BuildNative, cuda_fatbin
folder = {"gqc.runtime": "runtime"}
setup(packages=[*folder], package_dir=folder, ext_modules=[cuda_fatbin], cmdclass={"build_ext": BuildNative})
"""


class Environment:
    """A virtual environment that sees torch but no gqc."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        self.folder = folder
        self.python = folder / "bin" / "python"
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "borrowed.pth").write_text("\n".join(BORROWED) + "\n")

    def install(self, *what: str | Path) -> None:
        offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-q"]
        _run(sys.executable, "-m", "pip", "--python", self.python, "install", *offline, *what, cwd=self.folder)

    def train(self, folder: Path) -> Path:
        """Run one training step with ``folder`` as the working directory; returns the gqc package that was used."""
        return Path(_run(self.python, "-c", TRAIN, cwd=folder).rsplit("found at ", 1)[1].strip()).parent


def _run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _build(kind: str, source: Path, out: Path) -> Path:
    """Build a ``"wheel"`` or an ``"sdist"`` from a source folder."""
    out.mkdir(parents=True, exist_ok=True)
    _run(sys.executable, "-c", f"from setuptools.build_meta import *; build_{kind}({str(out)!r})", cwd=source)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources as a fresh clone has them, without anything that was built."""
    folder = tmp_path_factory.mktemp("checkout")
    unwanted = shutil.ignore_patterns("*.so", "*.o", "*.fatbin", "__pycache__", "*.egg-info")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("sdist", checkout, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the unpacked sdist as package builders do, with the objects that the checkout has."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):  # Debian's Python 3.11 has none
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    (source,) = folder.iterdir()
    if (ROOT / OBJECTS).exists():
        shutil.copytree(ROOT / OBJECTS, source / OBJECTS)
    return _build("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def regular(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("regular"))
    environment.install(wheel)
    return environment


def test_wheel_holds_one_package_with_its_library(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"gqc"}
    assert {"gqc/py.typed", "gqc/passes/report.py", "gqc/runtime/libgqc_cpu.so"} <= set(names)
    assert "-py3-none-" in wheel.name


def test_wheel_holds_the_code_of_gpus_and_its_sources(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {f"gqc/runtime/csrc/cuda/{path.name}" for path in (ROOT / "csrc" / "cuda").glob("*.cu*")}
    assert sources <= names
    assert ("gqc/runtime/gqc_cuda.fatbin" in names) == (Nvcc.find() is not None)


@pytest.mark.parametrize(("flags", "works"), [("", True), ("-Werror", False)])
def test_failing_nvcc_stops_only_a_build_under_werror(checkout: Path, tmp_path: Path, flags: str, works: bool) -> None:
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    answers = "--version) echo release 13.0;; --list-gpu-code) echo sm_90;; --help) ;;"
    nvcc.write_text(f"#!/bin/sh\ncase $1 in {answers} *) echo unsupported host compiler >&2; exit 1;; esac\n")
    nvcc.chmod(0o755)
    source = shutil.copytree(checkout, tmp_path / "source")
    fatbin = source / "runtime" / "gqc_cuda.fatbin"
    fatbin.write_bytes(b"of an earlier build")
    environment = {**os.environ, "CUDA_HOME": str(tmp_path / "cuda"), "CXXFLAGS": flags, "PYTHONPATH": str(source)}
    command = [sys.executable, "-c", BUILD_FATBIN, "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == works, done.stderr
    assert "unsupported host compiler" in done.stdout + done.stderr
    assert fatbin.exists() != works  # never beside newer sources in an installation that succeeds


def test_installed_wheel_trains(regular: Environment, tmp_path: Path) -> None:
    assert regular.folder in regular.train(tmp_path).parents


def test_checkout_that_was_not_built_uses_the_installed_library(regular: Environment, checkout: Path) -> None:
    assert not list(checkout.rglob("*.so"))
    assert regular.train(checkout) == checkout / "gqc"


@pytest.mark.slow  # compiles everything; the wheel above was built from the same sdist
def test_installed_sdist_trains(sdist: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.install(sdist)
    assert environment.folder in environment.train(tmp_path).parents


@pytest.mark.slow  # compiles everything; the environment of `make test` is an editable install itself
def test_editable_install_trains(checkout: Path, tmp_path: Path) -> None:
    source = shutil.copytree(checkout, tmp_path / "source")
    environment = Environment(tmp_path / "venv")
    environment.install("-e", source)
    assert environment.train(tmp_path) == source / "gqc"
