"""Hooks of submodules. They are there for their side effects, so they are not recorded but run eagerly at each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

REASON = "a hook may do anything, so it runs at each call"


@contextmanager
def hooks_replaced(modules: dict[str, nn.Module], call: Callable[..., Any]) -> Iterator[None]:
    """Have ``call(path, hook, module, *args)`` run in place of each forward hook of the submodules.

    Those that torch itself registers (weight and spectral norm, pruning) compute weights and stay. The hooks of the
    model itself are not part of its forward.
    """
    tables = [
        (path, table)
        for path, module in modules.items()
        if path and not isinstance(module, torch.jit.ScriptModule)
        for table in (module._forward_pre_hooks, module._forward_hooks)
        if table
    ]
    originals = [dict(table) for _, table in tables]
    for path, table in tables:
        table.update({key: partial(call, path, hook) for key, hook in table.items() if not _is_torch(hook)})
    try:
        yield
    finally:
        for (_, table), original in zip(tables, originals, strict=True):
            table.update(original)


def has_backward_hooks(module: nn.Module) -> bool:
    """Whether something waits for gradients of a module's inputs or outputs, which are not tensors in a graph."""
    return bool(module._backward_hooks or module._backward_pre_hooks)


def _is_torch(hook: Callable[..., Any]) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("torch.")
