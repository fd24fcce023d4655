"""Watches a model's modules while it is traced: which one runs, which attributes it reads and which it changes."""

from __future__ import annotations

import os
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import gqc
from gqc.capture.attributes import AttributeGuard, MissingGuard, Snapshot
from gqc.errors import CaptureError

_HIDDEN_FOLDERS = tuple(os.path.join(os.path.dirname(os.path.abspath(p.__file__)), "") for p in (torch, gqc))
_CHECKED_TYPES = (
    *(int, float, bool, str, type(None), types.FunctionType, types.BuiltinFunctionType, Tensor),
    *(dict, list, tuple, set, deque),
)
_CONSTANTS = (int, float, bool, str, type(None), torch.SymInt)
_MODULE_FIELDS = frozenset(dir(nn.Module()))
_KINDS = {"_parameters": "its parameters", "_modules": "its submodules"}


def user_location(frame: types.FrameType | None = None) -> str:
    """:func:`location_of` the innermost frame, from ``frame`` outwards (by default the running one), that has one."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        if location := location_of(frame):
            return location
        frame = frame.f_back
    return ""


def location_of(frame: types.FrameType) -> str:
    """``file.py:line`` of a frame, ``""`` if its code is torch's or gqc's."""
    path = frame.f_code.co_filename
    return "" if path.startswith((*_HIDDEN_FOLDERS, "<")) else f"{os.path.basename(path)}:{frame.f_lineno}"


class StateChange(CaptureError):
    """Forward changes what a module holds. It may be a cache that is filled once, so the next call may be captured."""


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
        self.reads: dict[tuple[str, str], AttributeGuard | MissingGuard] = {}
        self.snapshot = Snapshot(self.modules)

    def describe(self) -> dict[str, Any]:
        """Provenance of the statement that is running: module path, its type and the user's line."""
        path = self.stack[-1]
        return {"module": path, "type": type(self.modules[path]).__name__, "line": user_location()}

    @contextmanager
    def active(
        self, call: Callable[[nn.Module, str, Callable[..., Any], Any, Any], Any], watching: Callable[[], bool]
    ) -> Iterator[None]:
        """Watch this thread's module calls and attribute reads.

        Args:
            call: called with ``(module, path, run, args, kwargs)`` in place of a submodule, which ``run`` would call.
            watching: whether what runs is to be watched: not another thread, nor what computes real tensors.
        """
        original_call, original_read = nn.Module.__call__, nn.Module.__getattribute__
        original_lookup = nn.Module.__getattr__

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
                self._note(module, name)
            return value

        def watched_lookup(module: nn.Module, name: str) -> Any:
            try:
                return original_lookup(module, name)
            except AttributeError:
                if watching():
                    self._note(module, name)
                raise

        nn.Module.__call__, nn.Module.__getattribute__ = watched_call, watched_read  # type: ignore[method-assign]
        nn.Module.__getattr__ = watched_lookup  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original_call  # type: ignore[method-assign]
            nn.Module.__getattr__ = original_lookup  # type: ignore[method-assign]
            del nn.Module.__getattribute__

    def _note(self, module: nn.Module, name: str) -> None:
        path = self.paths.get(id(module))
        if path not in self.snapshot.modules or (path, name) in self.reads:
            return
        fields, before = vars(module), self.snapshot.fields[path]
        if name in before and name in fields and before[name] is fields[name]:
            self.reads[path, name] = AttributeGuard.of(path, name, fields)
        elif name not in before and name not in fields:
            self.reads[path, name] = MissingGuard(path, name, fields)

    def collect_writes(self) -> list[AttributeWrite]:
        """Undo what the traced forward did to modules and return what it stored in them.

        Raises:
            StateChange: a replay could not do the same: forward counts in an attribute, appends to a list, or replaces
                or registers a parameter.
        """
        try:
            for path, name in self.snapshot.changed():
                if name != "_buffers":
                    raise StateChange(f"forward changes what {_KINDS.get(name, repr(name))} holds", module=path)
            return [
                write
                for path, module in self.snapshot.modules.items()
                for write in (*self._fields(path, module), *self._buffers(path, module))
            ]
        finally:
            self.snapshot.restore()

    def _fields(self, path: str, module: nn.Module) -> Iterator[AttributeWrite]:
        fields, before = vars(module), self.snapshot.fields[path]
        for name in before.keys() - fields.keys():
            raise StateChange(f"forward deletes the attribute '{name}'", module=path)
        for name, value in fields.items():
            if name in before and (value is before[name] or _same(value, before[name])):
                continue
            read = (path, name) in self.reads
            if isinstance(value, Tensor):
                if read and isinstance(before.get(name), Tensor):
                    raise StateChange(f"forward reads and replaces the tensor '{name}'", module=path)
            elif read or not isinstance(value, _CONSTANTS):
                raise StateChange(f"forward changes the attribute '{name}'", module=path)
            yield AttributeWrite(module, name, value)

    def _buffers(self, path: str, module: nn.Module) -> Iterator[AttributeWrite]:
        before, now = self.snapshot.registered(path, "_buffers"), module._buffers
        for name in before | now:
            if now.get(name) is before.get(name) and name in before:
                continue
            if name not in before or not isinstance(now.get(name), Tensor):
                raise StateChange(f"forward registers or removes the buffer '{name}'", module=path)
            yield AttributeWrite(module, name, now[name])


def _same(a: Any, b: Any) -> bool:
    try:
        return type(a) is type(b) and not isinstance(a, Tensor) and bool(a == b)
    except Exception:  # user-defined equality may fail
        return False
