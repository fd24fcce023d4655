"""Rows of so many entries that threads share them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.relation import DST, SRC, from_edges, num_dst
from tests.runtime.graph_cases import Relation

gqc = torch.ops.gqc
NODES, EDGES = 50, 30_000


@pytest.fixture(params=[torch.int32, torch.int64])
def g(request: pytest.FixtureRequest) -> Relation:
    """Two rows of more than one part, one of them the last, rows between them and empty rows."""
    dst = torch.randint(0, NODES, (EDGES,))
    dst[:9000], dst[9000:27_000] = 17, NODES - 1
    dst[dst == 18] = 16
    return from_edges(torch.randint(0, NODES, (EDGES,)).to(request.param), dst.to(request.param), NODES, NODES)


def sums(g: Relation, messages: Tensor) -> Tensor:
    return messages.new_zeros(num_dst(g), *messages.shape[1:]).index_add(0, g[DST].long(), messages)


@pytest.mark.parametrize("width", [5, 72])
def test_int8_is_exact(isa: str, g: Relation, width: int) -> None:
    u = torch.randint(-127, 128, (NODES, width), dtype=torch.int8)
    e = torch.randint(-127, 128, (EDGES, 1), dtype=torch.int8)
    scale, of_edges = torch.tensor(0.5), torch.tensor(0.25)
    messages = u[g[SRC].long()].double()
    copied = gqc.qspmm(g, "copy_lhs", u, scale, None, None, torch.float32)[0]
    assert torch.equal(copied, sums(g, messages).float() * scale)
    weighted = gqc.qspmm(g, "mul", u, scale, e, of_edges, torch.float32)[0]
    assert torch.equal(weighted, sums(g, messages * e).float() * (scale * of_edges))


@pytest.mark.parametrize("op", ["copy_lhs", "mul"])
def test_floats_do_not_depend_on_the_number_of_threads(isa: str, g: Relation, op: str) -> None:
    u, e = torch.rand(NODES, 40), torch.rand(EDGES, 1)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append(gqc.spmm(g, op, u, e))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)
    messages = u.double()[g[SRC].long()] * (e if op == "mul" else 1)
    torch.testing.assert_close(results[0].double(), sums(g, messages), rtol=1e-4, atol=0)


def test_programs_read_the_same_sums(isa: str, g: Relation) -> None:
    u, scale = torch.randint(-127, 128, (NODES, 40), dtype=torch.int8), torch.tensor(0.5)
    inputs, program = [torch.rand(NODES, 1)], "v0 = mul(x0, x1); return float32(v0), absmax(v0)"
    arguments = [g, "copy_lhs", u, scale, None, None, torch.float32]
    got = gqc.qspmm_pointwise(*arguments, inputs, None, program)
    want = gqc.pointwise([gqc.qspmm(*arguments)[0], *inputs], None, program)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


@pytest.mark.parametrize("width", [3, 31, 40, 64, 130, 200])
def test_a_table_of_bfloat16_is_added_up_in_float32(isa: str, g: Relation, width: int) -> None:
    u = torch.randn(NODES, width).bfloat16()
    assert torch.equal(gqc.spmm(g, "copy_lhs", u, None), gqc.spmm(g, "copy_lhs", u.float(), None).bfloat16())
