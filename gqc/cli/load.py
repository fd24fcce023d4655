"""Functions of the user's files, given as ``path/to/file.py:name``."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from torch import nn

from gqc.errors import GqcError
from gqc.policy import Policy
from gqc.text import a_kind

_IN_PYTHON_ALONE = "passes"


class LoadError(GqcError):
    """A function of the user's file does not give what a command needs."""


@dataclass(frozen=True)
class Reference:
    """A name in a file."""

    path: Path
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"

    def get(self) -> Any:
        """The object of that name.

        Raises:
            click.BadParameter: the file has none.
            Exception: what running the file raises.
        """
        module = _module(self.path.resolve())
        if not hasattr(module, self.name):
            functions = [n for n, v in vars(module).items() if callable(v) and v.__module__ == module.__name__]
            has = f"it defines {', '.join(sorted(functions))}" if functions else "it defines no function"
            raise click.BadParameter(f"{self.path} has no {self.name!r}; {has}")
        return getattr(module, self.name)

    def call(self, function: Callable[[], Any]) -> Any:
        """What the function of that name returns.

        Raises:
            LoadError: it takes arguments, or raises.
        """
        needed = _needed_by(function)
        if needed:
            raise LoadError(f"{self} takes {', '.join(needed)}: the function is called without arguments")
        try:
            return function()
        except Exception as error:
            frames, own = traceback.extract_tb(error.__traceback__), self.path.resolve()
            lines = [frame.lineno for frame in frames if Path(frame.filename) == own]
            where = f"{self.path}:{lines[-1]}: " if lines else ""
            raise LoadError(f"{self} raised {type(error).__name__}: {where}{error}") from error


class ReferenceType(click.ParamType):
    """``path/to/file.py:name``."""

    name = "FILE.py:NAME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Reference:
        if isinstance(value, Reference):
            return value
        path, colon, name = value.rpartition(":")
        if not colon or not name.isidentifier():
            self.fail(f"{value!r} is not of the form path/to/file.py:name", param, ctx)
        if not Path(path).is_file():
            self.fail(f"there is no file {path!r}", param, ctx)
        return Reference(Path(path), name)


class PolicyOption(click.ParamType):
    """``FIELD=VALUE`` of :class:`gqc.Policy`."""

    name = "FIELD=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value
        field, equals, text = value.partition("=")
        if not equals:
            self.fail(f"{value!r} is not of the form field=value, such as bits=8", param, ctx)
        try:
            return field, ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return field, text


def policy_of(options: tuple[tuple[str, Any], ...]) -> Policy:
    """The policy that options make.

    Raises:
        click.BadParameter: a field is unknown, has an unknown value, or is set twice.
    """
    if any(field == _IN_PYTHON_ALONE for field, _ in options):
        raise click.BadParameter("passes are Python functions: give them to gqc.compile", param_hint="'--set'")
    counts = Counter(field for field, _ in options)
    for field in (field for field, count in counts.items() if count > 1):
        raise click.BadParameter(f"{field} is set twice: give all of its value at once", param_hint="'--set'")
    try:
        return Policy.of(None, dict(options))
    except GqcError as error:
        text = str(error).replace("gqc.compile has no option", "there is no option")
        raise click.BadParameter(text, param_hint="'--set'") from error


def policy_help() -> str:
    """Help text of the option that sets a field of the policy."""
    names = [field.name for field in fields(Policy) if field.name != _IN_PYTHON_ALONE]
    return f"A field of gqc.Policy, may be repeated: {', '.join(names)}."


def load_model(reference: Reference) -> nn.Module:
    """The model that a function makes, or a module itself.

    Raises:
        LoadError: it is or makes no ``torch.nn.Module``.
    """
    found = reference.get()
    model = found if isinstance(found, nn.Module) or not callable(found) else reference.call(found)
    if not isinstance(model, nn.Module):
        raise LoadError(f"{reference} gives {a_kind(model)}, not a torch.nn.Module: let it return the model")
    return model


def load_example(reference: Reference) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and keyword arguments of the example call that a function makes.

    It returns a tuple of arguments, a dict of keyword arguments, or a tuple and a dict.

    Raises:
        LoadError: it returns anything else.
    """
    found = reference.get()
    example = reference.call(found) if callable(found) else found
    if isinstance(example, dict):
        return (), example
    if isinstance(example, tuple):
        if len(example) == 2 and isinstance(example[0], tuple) and isinstance(example[1], dict):
            return example
        return example, {}
    raise LoadError(
        f"{reference} gives {a_kind(example)}, and the arguments of a call are needed: "
        "return a tuple (of one argument: `return (x,)`), a dict of keyword arguments, or a tuple and a dict"
    )


def _needed_by(function: Callable[..., Any]) -> list[str]:
    """Names of the arguments without which a function cannot be called."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some that are not written in Python have no signature
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


@cache
def _module(path: Path) -> ModuleType:
    """Run a file as Python would import it from its folder."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise click.BadParameter(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module
