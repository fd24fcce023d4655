"""Keys and flat tensors of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gqc.capture import UncapturedInput, read_call
from gqc.runtime.memory import ByIdentity


def key(*args: Any, **kwargs: Any) -> Any:
    return read_call(args, kwargs).key


def test_a_key_ignores_values_and_sizes() -> None:
    first = key(torch.randn(3, 4), [torch.zeros(2, 9, dtype=torch.long)], {"w": torch.ones(5)}, scale=2.0, flag=None)
    again = key(torch.randn(8, 4), [torch.zeros(2, 1, dtype=torch.long)], {"w": torch.ones(0)}, scale=2.0, flag=None)
    assert hash(first) == hash(again)
    assert first == again


@pytest.mark.parametrize(
    "other",
    [
        lambda x: ((x.double(), 1), {}),
        lambda x: ((x[0], 1), {}),
        lambda x: ((x.clone().requires_grad_(), 1), {}),
        lambda x: ((x, 2), {}),
        lambda x: ((x, True), {}),
        lambda x: ((x, 1.0), {}),
        lambda x: ((x,), {"n": 1}),
        lambda x: (([x], 1), {}),
        lambda x: (((x,), 1), {}),
        lambda x: (({"x": x}, 1), {}),
        lambda x: ((x, 1, torch.relu), {}),
    ],
)
def test_a_key_sees_everything_static(other: Callable[[Any], Any]) -> None:
    x = torch.randn(3, 4)
    args, kwargs = other(x)
    assert key(x, 1) != key(*args, **kwargs)


def test_names_of_dict_entries_and_keyword_arguments_count() -> None:
    x = torch.ones(2)
    assert key({"a": x}) != key({"b": x})
    assert key(a=x) != key(b=x)


def test_flat_tensors_are_contiguous_and_in_order() -> None:
    a, b, c = torch.randn(3, 4), torch.randn(4, 3).t(), torch.randn(2)
    call = read_call((a, {"b": b}), {"c": (c, None)})
    assert [x.is_contiguous() for x in call.flat] == [True] * 3
    assert call.flat[0] is a
    assert call.argument(1) is b
    assert torch.equal(call.flat[1], b)
    assert call.flat[2] is c


class Opaque:
    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        (torch.eye(3).to_sparse(), "edge_index"),
        (torch.eye(3).to_sparse_csr(), "edge_index"),
        (Opaque(), "Opaque"),
        (object(), "object"),
    ],
)
def test_arguments_that_run_eagerly_are_named(argument: Any, text: str) -> None:
    with pytest.raises(UncapturedInput, match=rf"'adj'.*{text}"):
        read_call((), {"adj": argument})


def test_results_are_remembered_while_their_tensors_live() -> None:
    calls = []
    remembered = ByIdentity(lambda x, n: calls.append(n) or x + n)
    x = torch.arange(3)
    assert remembered(x, 1) is remembered(x, 1)
    assert torch.equal(remembered(x, 2), x + 2)
    x.add_(1)
    assert torch.equal(remembered(x, 1), x + 1)
    assert calls == [1, 2, 1]
    assert len(remembered._results) == 3
    del x
    assert not remembered._results


def test_a_view_made_anew_is_the_same_tensor() -> None:
    calls = []
    remembered = ByIdentity(lambda a, b: calls.append(1) or a + b)
    edge_index = torch.arange(8).view(4, 2).t().contiguous()
    for _ in range(3):
        assert torch.equal(remembered(edge_index[0], edge_index[1]), edge_index.sum(0))
    assert len(calls) == 1
    for a, b in (
        (edge_index[1], edge_index[1]),
        (edge_index[0, :2], edge_index[0, 2:]),
        (edge_index[0, ::2], edge_index[1, ::2]),
    ):
        assert torch.equal(remembered(a, b), a + b)
    assert len(calls) == 4
    edge_index[0, 0] = 7
    assert torch.equal(remembered(edge_index[0], edge_index[1]), edge_index.sum(0))
    assert len(calls) == 5
    del a, b, edge_index
    assert not remembered._results
