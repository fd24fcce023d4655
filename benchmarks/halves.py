"""Forward and backward of a differentiable function, each as a call of its own to be timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch._functorch import config

Call = Callable[[], object]


def halves(function: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor) -> tuple[Call, Call]:
    """The forward, which saves what the backward needs, and the backward, which gives the gradients of ``inputs``.

    Args:
        function: of ``inputs``.
        inputs: some of them require gradients.
        grad: of the result.
    """
    out = function(*inputs)
    wanted = [x for x in inputs if x.requires_grad]
    return partial(function, *inputs), lambda: torch.autograd.grad(out, wanted, grad, retain_graph=True)


def compiled_halves(function: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor) -> tuple[Call, Call]:
    """The same of what Inductor makes of the function for these sizes, compiled when this returns."""
    # By default a compiled backward overwrites what it was given, so it runs only once after a forward.
    with config.patch(donated_buffer=False):
        forward, backward = halves(torch.compile(function, dynamic=False), inputs, grad)
        backward()
    return forward, backward
