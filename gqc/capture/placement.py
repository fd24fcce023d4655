"""The device on which a call computes, to which the graphs among its arguments are taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


def device_of_call(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """That of the model, if it has a parameter or buffer, else of the first argument that is not on the CPU.

    Runs at every call, so it looks at one tensor of the model only: its first. ``None`` stands for the CPU.
    """
    state = _first_tensor(model)
    if state is not None:
        return None if state.is_cpu else state.device
    return _of_arguments((*args, *kwargs.values()))


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
