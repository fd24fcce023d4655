"""Compiles sources to object files, only those that are out of date and several at a time."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from setuptools.errors import CompileError

OBJECTS = Path("build/native")
"""The same for every kind of build, so that none compiles again what another has compiled."""


class Unit(NamedTuple):
    """One compilation.

    Attributes:
        source: what is compiled.
        object: what comes of it. Beside it stand what the compiler read (.d) and the command with its output (.log).
        command: the compiler with its options, without source and object.
        neutral: further options, which do not change the object.
    """

    source: Path
    object: Path
    command: tuple[str, ...]
    neutral: tuple[str, ...] = ()

    def log(self) -> str:
        """What the compiler said, below the command."""
        file = self.object.with_suffix(".log")
        return file.read_text() if file.exists() else ""

    def is_current(self) -> bool:
        """Whether the object comes from this command and is newer than every file that the compiler read for it."""
        depends = self.object.with_suffix(".d")
        if not (self.object.exists() and depends.exists()) or not self.log().startswith(self.heading()):
            return False
        read = depends.read_text().replace("\\\n", " ").split(":", 1)[1].split()
        built = self.object.stat().st_mtime
        return all(Path(file).exists() and Path(file).stat().st_mtime < built for file in read)

    def heading(self) -> str:
        return shlex.join([*self.command, str(self.source)]) + "\n"

    def compile(self) -> None:
        self.object.parent.mkdir(parents=True, exist_ok=True)
        out = ["-MF", str(self.object.with_suffix(".d")), "-o", str(self.object)]
        said = execute([*self.command, *self.neutral, str(self.source), *out])
        self.object.with_suffix(".log").write_text(self.heading() + said)


def execute(command: Sequence[str]) -> str:
    """Run a command and return what it printed.

    Raises:
        CompileError: with the command and its output, if it fails.
    """
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def compile_stale(units: Sequence[Unit], everything: bool = False) -> int:
    """Compile the units that are out of date, or all; returns how many that were."""
    stale = [unit for unit in units if everything or not unit.is_current()]
    stale.sort(key=lambda unit: unit.source.stat().st_size, reverse=True)  # else a long one may end alone
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(Unit.compile, stale))
    return len(stale)
