"""What a compiled variant depends on beside the arguments of the call.

Reading these at every call is the price of honouring ``model.eval()``, frozen parameters, new hooks or autocast
without asking the user to compile again, so the functions here are written for speed.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import nn


def module_key(model: nn.Module) -> Hashable:
    """Training flags, hooks and the dtype, device and ``requires_grad`` of every parameter, in module order."""
    key: list[Any] = []
    _visit(model, key)
    return tuple(key)


def _visit(module: nn.Module, key: list[Any]) -> None:
    state = module.__dict__
    key.append(state["training"])
    if state["_forward_hooks"] or state["_forward_pre_hooks"] or state["_backward_hooks"]:
        key.append(
            tuple(state["_forward_hooks"]) + tuple(state["_forward_pre_hooks"]) + tuple(state["_backward_hooks"])
        )
    for parameter in state["_parameters"].values():
        if parameter is not None:
            key.append((parameter.dtype, parameter.is_cpu, parameter.requires_grad))
    for child in state["_modules"].values():
        if child is not None:
            _visit(child, key)


def mode_key() -> Hashable:
    """Grad mode, inference mode, autocast and the default dtype of the calling thread."""
    autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, torch.get_default_dtype()
