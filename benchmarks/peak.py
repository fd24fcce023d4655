"""The most memory that a process held while something ran."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes(run: Callable[[], object]) -> tuple[int, int]:
    """Resident memory of this process before ``run`` and the most of it meanwhile, in bytes (Linux only)."""
    _RESET.write_text("5")  # the high-water mark starts again
    before = _status("VmRSS")
    run()
    return before, _status("VmHWM")


def _status(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])
