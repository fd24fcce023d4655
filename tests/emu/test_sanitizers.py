"""The emulator under AddressSanitizer, which has to be loaded before Python: in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.emu import emulator, small_kernels

# Launches in a child of its own each of "kernel tensors n"; prints whether it has come back.
LAUNCH = """
import os, sys, torch
from tests.emu import emulator, small_kernels
target = emulator.Emulator(small_kernels.library())
for case in sys.argv[1:]:
    name, tensors, n = case.split()
    if not (child := os.fork()):
        small_kernels.run(target, name, 1, 32, *(torch.ones(32) for _ in range(int(tensors))), int(n))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(case, "passes" if status == 0 else "fails", flush=True)
"""
RIGHT = ("read_out_of_range 2 31", "local_array_out_of_range 1 4", f"integer_overflow 1 {2**31 - 32}")
FAULTS = {
    "read_out_of_range 2 32": "AddressSanitizer: heap-buffer-overflow",
    "local_array_out_of_range 1 5": "out of bounds",
    f"integer_overflow 1 {2**31 - 31}": "signed integer overflow",
}

# Sums, differences and quotients read and write the memory that products do, and minima that of maxima; any rate of
# dropout that of any other. Of contractions so long that int32 sums would overflow each form is there with one length,
# and with int8 values only.
REPEATED = ("emulated-add", "emulated-sub", "emulated-div", "-min-", "emulated-0.3", "13107", "14000")
EVERY_ACCESS = " and ".join(("cuda", *(f"not {name}" for name in REPEATED)))


@pytest.fixture(autouse=True)
def _needs_sanitizers() -> None:
    if not Path(emulator.sanitized()["LD_PRELOAD"]).exists():
        pytest.skip("this compiler has no AddressSanitizer")


def run_sanitized(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = emulator.sanitized() | variables
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)


def test_planted_faults_are_reported() -> None:
    small_kernels.library(address=True)  # built here: a compiler under AddressSanitizer is slow
    done = run_sanitized("-c", LAUNCH, *RIGHT, *FAULTS)
    outcomes = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert outcomes == {case: "passes" if case in RIGHT else "fails" for case in (*RIGHT, *FAULTS)}, done.stderr
    for words in FAULTS.values():
        assert words in done.stderr
    assert "faulty.cu" in done.stderr


@pytest.mark.slow
def test_the_kernels_of_gqc_pass() -> None:
    options = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", EVERY_ACCESS)
    emulator.library(address=True)
    done = run_sanitized("-m", "pytest", *options, "tests/runtime")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
