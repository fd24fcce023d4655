"""The CUDA form of edge softmax: rows that a group of lanes, one block or several blocks take."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import edge_softmax as reference
from gqc.runtime.relation import DST, from_edges
from tests.emu import emulator
from tests.runtime.backends import CUDA, on_backend
from tests.runtime.graph_cases import assert_near

gqc = torch.ops.gqc
HUB, NODES = 5, 60


def graph_with_hub(degree: int, index: torch.dtype) -> list[Tensor]:
    """Rows of 0 to 40 edges beside one of at least ``degree``, edge ids in no order."""
    dst = torch.cat([torch.full((degree,), HUB), torch.randint(0, NODES // 2, (600,))])
    dst = dst[torch.randperm(len(dst))].to(index)
    return from_edges(torch.randint(0, NODES, (len(dst),)).to(index), dst, NODES, NODES)


def assert_equals_reference(g: list[Tensor], logits: Tensor) -> None:
    grad = torch.randn_like(logits)
    with on_backend(CUDA):
        out = gqc.edge_softmax(g, logits)
        gradient = gqc.edge_softmax_bwd(g, out, grad)
    assert_near(out, reference.edge_softmax(g, logits.double()))
    assert_near(gradient, reference.edge_softmax_bwd(g, out.double(), grad.double()))


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("degree", "heads"), [(300, 1), (900, 3), (1500, 8), (3000, 4), (9000, 1), (700, 40), (40, 96)]
)
def test_rows_of_every_length_equal_reference(degree: int, heads: int, index: torch.dtype) -> None:
    g = graph_with_hub(degree, index)
    assert_equals_reference(g, torch.randn(len(g[DST]), heads) * 5)


def test_unaligned_heads_equal_reference() -> None:
    g = graph_with_hub(1500, torch.int32)
    edges = len(g[DST])
    assert_equals_reference(g, torch.randn(edges * 4 + 1)[1:].view(edges, 4))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_bad_logit_makes_a_head_of_a_hub_nan_and_masked_ones_are_zero(value: float) -> None:
    g = graph_with_hub(5000, torch.int64)
    logits = torch.randn(len(g[DST]), 4)
    of_hub = (g[DST] == HUB).nonzero().flatten()
    logits[of_hub[:4000], 0] = -float("inf")
    logits[of_hub, 1] = -float("inf")
    logits[of_hub[4500], 2] = value
    with on_backend(CUDA):
        got = gqc.edge_softmax(g, logits)
    torch.testing.assert_close(got, reference.edge_softmax(g, logits), equal_nan=True)
    assert got[of_hub[:4000], 0].eq(0).all()
    assert got[of_hub][:, 1:3].isnan().all()
    assert got[:, 3].isfinite().all()


def test_does_not_depend_on_which_part_of_a_row_comes_first() -> None:
    g = graph_with_hub(6000, torch.int32)
    logits, grad = torch.randn(2, len(g[DST]), 4)
    results = []
    for order in emulator.ORDERS:
        with emulator.Emulator(emulator.library(), order).running():
            out = gqc.edge_softmax(g, logits)
            results.append((out, gqc.edge_softmax_bwd(g, out, grad)))
    for out, gradient in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(gradient, results[0][1])
