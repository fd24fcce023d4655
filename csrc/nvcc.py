"""Builds gqc_cuda.fatbin: the machine code of csrc/cuda/*.cu for every GPU that nvcc and gqc both know.

Each source becomes one fatbin, and the file is their concatenation, as in the .nv_fatbin section of an object file. It
holds PTX of the newest architecture only, from which drivers make code for GPUs that come later. Older PTX would have
to do without the matrix instructions of the GPU that it is compiled for, so other GPUs get their code from the sources
by NVRTC.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from csrc.objects import OBJECTS, Unit

SOURCES = Path("csrc/cuda")
ARCHITECTURES = (75, 80, 90, 100, 120)
"""Compute capabilities that get machine code of their own; it runs on later ones of the same first digit too, as
that of 80 on 86 and 89."""

FLAGS = ("-std=c++17", "-O3", "-fmad=false", "-Icsrc", "-fatbin", "-Xptxas", "-v", "-MD")
WARNINGS_ARE_ERRORS = ("-Werror", "all-warnings")


class Nvcc(NamedTuple):
    """The compiler of a CUDA toolkit.

    Attributes:
        path: the program.
        release: of the toolkit, as in "13.0".
        architectures: those of :data:`ARCHITECTURES` that it knows.
        compression: the options by which it writes the smallest file.
    """

    path: str
    release: str
    architectures: tuple[int, ...]
    compression: tuple[str, ...]

    @classmethod
    def find(cls) -> Nvcc | None:
        """The one in ``$CUDA_HOME`` or on the path; ``None`` if there is none that works."""
        home = os.environ.get("CUDA_HOME")
        path = shutil.which("nvcc", path=str(Path(home, "bin"))) if home else shutil.which("nvcc")
        if path is None:
            return None
        version, listed, options = (_output(path, flag) for flag in ("--version", "--list-gpu-code", "--help"))
        release = re.search(r"release ([\d.]+)", version)
        known = {int(number) for number in re.findall(r"sm_(\d+)", listed)}
        if release is None or not known.intersection(ARCHITECTURES):
            return None
        smallest = ("--compress-mode=size",) if "--compress-mode" in options else ("-Xfatbinary", "--compress-all")
        return cls(path, release[1], tuple(a for a in ARCHITECTURES if a in known), smallest)

    def units(self, warnings_are_errors: bool) -> list[Unit]:
        """The compilation of each source."""
        targets = [f"arch=compute_{a},code=sm_{a}" for a in self.architectures]
        targets.append("arch=compute_{0},code=compute_{0}".format(self.architectures[-1]))
        generate = [option for target in targets for option in ("-gencode", target)]
        command = (self.path, *FLAGS, *self.compression, *generate)
        neutral = (f"--threads={os.cpu_count()}", *(WARNINGS_ARE_ERRORS if warnings_are_errors else ()))
        folder = OBJECTS / f"nvcc-{self.release}"
        return [Unit(s, folder / f"{s.stem}.fatbin", command, neutral) for s in sorted(SOURCES.glob("*.cu"))]


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout
    except OSError:
        return ""


class Usage(NamedTuple):
    """What ptxas says of a kernel on an architecture; spills and stack in bytes a thread."""

    kernel: str
    architecture: str
    registers: int
    spills: int
    stack: int


_USAGE = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)' for '(?P<architecture>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers",
    re.DOTALL,
)


def usage(log: str) -> Iterator[Usage]:
    """Read what ``nvcc -Xptxas -v`` has printed."""
    for found in _USAGE.finditer(log):
        spills = int(found["stores"]) + int(found["loads"])
        yield Usage(found["kernel"], found["architecture"], int(found["registers"]), spills, int(found["stack"]))
