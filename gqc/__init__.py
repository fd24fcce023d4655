"""gqc: train unmodified GNN models with quantized primitives.

Names of the API are loaded when they are first used, so that ``gqc.runtime``, all that a rewritten model needs, brings
neither the compiler nor what it depends on.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

_root = Path(__file__).resolve().parent.parent
if not (_root / "gqc" / "passes").exists() and (_root / "passes" / "report.py").exists():
    # Started in a checkout: the folders passes/ and runtime/ stand beside gqc/, an installed gqc holds them inside.
    __path__.append(str(_root))

from gqc.compat import install as _install_dgl_finder  # noqa: E402

_install_dgl_finder()

if TYPE_CHECKING:
    from gqc.bisect import Bisection, bisect
    from gqc.compile import compile, is_compiled, state_of
    from gqc.error_report import error_report
    from gqc.errors import (
        CaptureError,
        DumpError,
        DumpWarning,
        FallbackWarning,
        GqcError,
        InputError,
        IsaWarning,
        KernelError,
        LibraryError,
        PassError,
        PolicyError,
        RewriteError,
        TuneWarning,
    )
    from gqc.explain import explain
    from gqc.memory_report import MemoryReport, memory_report
    from gqc.policy import Policy
    from gqc.rewrite import rewrite
    from gqc.save_bits import SaveBits

__all__ = [
    "Bisection",
    "CaptureError",
    "DumpError",
    "DumpWarning",
    "FallbackWarning",
    "GqcError",
    "InputError",
    "IsaWarning",
    "KernelError",
    "LibraryError",
    "MemoryReport",
    "PassError",
    "Policy",
    "PolicyError",
    "RewriteError",
    "SaveBits",
    "TuneWarning",
    "bisect",
    "compile",
    "error_report",
    "explain",
    "is_compiled",
    "memory_report",
    "rewrite",
    "state_of",
]

_MODULES = {
    "Bisection": "gqc.bisect",
    "MemoryReport": "gqc.memory_report",
    "Policy": "gqc.policy",
    "SaveBits": "gqc.save_bits",
    "bisect": "gqc.bisect",
    "compile": "gqc.compile",
    "error_report": "gqc.error_report",
    "explain": "gqc.explain",
    "is_compiled": "gqc.compile",
    "memory_report": "gqc.memory_report",
    "rewrite": "gqc.rewrite",
    "state_of": "gqc.compile",
}
"""Where a name of ``__all__`` stands, if not in gqc.errors."""


class _Package(ModuleType):
    """Loads a name of the API on first use; the submodule ``gqc.compile`` does not hide the function of that name."""

    def __getattr__(self, name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'gqc' has no attribute {name!r}")
        value = getattr(importlib.import_module(_MODULES.get(name, "gqc.errors")), name)
        vars(self)[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in __all__):  # Python sets what it has imported
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *__all__})


sys.modules[__name__].__class__ = _Package
