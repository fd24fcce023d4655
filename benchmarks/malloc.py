"""Two settings of glibc's malloc.

By default every large buffer is fresh memory from the kernel, and its page faults cost as much as the kernel that
fills it. The tuned setting keeps freed memory; any user can choose it, so peers are shown in both.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

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


def current() -> str:
    """Name of the setting that this process started with."""
    tuned = all(os.environ.get(name) == value for name, value in SETTINGS["tuned"].items())
    return "tuned" if tuned else "default"
