"""Where the machine code of csrc/cuda can come from in this installation. Needs neither cuda.core nor a GPU."""

from __future__ import annotations

import os
from pathlib import Path

from gqc.errors import KernelError

FATBIN, NVRTC = "fatbin", "nvrtc"
_RUNTIME = Path(__file__).parents[1]


def routes() -> list[str]:
    """What to try, in order: the fatbin where there is one, then NVRTC; or what ``GQC_CUDA`` names.

    Raises:
        KernelError: it names something else.
    """
    forced = os.environ.get("GQC_CUDA")
    if forced:
        if forced not in (FATBIN, NVRTC):
            raise KernelError(f"GQC_CUDA={forced!r}: choose {FATBIN!r} or {NVRTC!r}")
        return [forced]
    return [FATBIN, NVRTC] if fatbin().exists() else [NVRTC]


def fatbin() -> Path:
    """The file that nvcc made; it need not be there."""
    return _RUNTIME / "gqc_cuda.fatbin"


def sources() -> Path:
    """The folder in which cuda/*.cu lie: in an installed package within it, in a checkout beside it."""
    packaged = _RUNTIME / "csrc"
    return packaged if packaged.exists() else _RUNTIME.parent / "csrc"
