"""Watches a model's modules while it is traced: which one runs, which attributes it reads and which it changes."""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import gqc
from gqc.capture.example import real_tensors
from gqc.errors import CaptureError

_HIDDEN_FOLDERS = tuple(os.path.join(os.path.dirname(os.path.abspath(p.__file__)), "") for p in (torch, gqc))
_CHECKED_TYPES = (int, float, bool, str, type(None), types.FunctionType, types.BuiltinFunctionType, Tensor)
_CONSTANTS = (int, float, bool, str, type(None), torch.SymInt)
_MODULE_FIELDS = frozenset(vars(nn.Module()))


def user_location(frame: types.FrameType | None = None) -> str:
    """``file.py:line`` of the innermost frame (from ``frame`` outwards, by default the running one) that is neither
    torch's nor gqc's, ``""`` if there is none."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_HIDDEN_FOLDERS) and not path.startswith("<"):
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@dataclass(frozen=True)
class AttributeGuard:
    """A module attribute that the traced Python has read: the capture holds while it is the same."""

    module: str
    fields: dict[str, Any] = field(repr=False)
    name: str
    value: Any

    def holds(self) -> bool:
        value = self.fields.get(self.name)
        return value is self.value or (
            type(value) is type(self.value) and not isinstance(value, Tensor) and value == self.value
        )


@dataclass(frozen=True)
class AttributeWrite:
    """A tensor or constant that forward stores in a module attribute (``self.attention = alpha``)."""

    module: nn.Module
    name: str
    value: Any


class ModuleWatch:
    """The modules of one model.

    Attributes:
        stack: paths of the modules that are running, outermost first; the root is ``""``.
        failed: the stack where the last exception left the innermost module.
        reads: attribute guards, by module path and attribute.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.paths: dict[int, str] = {}
        self.modules: dict[str, nn.Module] = {}
        for path, module in model.named_modules():
            self.paths[id(module)] = path
            self.modules[path] = module
        self.stack: list[str] = [""]
        self.failed: list[str] = []
        self.reads: dict[tuple[str, str], AttributeGuard] = {}
        self._before = {path: dict(vars(module)) for path, module in self.modules.items()}
        self._registered = {path: (dict(m._parameters), dict(m._buffers)) for path, m in self.modules.items()}

    def describe(self) -> dict[str, Any]:
        """Provenance of the statement that is running: module path, its type and the user's line."""
        path = self.stack[-1]
        return {"module": path, "type": type(self.modules[path]).__name__, "line": user_location()}

    @contextmanager
    def active(
        self, call: Callable[[nn.Module, str, Callable[..., Any], Any, Any], Any], suspended: Callable[[], bool]
    ) -> Iterator[None]:
        """Watch this thread's module calls and attribute reads.

        Args:
            call: called with ``(module, path, run, args, kwargs)`` in place of a submodule, which ``run`` would call.
            suspended: whether real tensors are being computed, which is not watched.
        """
        thread = threading.get_ident()
        original_call, original_read = nn.Module.__call__, nn.Module.__getattribute__

        def watching() -> bool:
            return threading.get_ident() == thread and not suspended()

        def watched_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            path = self.paths.get(id(module))
            if path is None or not watching():
                return original_call(module, *args, **kwargs)
            self.stack.append(path)
            try:
                return call(module, path, original_call, args, kwargs)
            except BaseException:
                self.failed = self.failed or list(self.stack)
                raise
            finally:
                self.stack.pop()

        def watched_read(module: nn.Module, name: str) -> Any:
            value = original_read(module, name)
            if isinstance(value, _CHECKED_TYPES) and name not in _MODULE_FIELDS and watching():
                self._note(module, name, value)
            return value

        nn.Module.__call__, nn.Module.__getattribute__ = watched_call, watched_read  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original_call  # type: ignore[method-assign]
            del nn.Module.__getattribute__

    def _note(self, module: nn.Module, name: str, value: Any) -> None:
        path = self.paths.get(id(module))
        if path is None or (path, name) in self.reads:
            return
        fields, before = vars(module), self._before[path]
        if name in before and before[name] is value:
            self.reads[path, name] = AttributeGuard(path, fields, name, value)

    def collect_writes(self) -> list[AttributeWrite]:
        """Undo what the traced forward did to module attributes and return what it stored in them.

        Raises:
            CaptureError: a replay could not do the same: forward counts in an attribute, or replaces a parameter.
        """
        writes = []
        for path, module in self.modules.items():
            fields, before = vars(module), self._before[path]
            for name in [n for n in fields if n not in before or fields[n] is not before[n]]:
                value = fields[name]
                if not isinstance(value, Tensor):
                    if name in before and _same(value, before[name]):
                        continue
                    if (path, name) in self.reads or not isinstance(value, _CONSTANTS):
                        self._restore()
                        raise CaptureError(f"forward changes the attribute '{name}'", module=path)
                if (path, name) in self.reads and isinstance(before.get(name), Tensor):
                    self._restore()
                    raise CaptureError(f"forward reads and replaces the tensor '{name}'", module=path)
                writes.append(AttributeWrite(module, name, value))
            parameters, buffers = self._registered[path]
            if any(module._parameters.get(n) is not p for n, p in parameters.items()):
                self._restore()
                raise CaptureError("forward replaces a parameter", module=path)
            for name, old in buffers.items():
                new = module._buffers.get(name)
                if new is not old:
                    if not isinstance(new, Tensor):
                        self._restore()
                        raise CaptureError(f"forward replaces the buffer '{name}'", module=path)
                    writes.append(AttributeWrite(module, name, new))
        self._restore()
        return writes

    def _restore(self) -> None:
        for path, module in self.modules.items():
            fields, before = vars(module), self._before[path]
            for name in list(fields):
                if name not in before:
                    del fields[name]
            fields.update(before)
            parameters, buffers = self._registered[path]
            module._parameters.update(parameters)
            module._buffers.update(buffers)

    restore = _restore


def _same(a: Any, b: Any) -> bool:
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:  # user-defined equality may fail
        return False


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Run a model eagerly, then give all its attributes and buffers the values that they had before."""
    with real_tensors():
        contents = [(buffer, buffer.clone()) for buffer in model.buffers()]
    tables = [t for m in model.modules() for t in (vars(m), m._parameters, m._buffers)]
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, items in zip(tables, before, strict=True):
            table.clear()
            table.update(items)
        with real_tensors(), torch.no_grad():
            for buffer, content in contents:
                buffer.copy_(content)
