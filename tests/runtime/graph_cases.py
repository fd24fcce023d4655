"""Graphs and feature shapes that the tests of graph ops share, and how a kernel is compared with its reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gqc.runtime.relation import DST, SRC, from_edges, num_dst, num_rows, num_src
from tests.runtime.backends import CUDA, ISAS, on_backend

Relation = list[Tensor]

# (features of the first operand, features of the second one)
BROADCASTS = [
    ((), ()),
    ((1,), (1,)),
    ((3,), (3,)),
    ((8,), (8,)),
    ((47,), (47,)),
    ((130,), (130,)),
    ((16,), (1,)),
    ((21,), ()),
    ((1,), (9,)),
    ((4, 16), (4, 1)),
    ((3, 5), (3, 1)),
    ((8, 1), (8, 1)),
    ((2, 40), (1, 1)),
    ((1, 12), (3, 1)),
    ((3, 1), (3, 6)),
    ((5,), (2, 5)),
    ((2, 1, 6), (3, 1)),
]

GRAPHS = ["random", "bipartite", "hub", "parallel", "isolated", "single", "no edges", "no sources", "no nodes"]


def graph(kind: str, index: torch.dtype = torch.int64) -> Relation:
    """A small random relation; ``kind`` is one of :data:`GRAPHS`."""
    if kind == "random":
        src, dst, sizes = torch.randint(0, 40, (200,)), torch.randint(0, 40, (200,)), (40, 40)
    elif kind == "bipartite":
        src, dst, sizes = torch.randint(0, 70, (150,)), torch.randint(0, 11, (150,)), (70, 11)
    elif kind == "hub":
        src, dst, sizes = torch.randint(0, 30, (3000,)), torch.randint(0, 30, (3000,)), (30, 30)
        dst[torch.rand(3000) < 0.7] = 17
    elif kind == "parallel":
        src, dst, sizes = torch.randint(0, 3, (60,)), torch.randint(0, 3, (60,)), (3, 3)
    elif kind == "isolated":
        src, dst, sizes = torch.randint(5, 9, (30,)), torch.randint(20, 25, (30,)), (50, 50)
    elif kind == "single":
        src, dst, sizes = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), (1, 1)
    else:
        src = dst = torch.zeros(0, dtype=torch.int64)
        sizes = {"no edges": (6, 7), "no sources": (0, 4), "no nodes": (0, 0)}[kind]
    return from_edges(src.to(index), dst.to(index), *sizes)


def large_graph() -> Relation:
    """Enough edges for two threads, one row with half of them, and edge ids in no order."""
    edges = 6000
    dst = torch.where(torch.rand(edges) < 0.5, 123, torch.randint(0, 1000, (edges,)))
    return from_edges(torch.randint(0, 900, (edges,)), dst, 900, 1000)


def hub_graph(index: torch.dtype = torch.int64, edges: int = 9000) -> Relation:
    """Rows with thousands of edges, which many warps share, others between, and empty rows at both ends."""
    dst = torch.randint(3, 60, (edges,))
    dst[torch.rand(edges) < 0.4] = 17
    dst[torch.rand(edges) < 0.2] = 18
    return from_edges(torch.randint(0, 50, (edges,)).to(index), dst.to(index), 50, 64)


def features(g: Sequence[Tensor], target: str, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Random features away from zero, so that every operation on them is well-conditioned."""
    size = (num_rows(g, target), *shape)
    return ((torch.rand(size) + 0.5) * (torch.randint(0, 2, size) * 2 - 1)).to(dtype)


def quantized(g: Sequence[Tensor], target: str, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Random INT8 features and their scale."""
    return torch.randint(-127, 128, (num_rows(g, target), *shape), dtype=torch.int8), torch.rand(()) * 0.1


def assert_same_with_gradients(
    function: Callable[..., Any],
    reference: Callable[..., Any],
    tensors: Sequence[Tensor | None],
    tolerance: float = 2e-5,
) -> None:
    """Compare a float32 function with its reference in float64: the result and the gradient of every tensor."""
    single = [None if x is None else x.detach().clone().requires_grad_() for x in tensors]
    double = [None if x is None else x.detach().double().requires_grad_() for x in tensors]
    got, want = function(*single), reference(*double)
    assert_near(got, want, tolerance)
    grad = torch.randn_like(got)
    for x, y, given in zip(
        torch.autograd.grad(got, [x for x in single if x is not None], grad, allow_unused=True),
        torch.autograd.grad(want, [x for x in double if x is not None], grad.double(), allow_unused=True),
        [x for x in tensors if x is not None],
        strict=True,
    ):
        assert (x is None) == (y is None)
        if x is not None:
            assert x.shape == given.shape
            assert_near(x, y, tolerance)


def assert_near(got: Tensor, want: Tensor, tolerance: float = 2e-5) -> None:
    """Equal shapes, and no element further away than ``tolerance`` of the largest one; NaN equals NaN."""
    got, want = got.detach(), want.detach()
    finite = want[want.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 1.0
    torch.testing.assert_close(got.double(), want.double(), rtol=0, atol=tolerance * max(scale, 1.0), equal_nan=True)


def on_all_backends(function: Callable[[], Any], names: Sequence[str] | None = None) -> list[Any]:
    """Results of ``function`` on back ends, by default the instruction sets, those with one, two and three threads."""
    results, before = [], torch.get_num_threads()
    try:
        for name in ISAS if names is None else names:
            for threads in (1,) if name == CUDA else (1, 2, 3):
                torch.set_num_threads(threads)
                with on_backend(name):
                    results.append(function())
    finally:
        torch.set_num_threads(before)
    return results


def assert_sound(op: Any, *arguments: Any) -> None:
    """Schema, fake kernel, autograd registration and tracing with symbolic sizes, by torch's own checker."""
    torch.library.opcheck(op, arguments)


def dgl_graph(g: Relation) -> Any:
    """The relation as a DGLGraph with the same edge ids; the test is skipped where DGL is absent."""
    dgl = pytest.importorskip("dgl")
    if num_src(g) == num_dst(g):
        return dgl.graph((g[SRC], g[DST]), num_nodes=num_src(g))
    return dgl.heterograph({("u", "to", "v"): (g[SRC], g[DST])}, num_nodes_dict={"u": num_src(g), "v": num_dst(g)})
