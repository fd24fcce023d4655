"""Each CPU kernel has a CUDA form."""

from __future__ import annotations

from gqc.runtime import native
from gqc.runtime.cuda import LAUNCHERS


def test_every_cpu_kernel_has_a_launcher() -> None:
    without = {"pointwise"}  # runs as torch's ops on a GPU
    assert set(native.SIGNATURES) - set(LAUNCHERS) == without
