"""The CUDA kernels of max, min and their gradients against those of the CPU, bit for bit but for sums of gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.relation import from_edges
from tests.runtime.backends import CUDA, on_backend
from tests.runtime.graph_cases import assert_near, graph, hub_graph

gqc = torch.ops.gqc
NAN = float("nan")
WIDTHS = [1, 3, 7, 16, 33, 64, 100, 128, 200]


def few_values(g: list[Tensor], width: int) -> Tensor:
    """Features of each node of which many are equal, with some NaN and infinities."""
    x = torch.randint(-3, 4, (g[3].shape[0] - 1, width)).float()
    x[torch.rand(x.shape) < 0.01] = NAN
    x[torch.rand(x.shape) < 0.01] = -float("inf")
    return x


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_float32_of_every_width(reduce: str, width: int) -> None:
    g = hub_graph() if width <= 100 else graph("hub", torch.int32)
    x = few_values(g, width)
    with on_backend(CUDA):
        out, arg = gqc.spmm_cmp(g, "copy_lhs", reduce, x, None)
        to_edges = gqc.spmm_cmp_bwd(g, arg, out)
        one_order = gqc.spmm_cmp_bwd_src(g, arg, out)
        torch.use_deterministic_algorithms(False)
        to_sources = gqc.spmm_cmp_bwd_src(g, arg, out)
    want, want_arg = gqc.spmm_cmp(g, "copy_lhs", reduce, x, None)
    torch.testing.assert_close(out, want, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(arg, want_arg)
    torch.testing.assert_close(to_edges, gqc.spmm_cmp_bwd(g, arg, out), rtol=0, atol=0, equal_nan=True)
    assert_near(one_order, gqc.spmm_cmp_bwd_src(g, arg, out))
    assert_near(to_sources, gqc.spmm_cmp_bwd_src(g, arg, out))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_int8_of_every_width(reduce: str, width: int) -> None:
    g = hub_graph(torch.int32) if width <= 100 else graph("hub")
    u = torch.randint(-127, 128, (g[3].shape[0] - 1, width), dtype=torch.int8)
    u[:, ::2] = u[:, ::2].sign()  # many equal ones
    with on_backend(CUDA):
        got = gqc.qspmm_cmp(g, reduce, u, torch.tensor(0.3), torch.float32)
    for x, y in zip(got, gqc.qspmm_cmp(g, reduce, u, torch.tensor(0.3), torch.float32), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize(
    "values", [(1.0, float("nan"), 2.0), (float("nan"),) * 3, (-float("inf"),) * 3, (-0.0, 0.0, -0.0)]
)
def test_a_long_row_of_hard_values(values: tuple[float, ...]) -> None:
    """Pieces of a cut row hold NaN, nothing but negative infinity, or both zeros."""
    edges = 3000
    g = from_edges(torch.arange(edges), torch.zeros(edges, dtype=torch.int64), edges, 1)
    x = torch.tensor(values).repeat(edges // 3)[:, None].expand(edges, 5).contiguous()
    x[:, 1] = -1.0
    for reduce in ("max", "min"):
        with on_backend(CUDA):
            out, arg = gqc.spmm_cmp(g, "copy_lhs", reduce, x, None)
        want, want_arg = gqc.spmm_cmp(g, "copy_lhs", reduce, x, None)
        torch.testing.assert_close(out, want, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(arg, want_arg)


def test_features_at_any_address() -> None:
    g = graph("random")
    memory = torch.randn(40 * 8 + 1)
    x = memory[1:].view(40, 8)
    with on_backend(CUDA):
        got = gqc.spmm_cmp(g, "copy_lhs", "max", x, None)
    assert all(torch.equal(a, b) for a, b in zip(got, gqc.spmm_cmp(g, "copy_lhs", "max", x, None), strict=True))
