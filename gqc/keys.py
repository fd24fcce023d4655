"""What a compiled variant depends on beside the arguments of the call.

Reading these at every call is the price of honouring ``model.eval()``, frozen parameters, new hooks or autocast
without asking the user to compile again, so the functions here are written for speed.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import nn

from gqc.autocast import autocast_dtypes

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def module_key(model: nn.Module) -> Hashable:
    """The modules, and of each its training flag, hooks and replaced forward and what its parameters are like.

    Modules are told apart by identity; who keeps a key keeps the modules too.
    """
    key: list[Any] = []
    _visit(model, key)
    return tuple(key)


def _visit(module: nn.Module, key: list[Any]) -> None:
    state = module.__dict__
    if "training" not in state:  # TorchScript, which keeps all in C++ and is never captured
        key.append((id(module), module.training))
        return
    key.append((id(module), state["training"], state.get("forward")))
    for hooks in map(state.__getitem__, _HOOKS):
        if hooks:
            key.append(tuple(hooks))
    for parameter in state["_parameters"].values():
        if parameter is not None:
            key.append((parameter.dtype, parameter.size(), parameter.device, parameter.requires_grad))
    for buffer in state["_buffers"].values():
        if buffer is not None:
            key.append((buffer.dtype, buffer.size(), buffer.device))
    for child in state["_modules"].values():
        if child is not None:
            _visit(child, key)


def mode_key() -> Hashable:
    """Grad mode, inference mode, autocast and the default dtype of the calling thread."""
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast_dtypes(), torch.get_default_dtype()
