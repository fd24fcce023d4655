"""Runs sections, each in a child process within its share of the time, and writes down what they found."""

from __future__ import annotations

import json
import multiprocessing
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gqc.errors import FallbackWarning, KernelError

OK, FAILED, MISSING, NO_TIME = "ok", "FAILED", "missing", "no time"


class Missing(Exception):
    """Something that a section needs is not on this machine, or not in this version of gqc."""


@dataclass
class Found:
    """What a section found.

    Attributes:
        facts: numbers and texts by name.
        rows: lines of a table, each a dict of columns; all of a section's rows have the same columns.
        problems: what is wrong; any makes the section fail.
        missing: what could not be checked.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


@dataclass
class Result:
    """A section's place in the record."""

    name: str
    status: str
    seconds: float
    found: Found


@dataclass(frozen=True)
class Section:
    """A part of the check.

    Attributes:
        name: what it is called.
        seconds: how long it may take.
        run: does it; is given the time.monotonic() at which it has to be done.
    """

    name: str
    seconds: float
    run: Callable[[float], Found]


def attempt(found: Found, what: str, run: Callable[[], Any]) -> Any:
    """Result of ``run``, or ``None`` with its error noted under ``what``."""
    try:
        return run()
    except Exception as error:
        text = f"{what}: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
        if is_missing(error):
            found.missing.append(text)
        else:
            found.problems.append(text)
            traceback.print_exc()
        return None


def is_missing(error: Exception) -> bool:
    """Whether something is absent rather than wrong."""
    return isinstance(error, Missing | ImportError) or (
        isinstance(error, KernelError | FallbackWarning) and "has no CUDA kernel" in str(error)
    )


class Record:
    """The results so far, in a file.

    Args:
        path: of the JSON file.
        budget: seconds for all sections together.
        about: what the file says of the run itself.
    """

    def __init__(self, path: Path, budget: float, about: dict[str, Any]) -> None:
        self.results: list[Result] = []
        self._path, self._about = path, about
        self._end = time.monotonic() + budget

    def run(self, section: Section, fork: bool = True) -> Result:
        """Run a section in a child process, which is killed when its time is over, or in this one."""
        start = time.monotonic()
        limit = min(section.seconds, self._end - start)
        if limit < min(5.0, section.seconds):
            result = Result(section.name, NO_TIME, 0.0, Found())
        else:
            found, status = _in_child(section, limit) if fork else _attempt_all(section, limit)
            result = Result(section.name, status, time.monotonic() - start, found)
        self.results.append(result)
        self._write()
        return result

    def _write(self) -> None:
        content = {**self._about, "sections": [asdict(result) for result in self.results]}
        self._path.write_text(json.dumps(content, indent=1, default=str) + "\n")


def _in_child(section: Section, limit: float) -> tuple[Found, str]:
    # Forked, so that no child imports torch again; this process itself must never touch CUDA.
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=lambda: there.send(_attempt_all(section, limit)))
    child.start()
    there.close()
    if here.poll(limit):
        try:
            found, status = here.recv()
        except EOFError:
            child.join()
            found, status = Found(problems=[f"its process ended with {child.exitcode}"]), FAILED
    else:
        found, status = Found(problems=[f"not done after {limit:.0f} s"]), FAILED
        child.kill()
    child.join()
    return found, status


def _attempt_all(section: Section, limit: float) -> tuple[Found, str]:
    until = time.monotonic() + 0.9 * limit
    warnings.simplefilter("error", FallbackWarning)  # eager's results would be compared with eager's
    found = Found()
    result = attempt(found, section.name, lambda: section.run(until))
    found = result or found
    return found, FAILED if found.problems else MISSING if found.missing else OK
