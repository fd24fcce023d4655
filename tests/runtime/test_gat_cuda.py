"""The CUDA form of GAT's edge phase: every way of reading features, rows cut anywhere, heads wider than a warp."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.cuda import gat as launcher
from gqc.runtime.cuda import rows as rows_of
from gqc.runtime.reference import gat as reference
from gqc.runtime.relation import from_edges
from tests.emu import emulator
from tests.runtime.backends import CUDA, on_backend
from tests.runtime.graph_cases import assert_near, graph, hub_graph
from tests.runtime.test_gat import Case, assert_equal_to_reference, case, exact

gqc = torch.ops.gqc


def on_cuda(x: Case) -> tuple[Tensor, ...]:
    with on_backend(CUDA):
        return x.both(gqc)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("shape", "kinds"),
    [
        ((8, 16), ("int8", "int8")),
        ((3, 20), ("int8", "int8")),
        ((4, 12), ("float", "float")),
        ((1, 47), ("int8", "int8")),
        ((2, 16), ("float", "int8")),
        ((1, 600), ("int8", "int8")),  # a head of 38 runs of 16 bytes, which two tiles share
        ((2, 140), ("float", "float")),
        ((40, 2), ("int8", "int8")),
        ((2, 0), ("int8", "int8")),
    ],
    ids=str,
)
def test_hubs_equal_reference(shape: tuple[int, int], kinds: tuple[str, str], index: torch.dtype) -> None:
    g = hub_graph(index, 700)
    with on_backend(CUDA):
        assert_equal_to_reference(case(g, shape, kinds, p=0.5))


@pytest.mark.parametrize("cost", [1, 5, 37])
def test_rows_may_be_cut_anywhere(cost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_of, "_LEAST_COST", cost)
    with on_backend(CUDA):
        assert_equal_to_reference(case(hub_graph(edges=400), (3, 5), p=0.5))


@pytest.mark.parametrize("kind", ["int8", "float"])
def test_features_at_any_address(kind: str) -> None:
    x, got = case(graph("random"), (2, 32), (kind, kind), p=0.5), []
    for offset in (0, 1, 4):
        u, grad = (moved(t, offset) for t in (x.u, x.grad))
        got.append(on_cuda(x._replace(u=u, grad=grad)))
    for other in got[1:]:
        for a, b in zip(other, got[0], strict=True):
            assert_near(a, b)


def moved(x: Tensor, offset: int) -> Tensor:
    memory = torch.empty(x.numel() + offset, dtype=x.dtype)
    return memory[offset:].view(x.shape).copy_(x)


@pytest.mark.parametrize("shape", [(8, 16), (3, 5)])
def test_does_not_depend_on_which_thread_comes_first(shape: tuple[int, int]) -> None:
    x, results = case(hub_graph(torch.int32, 1200), shape, p=0.5), []
    for order in emulator.ORDERS:
        with emulator.Emulator(emulator.library(), order).running():
            results.append(x.both(gqc))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, results[0], strict=True))


def test_masked_and_bad_logits_of_a_hub() -> None:
    g = hub_graph(edges=2000)
    x = case(g, (4, 4), ("float", "float"))
    x.el[:40, 0] = -float("inf")
    x.el[:, 1] = -float("inf")
    x.el[7, 2] = float("nan")
    x.er[18] += 1e4
    with on_backend(CUDA):
        out, _, largest, _, *_, d_er = x.both(gqc)
    assert_equal_to_reference_but_nan(x, out)
    assert out[17, 1].isnan().all()
    assert out[17, 2].isnan().all()
    assert out[18, [0, 3]].isfinite().all()
    assert (largest[18, [0, 3]] > 9e3).all()
    assert d_er[17, 3].isfinite().all()
    assert not out[0].any()  # has no in-edges


def assert_equal_to_reference_but_nan(x: Case, out: Tensor) -> None:
    want = x.forward(gqc)[0]
    assert torch.equal(out.isnan(), want.isnan())
    assert_near(out, want)


def test_draws_cover_the_heads_of_a_tile_and_aligned_ones_take_no_more() -> None:
    """A lane finds the random number of its head in the blocks that its group draws."""
    assert [launcher._shape(heads, 4, launcher._ANY).random_blocks for heads in (1, 4, 8, 16, 64)] == [1, 1, 1, 2, 4]
    for heads in range(1, 80):
        for width in (1, 3, 16, 33, 700):
            shape = launcher._shape(heads, width, launcher._ANY)
            for edge in range(8):
                for first in range(0, heads, shape.heads_of_tile):
                    last = min(first + shape.heads_of_tile, heads) - 1
                    blocks = (edge * heads + last) // 8 - (edge * heads + first) // 8 + 1
                    assert blocks <= shape.random_blocks <= -(-shape.heads_of_tile // 8) + 1


def test_a_hub_of_a_hundred_thousand_edges() -> None:
    edges = 110_000
    dst = torch.where(torch.rand(edges) < 0.95, 1, torch.randint(0, 4, (edges,))).int()
    g = from_edges(torch.randint(0, 200, (edges,)).int(), dst, 200, 4)
    x = case(g, (1, 4), p=0.5)
    got, want = on_cuda(x), exact(x).both(reference)
    for i in (0, 2, 3, 4):  # out, the maximum and the sum, d_u
        assert_near(got[i], want[i], 1e-4)
    assert_near(torch.cat(got[6:]), torch.cat(want[6:]), 1e-4)  # d_er cancels
