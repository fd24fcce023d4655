"""Runs ruff on generated code, with its default configuration and the rule sets of this repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_RULES = ("--select", "E4,E7,E9,F,I,UP,B,SIM,RUF,C4", "--ignore", "RUF001,RUF002,RUF003")


def ruff_complaints(source: str, folder: Path) -> str:
    """What ``ruff check`` and ``ruff format --check`` say about a module, ``""`` if nothing."""
    path = folder / "checked.py"
    path.write_text(source)
    said = []
    for command in (("check", "--quiet", *_RULES), ("format", "--diff", "--quiet")):
        run = [sys.executable, "-m", "ruff", command[0], "--isolated", *command[1:], str(path)]
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        said.append(done.stdout + done.stderr if done.returncode else "")
    return "".join(said)
