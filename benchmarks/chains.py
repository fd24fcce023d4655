"""Chains of elementwise ops of a layer, as torch's ops and as gqc's pointwise programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Chain:
    """A chain behind a product or a sum.

    Attributes:
        function: of the product ``[N, W]``, which requires its gradient, and of :attr:`others`, as torch's ops. With
            dropout it takes ``training`` too.
        forward: the program, whose first result is that of the function; its other results are saved.
        backward: the program of the gradients of what requires one, of the gradient, what was saved, and the inputs
            at :attr:`read_again`.
        others: makes the other inputs for sizes N and W.
        read_again: places among the inputs.
    """

    function: Callable[..., Tensor]
    forward: str
    backward: str
    others: Callable[[int, int], list[Tensor]]
    read_again: tuple[int, ...] = ()


def _factors_and_bias(rows: int, width: int) -> list[Tensor]:
    return [torch.rand(rows, 1), torch.randn(width, requires_grad=True)]


def _scaled_and_shifted(x: Tensor, factors: Tensor, bias: Tensor) -> Tensor:
    return x * factors + bias


CHAINS = {
    "ReLU": Chain(
        lambda *inputs: _scaled_and_shifted(*inputs).relu(),
        "v0 = mul(x0, x1); v1 = add(v0, x2); v2 = relu(v1); v3 = le(v2, 0.0); return float32(v2), bits(v3)",
        "v0 = where(x1, 0.0, x0); v1 = mul(v0, x2); return float32(v1), float32(sum(v0, 0))",
        _factors_and_bias,
        read_again=(1,),
    ),
    "ReLU, dropout": Chain(
        lambda *inputs, training=True: F.dropout(_scaled_and_shifted(*inputs).relu(), 0.5, training),
        "v0 = mul(x0, x1); v1 = add(v0, x2); v2 = relu(v1); v3 = le(v2, 0.0); v4 = keep(0.5, 1); "
        "v5 = drop(v2, v4, 0.5); return float32(v5), bits(v3), bits(v4)",
        "v0 = drop(x0, x2, 0.5); v1 = where(x1, 0.0, v0); v2 = mul(v1, x3); return float32(v2), float32(sum(v1, 0))",
        _factors_and_bias,
        read_again=(1,),
    ),
    "SiLU": Chain(
        lambda *inputs: F.silu(_scaled_and_shifted(*inputs)),
        "v0 = mul(x0, x1); v1 = add(v0, x2); v2 = silu(v1); return float32(v2), float32(v1)",
        "v0 = silu_backward(x0, x1); v1 = mul(v0, x2); return float32(v1), float32(sum(v0, 0))",
        _factors_and_bias,
        read_again=(1,),
    ),
    "ELU, dropout": Chain(
        lambda x, bias, training=True: F.dropout(F.elu(x + bias), 0.5, training),
        "v0 = add(x0, x1); v1 = elu(v0, 1.0, 1.0, 1.0); v2 = keep(0.5, 1); v3 = drop(v1, v2, 0.5); "
        "return float32(v3), float32(v0), bits(v2)",
        "v0 = drop(x0, x2, 0.5); v1 = elu_backward(v0, x1, 1.0, 1.0, 1.0); return float32(v1), float32(sum(v1, 0))",
        lambda rows, width: [torch.randn(width, requires_grad=True)],
    ),
}
"""By activation: those of a GCN, which scale rows and add a bias first, and that of a GAT, which adds a bias first."""
