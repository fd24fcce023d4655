"""The device on which a call computes, to which the graphs among its arguments are taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


def device_of_call(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """That of the first tensor argument, else parameter or buffer, that is not on the CPU; ``None`` for the CPU.

    Runs at every call, so it looks at one tensor of the model only: its first.
    """
    return _of_arguments((*args, *kwargs.values())) or _of_module(model)


def _of_arguments(values: Iterable[Any]) -> torch.device | None:
    for value in values:
        if isinstance(value, Tensor):
            if not value.is_cpu:
                return value.device
        elif type(value) in (dict, list, tuple):
            found = _of_arguments(value.values() if type(value) is dict else value)
            if found is not None:
                return found
    return None


def _of_module(model: nn.Module) -> torch.device | None:
    first = _first_tensor(model)
    return None if first is None or first.is_cpu else first.device


def _first_tensor(module: nn.Module) -> Tensor | None:
    state = module.__dict__
    for table in ("_parameters", "_buffers"):
        for tensor in state.get(table, {}).values():
            if tensor is not None:
                return tensor
    for child in state.get("_modules", {}).values():
        found = _first_tensor(child) if child is not None else None
        if found is not None:
            return found
    return None
