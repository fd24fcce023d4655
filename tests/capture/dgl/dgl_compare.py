"""Eager DGL and a capture of it on the same inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from gqc.capture import Captured, calling, capture, read_call

Inputs = Callable[[Any], tuple[Any, ...]]


def tensors(obj: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(obj) if isinstance(x, Tensor)]


def run(call: Callable[[], Any], model: nn.Module, inputs: Sequence[Tensor], seed: int = 5) -> dict[str, list[Any]]:
    """Results, gradients of parameters and inputs, and buffers after one forward and backward."""
    wanted = [*model.parameters(), *inputs]
    for x in wanted:
        x.grad = None
    torch.manual_seed(seed)
    out = tensors(call())
    results = [x.detach().clone() for x in out]
    # An island may leave gradients by views of its own; every output element counts with its own weight.
    loss = sum((x * torch.linspace(0.5, 1.5, x.numel()).reshape(x.shape)).sum() for x in out if x.requires_grad)
    if isinstance(loss, Tensor):
        loss.backward()
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad.clone() for x in wanted]
    return {"results": results, "gradients": gradients, "buffers": [b.clone() for b in model.buffers()]}


def replay(captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the capture returns for a call; fails if the capture does not hold for it."""
    call = read_call(args, kwargs)
    assert call.key == captured.inputs.key
    assert captured.guards.check(call.flat) is None
    with calling(call.graphs):
        return captured.outputs.unflatten(captured.graph(*call.flat), args, kwargs)


def assert_same(expected: dict[str, list[Any]], got: dict[str, list[Any]], rtol: float, atol: float) -> None:
    for what in expected:
        assert len(expected[what]) == len(got[what]), what
        for i, (a, b) in enumerate(zip(expected[what], got[what], strict=True)):
            try:
                torch.testing.assert_close(b, a, rtol=rtol, atol=atol, equal_nan=True)
            except AssertionError as error:
                raise AssertionError(f"{what}[{i}]: {error}") from None


def check(
    model: nn.Module,
    sizes: Sequence[Any],
    inputs: Inputs,
    kwargs: Callable[[Any], dict[str, Any]] = lambda size: {},
    rtol: float = 1e-7,
    atol: float = 1e-7,
) -> Captured:
    """Capture ``model`` on the first size; results, gradients and buffers must equal eager's on every size."""
    eager = copy.deepcopy(model)
    captured = capture(model, inputs(sizes[0]), kwargs(sizes[0]))
    for size in sizes:
        pair = []
        for module, forward in ((eager, eager), (model, lambda *a, **k: replay(captured, a, k))):
            args, options = inputs(size), kwargs(size)
            leaves = [x for x in read_call(args, options).flat if x.requires_grad and x.is_leaf]
            pair.append(run(lambda f=forward, a=args, k=options: f(*a, **k), module, leaves))
        assert_same(*pair, rtol=rtol, atol=atol)
    return captured
