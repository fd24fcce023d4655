"""Each CPU kernel has a CUDA form."""

from __future__ import annotations

from gqc.runtime import native
from gqc.runtime.cuda import LAUNCHERS


def test_every_cpu_kernel_has_a_launcher() -> None:
    assert set(native.SIGNATURES) - set(LAUNCHERS) == set()
