"""gqc: train unmodified GNN models with quantized primitives."""

from pathlib import Path

_root = Path(__file__).resolve().parent.parent
if not (_root / "gqc" / "passes").exists() and (_root / "passes" / "report.py").exists():
    # Started in a checkout: the folders passes/ and runtime/ stand beside gqc/, an installed gqc holds them inside.
    __path__.append(str(_root))

from gqc.compat import install as _install_dgl_finder  # noqa: E402

_install_dgl_finder()

from gqc.bisect import Bisection, bisect  # noqa: E402
from gqc.compile import compile, is_compiled, state_of  # noqa: E402
from gqc.error_report import error_report  # noqa: E402
from gqc.errors import (  # noqa: E402
    CaptureError,
    DumpError,
    DumpWarning,
    FallbackWarning,
    GqcError,
    InputError,
    KernelError,
    PassError,
    PolicyError,
)
from gqc.explain import explain  # noqa: E402
from gqc.policy import Policy  # noqa: E402

__all__ = [
    "Bisection",
    "CaptureError",
    "DumpError",
    "DumpWarning",
    "FallbackWarning",
    "GqcError",
    "InputError",
    "KernelError",
    "PassError",
    "Policy",
    "PolicyError",
    "bisect",
    "compile",
    "error_report",
    "explain",
    "is_compiled",
    "state_of",
]
