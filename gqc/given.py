"""What the tools around a model are given: the arguments of a call, and a copy of the model to work on."""

from __future__ import annotations

import copy
import inspect
from typing import Any, TypeVar

from torch import Tensor, nn

from gqc.errors import GqcError
from gqc.policy import did_you_mean
from gqc.text import a_kind

M = TypeVar("M", bound=nn.Module)


def arguments(tool: str, args: object, kwargs: object = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, given as a list or tuple and a dict.

    Raises:
        TypeError: they are given otherwise, such as a tensor in place of a tuple that holds it.
    """
    if not isinstance(args, list | tuple):
        raise TypeError(f"{tool}: give the arguments of a call as a tuple, such as (graph, x), not {a_kind(args)}")
    if not isinstance(kwargs, dict | None):
        raise TypeError(f"{tool}: give keyword arguments as a dict, not {a_kind(kwargs)}")
    return tuple(args), kwargs or {}


def check_call(
    tool: str, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], options: tuple[str, ...] = ()
) -> None:
    """Refuse arguments that the model's forward does not take.

    Args:
        tool: for the message, with the arguments as it takes them.
        model: the eager model.
        args, kwargs: the arguments of a call.
        options: keyword arguments of the tool itself, for which another name may have been meant.

    Raises:
        TypeError: saying what is missing or too much.
    """
    try:
        signature = inspect.signature(model.forward)
    except ValueError:  # TorchScript has none
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        hint = ""
        if len(args) == 1 and isinstance(args[0], list | tuple):
            hint = f"; the arguments are given one by one, not as a {type(args[0]).__name__}"
        for name in kwargs.keys() - signature.parameters.keys():
            near = did_you_mean(name, options)
            hint = near if "did you mean" in near else hint
        raise TypeError(f"{tool}: {type(model).__name__}.forward{signature}: {error}{hint}") from None


def check_loss(tool: str, loss_fn: object) -> None:
    """Refuse a ``loss_fn`` that cannot be called, such as the name of a loss.

    Args:
        tool: for the message.
        loss_fn: ``None`` or a function of a model's result.

    Raises:
        TypeError: it is neither; the message says what to give.
    """
    if loss_fn is not None and not callable(loss_fn):
        raise TypeError(
            f"{tool}: loss_fn={loss_fn!r} must be a function of the model's result that returns a number, such as "
            "lambda out: F.mse_loss(out, target); without it every output receives a random gradient"
        )


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
