"""Every error that gqc raises on purpose.

Each message names the module or graph node, the reason, and the way out, in that order.
"""

from __future__ import annotations


class GqcError(Exception):
    """Base of all errors raised by gqc."""


class PolicyError(GqcError, ValueError):
    """A field of :class:`gqc.Policy` has a value that gqc does not know."""


class InputError(GqcError, ValueError):
    """An argument of the compiled model cannot be used (layout, dtype, device or number of rows)."""


class CaptureError(GqcError, RuntimeError):
    """The model's forward cannot be recorded as a graph.

    Attributes:
        module: dotted path of the innermost module that was running, ``""`` for the model itself.
        location: ``file.py:line`` of the user-level statement, ``""`` when unknown.
    """

    def __init__(self, reason: str, *, module: str = "", location: str = "") -> None:
        self.reason = reason
        self.module = module
        self.location = location
        where = f"module '{module}'" if module else "the model"
        at = f" at {location}" if location else ""
        super().__init__(f"gqc cannot capture {where}{at}: {reason}")


class PassError(GqcError, RuntimeError):
    """A pass produced a graph that breaks one of its own guarantees (a defect of gqc)."""


class RewriteError(GqcError, RuntimeError):
    """A model cannot be written down as a standalone module."""


class KernelError(GqcError, RuntimeError):
    """A native kernel refused its arguments or could not be loaded."""


class LibraryError(KernelError):
    """The kernels themselves fail, whatever is asked of them: they cannot be loaded or chosen, or have no memory."""


class DumpError(GqcError, OSError):
    """A dump cannot be written where it was asked for."""


class DumpWarning(UserWarning):
    """A dump could not be written; the model runs all the same."""


class IsaWarning(UserWarning):
    """A processor claims instructions that it executes wrongly; plainer ones take their place."""


class TuneWarning(UserWarning):
    """A file with measured costs is of no use; those that are built in take its place."""


class FallbackWarning(UserWarning):
    """A model, or a kind of call, runs in eager full precision because it could not be compiled."""
