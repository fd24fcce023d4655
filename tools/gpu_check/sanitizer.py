"""compute-sanitizer's four tools over the ops at small sizes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.gpu_check.place import Place
from tools.gpu_check.record import Found, Missing

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (.*)")
_CHECK = ("-m", "tools.gpu_check", "--only", "ops-small", "--no-fork")


def sanitizer(place: Place, until: float) -> Found:
    """One row a tool: its own summary.

    Raises:
        Missing: there is no GPU or no compute-sanitizer.
    """
    place.require_gpu()
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise Missing("compute-sanitizer is not on the path; it comes with the CUDA toolkit")
    found = Found()
    for i, tool in enumerate(TOOLS):
        seconds = (until - time.monotonic()) / (len(TOOLS) - i)
        with tempfile.TemporaryDirectory() as folder:
            command = [program, "--tool", tool, "--error-exitcode", "99"]
            check = [sys.executable, *_CHECK, "--budget", str(0.8 * seconds), "--out", folder]
            try:
                done = subprocess.run([*command, *check], capture_output=True, text=True, timeout=max(seconds, 1))
            except subprocess.TimeoutExpired:
                found.missing.append(f"{tool}: not done after {seconds:.0f} s")
                continue
            found.rows.append({"tool": tool, "summary": summary(done.stdout + done.stderr)})
            if done.returncode:
                found.problems.append(f"{tool}: exit code {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
            elif not (Path(folder) / "gpu_check.json").exists():
                found.problems.append(f"{tool}: the check under it wrote nothing")
    return found


def summary(output: str) -> str:
    """What the tool says in the end."""
    said = _SUMMARY.findall(output)
    return said[-1].strip() if said else "no summary"
