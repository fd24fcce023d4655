"""What the tools around a model are given: the arguments of a call, and a copy of the model to work on."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import Tensor, nn

from gqc.errors import GqcError

M = TypeVar("M", bound=nn.Module)


def arguments(tool: str, args: object, kwargs: object = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, given as a list or tuple and a dict.

    Raises:
        TypeError: they are given otherwise, such as a tensor in place of a tuple that holds it.
    """
    if not isinstance(args, list | tuple):
        raise TypeError(f"{tool}: give the arguments of a call as a tuple, such as (graph, x), not {_kind(args)}")
    if not isinstance(kwargs, dict | None):
        raise TypeError(f"{tool}: give keyword arguments as a dict, not {_kind(kwargs)}")
    return tuple(args), kwargs or {}


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def copy_of(model: M, tool: str) -> M:
    """A deep copy of a model.

    Raises:
        GqcError: a module holds what cannot be copied; the message names it.
    """
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        for path, module in model.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, Tensor) and value.grad_fn is not None:
                    where = f"module {path!r}" if path else "the model"
                    raise GqcError(
                        f"{tool} works on a copy of the model: {where} holds a tensor with gradient history in its "
                        f"attribute {name!r}, which cannot be copied; set it to None or detach it first"
                    ) from error
        raise GqcError(f"{tool} works on a copy of the model, and copy.deepcopy failed: {error}") from error
