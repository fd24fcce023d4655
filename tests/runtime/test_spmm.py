"""SPMM in float32 against its reference."""

from __future__ import annotations

import pytest
import torch

from gqc.errors import KernelError
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference.spmm import spmm as reference
from gqc.runtime.relation import SRC
from tests.runtime.graph_cases import (
    BROADCASTS,
    GRAPHS,
    assert_near,
    assert_same_with_gradients,
    assert_sound,
    dgl_graph,
    features,
    graph,
    large_graph,
    on_all_backends,
)

spmm = torch.ops.gqc.spmm
OPS = ["copy_lhs", "copy_rhs", "add", "sub", "mul", "div"]


@pytest.mark.parametrize(("u_shape", "e_shape"), BROADCASTS)
@pytest.mark.parametrize("op", OPS)
def test_equals_reference_for_every_broadcast(
    backend: str, op: str, u_shape: tuple[int, ...], e_shape: tuple[int, ...]
) -> None:
    g = graph("random")
    tensors = [features(g, "u", u_shape), features(g, "e", e_shape)]
    assert_same_with_gradients(lambda u, e: spmm(g, op, u, e), lambda u, e: reference(g, op, u, e), tensors)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("op", OPS)
def test_equals_reference_on_every_kind_of_graph(op: str, kind: str, index: torch.dtype) -> None:
    g = graph(kind, index)
    for u_shape, e_shape in [((6,), (6,)), ((2, 16), (2, 1)), ((0,), (1,))]:
        tensors = [features(g, "u", u_shape), features(g, "e", e_shape)]
        assert_same_with_gradients(lambda u, e: spmm(g, op, u, e), lambda u, e: reference(g, op, u, e), tensors)


def test_a_copy_needs_only_its_operand() -> None:
    g = graph("random")
    for target, op in (("u", "copy_lhs"), ("e", "copy_rhs")):
        x = features(g, target, (5,))
        operands = (x, None) if target == "u" else (None, x)
        assert_near(spmm(g, op, *operands), reference(g, op, *operands))


@pytest.mark.parametrize("op", OPS)
def test_does_not_depend_on_threads_or_instruction_set(op: str) -> None:
    g = large_graph()
    for u_shape, e_shape in [((40,), (40,)), ((3, 24), (3, 1))]:
        u, e = features(g, "u", u_shape), features(g, "e", e_shape)
        first, *others = on_all_backends(lambda u=u, e=e: spmm(g, op, u, e))
        assert all(torch.equal(other, first) for other in others)
        assert_near(first, reference(g, op, u.double(), e.double()))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_inf_reach_exactly_the_neighbours(backend: str, value: float) -> None:
    g = graph("random")
    u, e = features(g, "u", (20,)), features(g, "e", (20,))
    u[g[SRC][0], 7] = value
    for op in ("copy_lhs", "add", "mul"):
        want = reference(g, op, u.double(), e.double())
        assert not want.isfinite().all()
        torch.testing.assert_close(spmm(g, op, u, e).double(), want, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_reads_tensors_of_any_layout(backend: str) -> None:
    g = graph("random")
    u, e = features(g, "u", (12, 4)).transpose(1, 2), features(g, "e", (8,))[:, ::2].unsqueeze(2)
    assert not u.is_contiguous()
    assert_near(spmm(g, "mul", u, e), reference(g, "mul", u, e))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    g = graph("hub")
    u, e = features(g, "u", (9,), dtype), features(g, "e", (1,), dtype)
    got = spmm(g, "mul", u, e)
    assert got.dtype == dtype
    assert torch.equal(got, spmm(g, "mul", u.float(), e.float()).to(dtype))
    assert spmm(g, "mul", u, e.float()).dtype == torch.float32


@pytest.mark.parametrize("op", OPS)
def test_gradients_of_float64_pass_gradcheck(op: str) -> None:
    g = graph("parallel")
    u, e = features(g, "u", (2, 3), torch.float64), features(g, "e", (2, 1), torch.float64)
    torch.autograd.gradcheck(lambda u, e: spmm(g, op, u, e), (u.requires_grad_(), e.requires_grad_()))


@pytest.mark.parametrize("op", OPS)
def test_op_is_sound(op: str) -> None:
    g = graph("bipartite")
    u, e = features(g, "u", (4, 6)).requires_grad_(), features(g, "e", (4, 1)).requires_grad_()
    assert_sound(spmm.default, g, op, u, e)


@pytest.mark.parametrize("kind", ["random", "bipartite", "isolated"])
@pytest.mark.parametrize("op", OPS)
def test_equals_dgl(op: str, kind: str) -> None:
    g = graph(kind)
    graph_of_dgl = dgl_graph(g)
    from dgl import ops as dgl_ops

    name = {"copy_lhs": "copy_u_sum", "copy_rhs": "copy_e_sum"}.get(op, f"u_{op}_e_sum")
    tensors = [features(g, "u", (3, 8)), features(g, "e", (3, 1))]

    def by_dgl(u: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        operands = [x for x, unread in ((u, "copy_rhs"), (e, "copy_lhs")) if op != unread]
        return getattr(dgl_ops, name)(graph_of_dgl, *operands)

    assert_same_with_gradients(lambda u, e: spmm(g, op, u, e), by_dgl, tensors)


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ({"op": "modulo"}, "unknown operation 'modulo'"),
        ({"op": "dot"}, "unknown operation"),
        ({"e": None}, "needs both operands: give the one on edges"),
        ({"u": torch.ones(39, 4)}, r"\[39, 4\] .* 40 source nodes"),
        ({"e": torch.ones(3)}, r"\[3\] .* 200 edges"),
        ({"u": torch.ones(40, 3)}, r"\[3\] and \[4\] do not broadcast"),
        ({"u": torch.ones(40, 4, dtype=torch.int64)}, "features of torch.int64"),
    ],
)
def test_refuses_arguments_that_do_not_fit(operands: dict[str, object], message: str) -> None:
    arguments = {"op": "mul", "u": torch.ones(40, 4), "e": torch.ones(200, 4)} | operands
    with pytest.raises(KernelError, match=message):
        spmm(graph("random"), arguments["op"], arguments["u"], arguments["e"])


def test_refuses_a_relation_of_another_type() -> None:
    g = graph("random")
    with pytest.raises(KernelError, match=r"index type is torch\.int16"):
        spmm([x.to(torch.int16) for x in g], "copy_lhs", torch.ones(40, 4), None)
    with pytest.raises(KernelError, match="one index type"):
        spmm([g[0].to(torch.int32), *g[1:]], "copy_lhs", torch.ones(40, 4), None)
