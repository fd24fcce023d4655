"""Statements of the user's program, found by the ``file.py:12`` that a capture notes for each call."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from torch import nn


@dataclass(frozen=True)
class Statement:
    """A statement of the user's program.

    Attributes:
        text: its first line.
        variable: the variable that it assigns to, ``""`` if it assigns to none.
        own: whether it stands in the file of the module's class, not in that of a caller or of a library.
    """

    text: str = ""
    variable: str = ""
    own: bool = False


class SourceLines:
    """Finds statements of the classes of a model's modules.

    Args:
        model: its modules tell in which files to look first.
    """

    def __init__(self, model: nn.Module) -> None:
        self._own = {path: set(_files(type(module))) for path, module in model.named_modules()}

    def has_own(self, module: str) -> bool:
        """Whether the class of a module is not one of torch's, whose lines no capture notes."""
        return bool(self._own.get(module))

    @cached_property
    def _loaded(self) -> dict[str, set[str]]:
        """Paths of the program's files by their last part."""
        found: dict[str, set[str]] = {}
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if isinstance(path, str):
                found.setdefault(os.path.basename(path), set()).add(path)
        return found

    def find(self, module: str, location: str) -> Statement:
        """The statement at ``location``, where a call of the module at path ``module`` was recorded."""
        file, _, number = location.rpartition(":")
        if not file:
            return Statement()
        own = next((path for path in self._own.get(module, ()) if os.path.basename(path) == file), None)
        near = {p for files in self._own.values() for p in files if os.path.basename(p) == file}
        candidates = [own] if own else list(near or self._loaded.get(file, ()))
        if len(candidates) != 1:
            return Statement()
        text, variable = _statement(candidates[0], int(number))
        return Statement(text, variable, own is not None)


def _files(kind: type) -> Iterator[str]:
    """The files of a class and of those that it derives from, torch's own left out."""
    for base in kind.__mro__:
        if base in (object, nn.Module) or base.__module__.startswith("torch."):
            continue
        try:
            path = inspect.getsourcefile(base)
        except (TypeError, OSError):  # built in, or typed into an interpreter
            continue
        if path:
            yield path


@cache
def _tree(path: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return None


def _statement(path: str, number: int) -> tuple[str, str]:
    tree = _tree(path)
    found: ast.stmt | None = None
    for node in ast.walk(tree) if tree is not None else ():
        simple = isinstance(node, ast.stmt) and not hasattr(node, "body")
        if simple and node.lineno <= number <= (node.end_lineno or node.lineno):
            found = node
    if found is None:
        return linecache.getline(path, number).strip(), ""
    text = linecache.getline(path, found.lineno).strip()
    targets = found.targets if isinstance(found, ast.Assign) else [getattr(found, "target", None)]
    variable = next((t.id for t in targets if isinstance(t, ast.Name)), "")
    return text, variable
