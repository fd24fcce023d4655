"""Compares a captured model with eager: forward, every gradient and every buffer."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from gqc.capture import Captured, calling, read_call


def run_captured(captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
    """Run a capture on a call, as compiled code would; fails if its guards do not hold."""
    kwargs = kwargs or {}
    call = read_call(args, kwargs)
    assert captured.guards.check(call.flat) is None
    with calling(call.graphs):
        return captured.outputs.unflatten(captured.graph(*call.flat), args, kwargs)


def with_gradients(args: Any) -> tuple[Any, list[Tensor]]:
    """A copy of a call whose floating-point tensors require gradients, and these tensors."""
    leaves: list[Tensor] = []

    def copy(x: Tensor) -> Tensor:
        x = x.clone()
        if x.is_floating_point():
            leaves.append(x.requires_grad_())
        return x

    return pytree.tree_map_only(Tensor, copy, args), leaves


def assert_like_eager(captured: Captured, model: nn.Module, args: Any, kwargs: Any, tolerance: float = 1e-4) -> None:
    """Check a capture against its model on one call, with the same random numbers and the same state before it."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = _run(model, lambda a, k: model(*a, **k), args, kwargs)
    model.load_state_dict(before)
    actual = _run(model, lambda a, k: run_captured(captured, a, k), args, kwargs)
    model.load_state_dict(before)
    for kind, want, got in zip(("output", "gradient", "state"), expected, actual, strict=True):
        assert len(want) == len(got), kind
        for i, (a, b) in enumerate(zip(want, got, strict=True)):
            _assert_close(a, b, tolerance, f"{kind} {i}")


def _assert_close(expected: Tensor | None, actual: Tensor | None, tolerance: float, what: str) -> None:
    """``None`` is a gradient of zeros."""
    if expected is None and actual is None:
        return
    expected = torch.zeros_like(actual) if expected is None else expected
    actual = torch.zeros_like(expected) if actual is None else actual
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    atol = tolerance * (1 + largest)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=atol, msg=lambda text: f"{what}: {text}")


def _run(model: nn.Module, run: Any, args: Any, kwargs: Any) -> tuple[list[Tensor], list[Tensor | None], list[Tensor]]:
    (args, kwargs), inputs = with_gradients((args, kwargs))
    torch.manual_seed(7)
    leaves = [x for x in pytree.tree_leaves(run(args, kwargs)) if isinstance(x, Tensor)]
    outputs = [x.detach().clone() for x in leaves]
    parameters = [p for p in model.parameters() if p.requires_grad]
    terms = [(x.sin() * 0.7 + x * 0.3).sum() for x in leaves if x.requires_grad]
    wanted = [*parameters, *inputs]
    gradients = torch.autograd.grad(sum(terms), wanted, allow_unused=True) if terms else [None] * len(wanted)
    return outputs, list(gradients), [value.clone() for value in model.state_dict().values()]
