"""Parameters and buffers of a model as the body of ``__init__``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gqc.errors import RewriteError
from gqc.rewrite.calls import literal
from gqc.rewrite.layout import Group, Text, statement
from gqc.rewrite.names import is_identifier

_PLAIN = "nn.Module()"

LARGEST_LITERAL = 64
"""Elements of a tensor that is written into the source."""


@dataclass
class State:
    """The parameters and buffers of a model under their own names.

    Attributes:
        model: the original.
        statements: the body of ``__init__`` that makes them.
        names: dotted names of its parameters and buffers, all of a tied one.
    """

    model: nn.Module
    statements: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._owners = dict(self.model.named_modules(remove_duplicate=False))
        self.names = {
            f"{path}.{leaf}".lstrip(".")
            for path, module in self._owners.items()
            for leaf in (*module._parameters, *module._buffers)
        }
        self._needed = {""}
        for path, module in self._owners.items():
            if module._parameters or module._buffers:
                self._need(path)
        if any(name.endswith("_extra_state") for name in self.model.state_dict()):
            raise RewriteError("a module has state of its own (get_extra_state), which no rewritten model can load")

    def _need(self, path: str) -> None:
        while path not in self._needed:
            self._needed.add(path)
            path = path.rpartition(".")[0]

    def access(self, name: str) -> str:
        """Source of a parameter, a buffer or a module by its dotted name."""
        source, path = "self", ""
        for part in name.split(".") if name else ():
            kind = self._container(path)
            path = f"{path}.{part}".lstrip(".")
            if kind == _PLAIN and not is_identifier(part):  # only the model itself has no list or dict in its place
                what = "submodule" if path in self._owners else "buffer" if part in self.model._buffers else "parameter"
                source += f".get_{what}({literal(part)})"
            else:
                held = kind != _PLAIN and ("Module" in kind) == (path in self._owners)
                source += f".{part}" if not held else f"[{part}]" if "List" in kind else f"[{literal(part)}]"
        return source

    def require(self, path: str) -> str:
        """Source of a module that the model writes an attribute to."""
        self._need(path)
        return self.access(path)

    def write(self) -> list[str]:
        """The statements, modules before what they hold."""
        lines: list[str] = []
        first: dict[int, str] = {}
        for path in self._owners:
            if path and path in self._needed:
                target, container = self.access(path), self._container(path)
                if target.endswith(")"):
                    lines.append(f"{' ' * 8}self.add_module({literal(path)}, {container})")
                elif not (target.endswith("]") and container == _PLAIN):  # the list or dict around it has made it
                    lines.append(f"{' ' * 8}{target} = {container}")
        for path, module in self._owners.items():
            for leaf, tensor in (*module._parameters.items(), *module._buffers.items()):
                lines += self._tensor(path, module, leaf, tensor, first)
        return lines

    def _container(self, path: str) -> str:
        """What holds the parameters and modules below a path: a list or a dict where their names need it.

        Raises:
            RewriteError: no container can hold these names.
        """
        module = self._owners[path]
        modules = [name for name in module._modules if f"{path}.{name}".lstrip(".") in self._needed]
        if not path or all(map(is_identifier, (*modules, *module._parameters, *module._buffers))):
            return _PLAIN
        in_modules = not all(map(is_identifier, modules))
        attributes = [*module._buffers, *(module._parameters if in_modules else modules)]
        if not all(map(is_identifier, attributes)):
            raise RewriteError(f"module '{path}' has parameters or buffers whose names are no identifiers")
        kind, item = ("Module", "nn.Module()") if in_modules else ("Parameter", "unset(1)")
        names = modules if in_modules else list(module._parameters)
        if all(name.isdecimal() for name in names):
            return f"nn.{kind}List({item} for _ in range({max(map(int, names)) + 1}))"
        return f"nn.{kind}Dict({{{', '.join(f'{literal(name)}: {item}' for name in names)}}})"

    def _tensor(
        self, path: str, module: nn.Module, leaf: str, tensor: Tensor | None, first: dict[int, str]
    ) -> list[str]:
        name = f"{path}.{leaf}".lstrip(".")
        target, owner = self.access(name), self.access(path)
        is_parameter = leaf in module._parameters
        if tensor is None:
            return []
        if id(tensor) in first:  # one tensor under two names
            return self._register(is_parameter, target, owner, leaf, first[id(tensor)])
        first[id(tensor)] = target
        if is_parameter:
            arguments = [_unset(tensor)] + ["requires_grad=False"] * (not tensor.requires_grad)
            return self._register(is_parameter, target, owner, leaf, Group("nn.Parameter(", arguments))
        persistent = leaf not in module._non_persistent_buffers_set
        value: Any = (
            _unset(tensor) if persistent else tensor_literal(tensor, f"buffer '{name}', which no state_dict holds")
        )
        arguments = [literal(leaf), value] + ["persistent=False"] * (not persistent)
        return statement("", Group(f"{owner}.register_buffer(", arguments), 8)

    @staticmethod
    def _register(is_parameter: bool, target: str, owner: str, leaf: str, value: Text) -> list[str]:
        if is_parameter and not target.endswith(")"):
            return statement(f"{target} = ", value, 8)
        kind = "parameter" if is_parameter else "buffer"
        return statement("", Group(f"{owner}.register_{kind}(", [literal(leaf), value]), 8)


def _unset(tensor: Tensor) -> Group:
    sizes = [str(size) for size in tensor.shape]
    return Group("unset(", sizes + [f"dtype={tensor.dtype}"] * (tensor.dtype is not torch.float32))


def tensor_literal(tensor: Tensor, what: str) -> Group:
    """A tensor with its values.

    Raises:
        RewriteError: it is too large for that.
    """
    if tensor.numel() > LARGEST_LITERAL:
        raise RewriteError(
            f"{what} has {tensor.numel()} elements of {tensor.dtype}, too many to be written down; "
            "make it a persistent buffer or an argument of forward"
        )
    return Group("torch.tensor(", [_nested(tensor.tolist()), f"dtype={tensor.dtype}"])


def _nested(values: Any) -> str:
    if isinstance(values, list):
        return f"[{', '.join(map(_nested, values))}]"
    return literal(values)
