"""Rows of so many entries that threads share them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import edge_softmax as softmax_reference
from gqc.runtime.reference import spmm_cmp as cmp_reference
from gqc.runtime.relation import CSC_EIDS, CSC_INDPTR, DST, SRC, from_edges, num_dst
from tests.runtime.graph_cases import Relation, assert_near, on_all_backends

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


@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("width", [3, 21, 150])
def test_the_best_rows_of_all_parts_win(isa: str, g: Relation, reduce: str, width: int) -> None:
    u = torch.randint(-3, 4, (NODES, width)).float()  # the same best value in every part
    u[0], u[1, ::3], u[2, 1::3] = -0.0, float("nan"), float("inf")
    out, arg = gqc.spmm_cmp(g, "copy_lhs", reduce, u, None)
    want, of = cmp_reference.spmm_cmp(g, "copy_lhs", reduce, u, None)
    torch.testing.assert_close(out, want, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(out.signbit(), want.signbit())
    assert torch.equal(arg, of)
    grad = torch.randn_like(out)
    assert torch.equal(gqc.spmm_cmp_bwd(g, arg, grad), cmp_reference.spmm_cmp_bwd(g, arg, grad))
    q, scale = torch.randint(-127, 128, (NODES, width), dtype=torch.int8), torch.tensor(0.5)
    out, arg = gqc.qspmm_cmp(g, reduce, q, scale, torch.float32)
    want, of = cmp_reference.spmm_cmp(g, "copy_lhs", reduce, q.float(), None)
    assert torch.equal(out, want * scale)
    assert torch.equal(arg, of)


@pytest.mark.parametrize("heads", [1, 3, 4, 40])
def test_a_softmax_over_all_parts(isa: str, g: Relation, heads: int) -> None:
    x, grad = torch.randn(EDGES, heads) * 10, torch.randn(EDGES, heads)
    first, second = g[CSC_EIDS][g[CSC_INDPTR][17] :][:4000].long().tensor_split(2)
    x[first, 0] = -float("inf")  # parts without weight ..
    x[second] += 60  # .. and parts with nearly all of it
    out = gqc.edge_softmax(g, x)
    want = softmax_reference.edge_softmax(g, x.double())
    torch.testing.assert_close(out.double(), want, rtol=1e-4, atol=1e-30)
    got, want = gqc.edge_softmax_bwd(g, out, grad), softmax_reference.edge_softmax_bwd(g, out.double(), grad.double())
    assert_near(got, want)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_logit_that_is_no_number_takes_all_parts(isa: str, g: Relation, value: float) -> None:
    x, of_hub = torch.randn(EDGES, 2), g[DST] == 17
    x[of_hub.nonzero()[5000], 1] = value
    out = gqc.edge_softmax(g, x)
    assert torch.equal(out.isnan(), of_hub[:, None] & torch.tensor([False, True]))
    x[of_hub] = -float("inf")
    assert gqc.edge_softmax(g, x)[of_hub].isnan().all()


def test_other_ops_do_not_depend_on_the_number_of_threads(g: Relation) -> None:
    u, x, grad = torch.randn(NODES, 40), torch.randn(EDGES, 8), torch.randn(EDGES, 8)

    def run() -> tuple[Tensor, ...]:
        out, arg = gqc.spmm_cmp(g, "copy_lhs", "max", u, None)
        weights = gqc.edge_softmax(g, x)
        return out, arg, gqc.spmm_cmp_bwd(g, arg, out), weights, gqc.edge_softmax_bwd(g, weights, grad)

    results = on_all_backends(run)
    for i in range(0, len(results), 3):
        for other in results[i + 1 : i + 3]:
            assert all(torch.equal(a, b) for a, b in zip(other, results[i], strict=True))
