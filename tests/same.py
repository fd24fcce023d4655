"""Compares a compiled model with its eager copy, and holds on to everything that a failed call must leave alone."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import gqc


def pair(model: nn.Module, **options: Any) -> tuple[nn.Module, nn.Module]:
    """The model's eager copy and the compiled model, by default without quantization."""
    return copy.deepcopy(model), gqc.compile(model, **{"bits": 32, **options})


def step(model: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Tensor]]:
    """Output and parameter gradients of a training step without the update."""
    out = model(*args, **kwargs)
    losses = [(x.sin() * 0.7 + x).sum().double() for x in tree_leaves(out) if isinstance(x, Tensor) and x.requires_grad]
    model.zero_grad()
    if losses:
        sum(losses).backward()
    return out, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(eager: nn.Module, compiled: nn.Module, *args: Any, **kwargs: Any) -> None:
    """One step on either with the same random numbers: outputs, gradients and buffers agree."""
    given = copy.deepcopy((args, kwargs))
    state = torch.get_rng_state()
    expected = step(eager, *args, **kwargs)
    torch.set_rng_state(state)
    actual = step(compiled, *given[0], **given[1])
    # A gradient may be what is left of larger terms that cancel, and the sine makes its error that of the outputs.
    floats = [x for x in tree_leaves(expected) if isinstance(x, Tensor) and x.is_floating_point() and x.numel()]
    largest = max((x.abs().nan_to_num(0, 0).max().item() for x in floats), default=0.0)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4 * max(1.0, largest))
    torch.testing.assert_close(dict(compiled.named_buffers()), dict(eager.named_buffers()))


def assert_same_error(eager: nn.Module, compiled: nn.Module, *args: Any, **kwargs: Any) -> BaseException:
    """Either raises the same error with the same text, which is returned."""
    with pytest.raises(Exception) as expected:  # noqa: PT011
        eager(*args, **kwargs)
    with pytest.raises(Exception) as actual:  # noqa: PT011
        compiled(*args, **kwargs)
    assert (actual.type, str(actual.value)) == (expected.type, str(expected.value))
    return actual.value


@contextmanager
def one_warning(text: str) -> Iterator[list[warnings.WarningMessage]]:
    """Exactly one :class:`gqc.FallbackWarning` is given, and ``text`` (a regular expression) is found in it."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", gqc.FallbackWarning)
        yield seen
    (warning,) = seen
    assert re.search(text, str(warning.message)), warning.message


@contextmanager
def nothing_lost(model: nn.Module, optimizer: torch.optim.Optimizer, *graphs: Any) -> Iterator[None]:
    """Parameters, gradients, buffers, flags, optimizer state, graph frames and torch's generator stay as they were."""

    def everything() -> tuple[list[Tensor], list[Any]]:
        leaves = tree_leaves(
            (
                dict(model.named_parameters()),
                [p.grad for p in model.parameters()],
                dict(model.named_buffers()),
                [m.training for m in model.modules()],
                optimizer.state_dict(),
                [(dict(graph.ndata), dict(graph.edata)) for graph in graphs],
                torch.get_rng_state(),
            )
        )
        tensors = [x.detach().clone() for x in leaves if isinstance(x, Tensor)]
        return tensors, [x for x in leaves if not isinstance(x, Tensor)]

    before = everything()
    yield
    after = everything()
    torch.testing.assert_close(after[0], before[0], rtol=0, atol=0)
    assert after[1] == before[1]
