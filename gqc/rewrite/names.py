"""Names for the values of a generated function."""

from __future__ import annotations

import builtins
import keyword
import re

from gqc.runtime import relation, rewritten

PARTS = frozenset(name for name in vars(relation) if name.isupper())
"""Positions of the tensors of a relation."""

MODULE_NAMES = (
    frozenset({"torch", "aten", "ops", "nn", "F", "Tensor", "Any", "OrderedDict", "SEED"})
    | PARTS
    | {*rewritten.__all__}
)
"""What a generated module imports or defines beside its functions."""

USED_BUILTINS = frozenset({"bool", "dict", "float", "int", "list", "max", "min", "sum", "tuple"})

_TAKEN = MODULE_NAMES | {"self", "ctx", "gqc", "model"}


def is_identifier(text: str) -> bool:
    """Whether a text may stand behind a dot."""
    return text.isidentifier() and not keyword.iskeyword(text)


def identifier(text: str) -> str:
    """A Python identifier that resembles ``text``, in lower case."""
    name = re.sub(r"\W+", "_", text).strip("_").lower()
    name = re.sub(r"__+", "_", name) or "value"
    return f"_{name}" if name[0].isdigit() else name


class Scope:
    """The names of one function: what it is given, and what it defines."""

    def __init__(self, taken: frozenset[str] | set[str] = frozenset()) -> None:
        self._taken = set(taken) | _TAKEN

    def take(self, name: str) -> str:
        """``name`` if it is free, else with a number behind it."""
        if name in self._taken or keyword.iskeyword(name) or hasattr(builtins, name) or name in ("l", "o", "i"):
            number = 2
            while f"{name}_{number}" in self._taken:
                number += 1
            name = f"{name}_{number}"
        self._taken.add(name)
        return name
