"""Builds the two files of native code, which need neither Python's nor torch's headers.

libgqc_cpu.so: a plain shared library with a C ABI. Every file in csrc/cpu/kernels/ is compiled once per instruction set
(GCC does not carry a function's target attribute into its OpenMP bodies, so one translation unit per set), every file
in csrc/cpu/ once.

gqc_cuda.fatbin: the kernels of csrc/cuda, where nvcc is installed (csrc/nvcc.py). The sources are installed in any
case: without the file, NVRTC compiles them on the machine that runs them.
"""

from __future__ import annotations

import ast
import os
import platform
import shlex
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

from setuptools import Extension
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

from csrc import nvcc
from csrc.objects import OBJECTS, Unit, compile_stale, execute

SOURCES = Path("csrc")
_AVX512 = [
    *("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"),
    *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),  # GCC 12 warns of its own intrinsics: its bug 105593
]
_AVX2 = ["-mavx2", "-mfma", "-mf16c"]
ISA_FLAGS = {
    "portable": [],
    "avx2": _AVX2,
    "avxvnni": [*_AVX2, "-mavxvnni"],
    "avx512": _AVX512,
    "amx": [*_AVX512, "-mamx-tile", "-mamx-int8", "-mamx-bf16"],
}
GAINING_SOURCES = {
    "avxvnni": ("gat_bwd", "program", "qgemm", "qgemm_pointwise", "typed_spmm"),
    "amx": ("mm", "program", "qgemm", "qgemm_pointwise", "typed_spmm"),
}
"""Kernels that use what a set adds to a lower one, BASES in runtime/native.py, and what they are linked with: others
would be the same as that one's, which take their place. GCC knows these sets since its version 11; without them they
are left out."""
FLAGS = [
    *("-O3", "-std=c++17", "-Wall", "-Wextra", "-fPIC", "-fopenmp", "-fvisibility=hidden"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-exceptions", "-fno-rtti", f"-I{SOURCES}"),
]

_SUFFIXES = {"libgqc_cpu": ".so", "gqc_cuda": ".fatbin"}


def _extension(name: str, sources: str, optional: bool) -> Extension:
    return Extension(f"gqc.runtime.{name}", sorted(map(str, SOURCES.rglob(sources))), optional=optional)


cpu_library = _extension("libgqc_cpu", "*.cpp", optional=False)
cuda_fatbin = _extension("gqc_cuda", "*.cu", optional=True)


def is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def isas() -> list[str]:
    """Instruction sets that are compiled on this machine's architecture."""
    return list(ISA_FLAGS) if is_x86() else ["portable"]


def isa_flags(isa: str) -> list[str]:
    """Options for an instruction set. On x86 the portable one serves processors without AVX2 alone, which are too few
    to be worth another third of its compile time."""
    return ["-O2"] if isa == "portable" and is_x86() else ISA_FLAGS[isa]


def compiler() -> list[str]:
    command = shlex.split(os.environ.get("CXX", "g++"))
    if shutil.which(command[0]) is None:
        raise CompileError(f"gqc needs a C++17 compiler and found no {command[0]!r}: install g++ or set CXX")
    return command


def knows(cxx: list[str], *flags: str) -> bool:
    """Whether a compiler takes options."""
    command = [*cxx, *flags, "-x", "c++", "-E", "/dev/null"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def interface() -> int:
    """Checksum of what Python gives to the kernels: a library with another one does not fit it."""
    for node in ast.parse(Path("runtime/native.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SIGNATURES":
            return zlib.crc32(repr(ast.literal_eval(node.value)).encode())
    raise CompileError("runtime/native.py has no SIGNATURES")


def added_flags() -> tuple[list[str], list[str]]:
    """What CXXFLAGS adds: options that change the code, and those for warnings."""
    flags = shlex.split(os.environ.get("CXXFLAGS", ""))
    return [f for f in flags if not f.startswith("-W")], [f for f in flags if f.startswith("-W")]


def cpu_units(cxx: list[str]) -> Iterator[Unit]:
    added, warnings = added_flags()

    def unit(source: Path, name: str, *flags: str) -> Unit:
        command = (*cxx, *FLAGS, *flags, *added, "-MMD", "-c")
        return Unit(source, OBJECTS / f"{name}.o", command, tuple(warnings))

    for source in sorted((SOURCES / "cpu").glob("*.cpp")):
        yield unit(source, source.stem, f"-DGQC_INTERFACE={interface()}u")
    known = [isa for isa in isas() if isa not in GAINING_SOURCES or knows(cxx, *isa_flags(isa))]
    for source in sorted((SOURCES / "cpu" / "kernels").glob("*.cpp")):
        for isa in known:
            if source.stem in GAINING_SOURCES.get(isa, (source.stem,)):
                yield unit(source, f"{source.stem}.{isa}", f"-DGQC_ISA={isa}", *isa_flags(isa))


class BuildNative(build_ext):
    """``build_ext`` for both files. ``python setup.py build_ext --inplace`` rebuilds only what changed."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + _SUFFIXES[fullname.rpartition(".")[2]]

    def build_extension(self, ext: Extension) -> None:
        file = Path(self.get_ext_fullpath(ext.name))
        file.parent.mkdir(parents=True, exist_ok=True)
        built = self.build_library(file) if ext is cpu_library else self.build_fatbin(file, ext)
        print(f"gqc native: {built}", flush=True)

    def build_library(self, file: Path) -> str:
        cxx = compiler()
        units = list(cpu_units(cxx))
        compiled = compile_stale(units, bool(self.force))
        objects = [str(unit.object) for unit in units]
        execute([*cxx, "-shared", "-fopenmp", "-Wl,--as-needed", *objects, "-o", str(file)])
        return f"{file.name} ({', '.join(isas())}; {compiled} of {len(units)} objects compiled)"

    def build_fatbin(self, file: Path, ext: Extension) -> str:
        file.unlink(missing_ok=True)  # what is older than its sources must not stay
        compiler = nvcc.Nvcc.find()
        if compiler is None:
            return f"no {file.name}, since no nvcc was found in $CUDA_HOME or on the path; NVRTC takes its place"
        strict = "-Werror" in added_flags()[1]
        units = compiler.units(strict)
        try:
            compiled = compile_stale(units, bool(self.force))
        except CompileError as error:
            if strict:
                ext.optional = False  # else setuptools catches the error
                raise
            return f"no {file.name}, since nvcc failed; NVRTC takes its place. {error}"
        file.write_bytes(b"".join(unit.object.read_bytes() for unit in units))
        held = ", ".join(f"sm_{a}" for a in compiler.architectures)
        return f"{file.name} ({held}; nvcc {compiler.release}; {compiled} of {len(units)} sources compiled)"

    def copy_extensions_to_source(self) -> None:
        for ext in self.extensions:
            # Copied to a new file: a process that has the old library mapped keeps it intact.
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
        super().copy_extensions_to_source()


class BuildPython(build_py):
    """``build_py`` that puts the sources of the kernels into the package too; a checkout has them beside it."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for source, copy in self.kernel_sources():
                self.mkpath(str(Path(copy).parent))
                self.copy_file(source, copy)

    def kernel_sources(self) -> list[tuple[str, str]]:
        folder = Path(self.build_lib, "gqc", "runtime")
        return [(str(path), str(folder / path)) for path in sorted(nvcc.SOURCES.glob("*.cu*"))]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        copies = [] if self.editable_mode else [copy for _, copy in self.kernel_sources()]
        return [*super().get_outputs(include_bytecode), *copies]


class PlatformWheel(bdist_wheel):
    """Neither file has a tie to a Python version, so one wheel a platform serves all of them."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]
