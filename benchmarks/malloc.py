"""Two settings of glibc's malloc.

By default every large buffer is fresh memory from the kernel, and its page faults cost as much as the kernel that
fills it. The tuned setting keeps freed memory; any user can choose it, so peers are shown in both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "tuned": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_TOP_PAD_": str(2**28)},
}


def run_module(module: str, arguments: Sequence[str], setting: str) -> None:
    """Run ``python -m module`` in a child process; malloc reads its settings only when a process starts.

    Raises:
        subprocess.CalledProcessError: the child failed.
    """
    tuning = {name for values in SETTINGS.values() for name in values}
    environment = {name: value for name, value in os.environ.items() if name not in tuning}
    subprocess.run([sys.executable, "-m", module, *arguments], env=environment | SETTINGS[setting], check=True)


def run_for_json(module: str, arguments: Sequence[str], setting: str) -> Any:
    """What a module writes with ``--json``, run as by :func:`run_module`."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        run_module(module, [*arguments, "--json", str(result)], setting)
        return json.loads(result.read_text())


def command_line(options: Mapping[str, Any]) -> list[str]:
    """Values of an argument parser as it reads them; ``None`` stands for what is not given."""
    arguments: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            arguments += [flag] if value else [f"--no-{flag[2:]}"]
        elif isinstance(value, list):
            arguments += [flag, *map(str, value)]
        elif value is not None:
            arguments += [flag, str(value)]
    return arguments


def current() -> str:
    """Name of the setting that this process started with."""
    tuned = all(os.environ.get(name) == value for name, value in SETTINGS["tuned"].items())
    return "tuned" if tuned else "default"
