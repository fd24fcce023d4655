"""Builds libgqc_cpu.so: a plain shared library with a C ABI that needs neither Python's nor torch's headers.

Every file in csrc/cpu/kernels/ is compiled once per instruction set (GCC does not carry a function's target attribute
into its OpenMP bodies, so one translation unit per set), every file in csrc/cpu/ once.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from setuptools import Extension
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCES = Path("csrc")
LIBRARY = "libgqc_cpu"
OBJECTS = "build/native"  # the same for every kind of build, so that none compiles again what another has compiled
ISA_FLAGS = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": [
        *("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"),
        *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),  # GCC 12 warns of its own intrinsics: its bug 105593
    ],
}
FLAGS = [
    *("-O3", "-std=c++17", "-Wall", "-Wextra", "-fPIC", "-fopenmp", "-fvisibility=hidden"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-exceptions", "-fno-rtti", f"-I{SOURCES}"),
]

native_library = Extension(f"gqc.runtime.{LIBRARY}", [str(path) for path in sorted(SOURCES.rglob("*.cpp"))])


class Unit(NamedTuple):
    """One compilation: a source, the object it gives and the flags beyond FLAGS."""

    source: Path
    object: Path
    flags: list[str]

    def is_current(self) -> bool:
        """Whether the object is newer than every file that the compiler read for it."""
        depends = self.object.with_suffix(".d")
        if not (self.object.exists() and depends.exists()):
            return False
        read = depends.read_text().replace("\\\n", " ").split(":", 1)[1].split()
        built = self.object.stat().st_mtime
        return all(Path(file).exists() and Path(file).stat().st_mtime < built for file in [*read, __file__])


def isas() -> list[str]:
    """Instruction sets that are compiled on this machine's architecture."""
    return list(ISA_FLAGS) if platform.machine().lower() in ("x86_64", "amd64") else ["portable"]


def units(folder: Path) -> Iterator[Unit]:
    for source in sorted((SOURCES / "cpu").glob("*.cpp")):
        yield Unit(source, folder / f"{source.stem}.o", [])
    for source in sorted((SOURCES / "cpu" / "kernels").glob("*.cpp")):
        for isa in isas():
            yield Unit(source, folder / f"{source.stem}.{isa}.o", [f"-DGQC_ISA={isa}", *ISA_FLAGS[isa]])


def compiler() -> list[str]:
    command = shlex.split(os.environ.get("CXX", "g++"))
    if shutil.which(command[0]) is None:
        raise CompileError(f"gqc needs a C++17 compiler and found no {command[0]!r}: install g++ or set CXX")
    return command


def execute(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
    sys.stderr.write(done.stderr)


class BuildNative(build_ext):
    """``build_ext`` for the one library. ``python setup.py build_ext --inplace`` rebuilds only what changed."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.build_temp = OBJECTS

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        cxx, added, folder = compiler(), shlex.split(os.environ.get("CXXFLAGS", "")), Path(self.build_temp)
        folder.mkdir(parents=True, exist_ok=True)
        todo = list(units(folder))
        stale = [unit for unit in todo if self.force or not unit.is_current()]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compile_one = [
                [*cxx, *FLAGS, *unit.flags, *added, "-MMD", "-c", str(unit.source), "-o", str(unit.object)]
                for unit in stale
            ]
            list(pool.map(execute, compile_one))
        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        objects = [str(unit.object) for unit in todo]
        execute([*cxx, "-shared", "-fopenmp", "-Wl,--as-needed", *objects, "-o", str(library)])
        self.report(len(stale), len(todo))

    def report(self, compiled: int, total: int) -> None:
        nvcc = "this version has no CUDA sources" if shutil.which("nvcc") else "no nvcc"
        left_out = [isa for isa in ISA_FLAGS if isa not in isas()] + [f"CUDA ({nvcc})"]
        built = f"{LIBRARY}.so ({', '.join(isas())}; {compiled} of {total} objects compiled)"
        print(f"gqc native: built {built}; left out: {', '.join(left_out)}", flush=True)

    def copy_extensions_to_source(self) -> None:
        for ext in self.extensions:
            # Copied to a new file: a process that has the old library mapped keeps it intact.
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
        super().copy_extensions_to_source()


class PlatformWheel(bdist_wheel):
    """The library has no tie to a Python version, so one wheel a platform serves all of them."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]
