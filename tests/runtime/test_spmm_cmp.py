"""Max and min over in-edges in float32 against their reference."""

from __future__ import annotations

import pytest
import torch

from gqc.errors import KernelError
from gqc.runtime import native, ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import spmm_cmp as reference
from tests.runtime.graph_cases import (
    BROADCASTS,
    GRAPHS,
    assert_same_with_gradients,
    assert_sound,
    dgl_graph,
    features,
    graph,
    large_graph,
    on_all_backends,
)

gqc = torch.ops.gqc
OPS = ["copy_lhs", "copy_rhs", "add", "sub", "mul", "div"]


def assert_same(g: list[torch.Tensor], op: str, reduce: str, u: torch.Tensor, e: torch.Tensor) -> None:
    """Equal values, winners and gradients, where float32 and float64 agree on the winners."""
    out, arg = gqc.spmm_cmp(g, op, reduce, u, e)
    want_out, want_arg = reference.spmm_cmp(g, op, reduce, u, e)
    torch.testing.assert_close(out, want_out, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(arg, want_arg)
    if torch.equal(arg, reference.spmm_cmp(g, op, reduce, u.double(), e.double())[1]):
        assert_same_with_gradients(
            lambda u, e: gqc.spmm_cmp(g, op, reduce, u, e)[0],
            lambda u, e: reference.spmm_cmp(g, op, reduce, u, e)[0],
            [u, e],
        )


@pytest.mark.parametrize(("u_shape", "e_shape"), BROADCASTS)
@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("op", OPS)
def test_equals_reference_for_every_broadcast(
    backend: str, op: str, reduce: str, u_shape: tuple[int, ...], e_shape: tuple[int, ...]
) -> None:
    g = graph("random")
    assert_same(g, op, reduce, features(g, "u", u_shape), features(g, "e", e_shape))


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("op", ["copy_lhs", "copy_rhs", "mul"])
def test_equals_reference_on_every_kind_of_graph(op: str, kind: str, index: torch.dtype) -> None:
    g = graph(kind, index)
    for u_shape, e_shape in [((6,), (6,)), ((2, 16), (2, 1)), ((0,), (1,))]:
        assert_same(g, op, "max", features(g, "u", u_shape), features(g, "e", e_shape))


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_the_last_of_equal_messages_wins(backend: str, reduce: str) -> None:
    g = graph("hub")
    u = torch.randint(-2, 3, (30, 21)).float()
    assert_same(g, "copy_lhs", reduce, u, torch.ones(3000, 1))


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_nan_wins_over_every_number(backend: str, reduce: str) -> None:
    g = graph("hub")
    u = features(g, "u", (21,))
    u[4, ::2], u[5, ::3] = float("nan"), float("inf")
    out, arg = gqc.spmm_cmp(g, "copy_lhs", reduce, u, None)
    want_out, want_arg = reference.spmm_cmp(g, "copy_lhs", reduce, u, None)
    assert out[17, ::2].isnan().all()
    torch.testing.assert_close(out, want_out, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(arg, want_arg)


def test_does_not_depend_on_threads_or_instruction_set() -> None:
    g = large_graph()
    u = features(g, "u", (40,)).requires_grad_()

    def run() -> tuple[torch.Tensor, ...]:
        out, arg = gqc.spmm_cmp(g, "copy_lhs", "max", u, None)
        return out, arg, *torch.autograd.grad(out.square().sum(), u)

    first, *others = on_all_backends(run)
    for other in others:
        assert all(torch.equal(x, y) for x, y in zip(other, first, strict=True))


def test_gradient_ops_equal_their_references(backend: str, threads: int) -> None:
    g = large_graph()
    out, arg = gqc.spmm_cmp(g, "copy_lhs", "min", features(g, "u", (50,)), None)
    grad = torch.randn_like(out)
    assert torch.equal(gqc.spmm_cmp_bwd(g, arg, grad), reference.spmm_cmp_bwd(g, arg, grad))
    torch.testing.assert_close(gqc.spmm_cmp_bwd_src(g, arg, grad), reference.spmm_cmp_bwd_src(g, arg, grad))


def test_half_precision_is_computed_in_float32() -> None:
    g = graph("hub")
    u = features(g, "u", (9,), torch.bfloat16).requires_grad_()
    out, arg = gqc.spmm_cmp(g, "copy_lhs", "max", u, None)
    assert out.dtype == torch.bfloat16
    assert torch.equal(arg, gqc.spmm_cmp(g, "copy_lhs", "max", u.float(), None)[1])
    (d_u,) = torch.autograd.grad(out.sum(), u)
    assert d_u.dtype == torch.bfloat16


@pytest.mark.parametrize("op", OPS)
def test_gradients_of_float64_pass_gradcheck(op: str) -> None:
    g = graph("parallel")
    u, e = torch.rand(3, 2, 3, dtype=torch.float64) + 1, torch.rand(60, 2, 1, dtype=torch.float64) + 1
    torch.autograd.gradcheck(
        lambda u, e: gqc.spmm_cmp(g, op, "max", u, e)[0], (u.requires_grad_(), e.requires_grad_()), eps=1e-8, atol=1e-4
    )


@pytest.mark.parametrize("op", ["copy_lhs", "copy_rhs", "add", "mul"])
def test_op_is_sound(op: str) -> None:
    g = graph("bipartite")
    u, e = features(g, "u", (4, 6)).requires_grad_(), features(g, "e", (4, 1)).requires_grad_()
    assert_sound(gqc.spmm_cmp.default, g, op, "max", u, e)


def test_gradient_ops_are_sound() -> None:
    g = graph("bipartite")
    out, arg = gqc.spmm_cmp(g, "copy_lhs", "max", features(g, "u", (5,)), None)
    assert_sound(gqc.spmm_cmp_bwd.default, g, arg, out)
    assert_sound(gqc.spmm_cmp_bwd_src.default, g, arg, out)


@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("op", OPS)
def test_equals_dgl(op: str, reduce: str) -> None:
    g = graph("bipartite")
    graph_of_dgl = dgl_graph(g)
    from dgl import ops as dgl_ops

    name = {"copy_lhs": f"copy_u_{reduce}", "copy_rhs": f"copy_e_{reduce}"}.get(op, f"u_{op}_e_{reduce}")
    u, e = torch.rand(70, 8) + 1, torch.rand(150, 8) + 1
    if "avx512" in native.isas():  # DGL's kernels for it, too, give the gradient to the last of equal messages
        u, e = torch.randint(1, 4, (70, 8)).float(), torch.randint(1, 4, (150, 8)).float()

    def by_dgl(u: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        operands = [x for x, unread in ((u, "copy_rhs"), (e, "copy_lhs")) if op != unread]
        return getattr(dgl_ops, name)(graph_of_dgl, *(x.float() for x in operands))

    assert_same_with_gradients(lambda u, e: gqc.spmm_cmp(g, op, reduce, u, e)[0], by_dgl, [u, e])


def test_refuses_arguments_that_do_not_fit() -> None:
    g = graph("random")
    with pytest.raises(KernelError, match="reduce is 'mean': expected 'max' or 'min'"):
        gqc.spmm_cmp(g, "copy_lhs", "mean", torch.ones(40, 4), None)
    with pytest.raises(KernelError, match="expected int64 of the gradient's shape"):
        gqc.spmm_cmp_bwd(g, torch.zeros(40, 3, dtype=torch.int64), torch.ones(40, 4))
