"""SDDMM in float32 against its reference."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from gqc.errors import KernelError
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference.sddmm import sddmm as reference
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

sddmm = torch.ops.gqc.sddmm
ELEMENTWISE = ["copy_lhs", "copy_rhs", "add", "sub", "mul", "div"]
TARGETS = list(product("uve", "uve"))
DOTS = [((1,), (1,)), ((3,), (3,)), ((8,), (8,)), ((130,), (130,)), ((4, 8), (4, 8)), ((3, 5), (1, 5)), ((7,), (2, 7))]


def assert_same(g: list[torch.Tensor], op: str, lhs: torch.Tensor, rhs: torch.Tensor, targets: tuple[str, str]) -> None:
    assert_same_with_gradients(
        lambda lhs, rhs: sddmm(g, op, lhs, rhs, *targets),
        lambda lhs, rhs: reference(g, op, lhs, rhs, *targets),
        [lhs, rhs],
    )


@pytest.mark.parametrize(("lhs_shape", "rhs_shape"), BROADCASTS)
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_equals_reference_for_every_broadcast(
    backend: str, op: str, lhs_shape: tuple[int, ...], rhs_shape: tuple[int, ...]
) -> None:
    g = graph("bipartite")
    for targets in [("u", "v"), ("e", "v")]:
        assert_same(g, op, features(g, targets[0], lhs_shape), features(g, targets[1], rhs_shape), targets)


@pytest.mark.parametrize(("lhs_shape", "rhs_shape"), DOTS)
@pytest.mark.parametrize("targets", TARGETS)
def test_dot_equals_reference(
    backend: str, targets: tuple[str, str], lhs_shape: tuple[int, ...], rhs_shape: tuple[int, ...]
) -> None:
    g = graph("bipartite")
    assert_same(g, "dot", features(g, targets[0], lhs_shape), features(g, targets[1], rhs_shape), targets)


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_equals_reference_on_all_targets(op: str, targets: tuple[str, str]) -> None:
    g = graph("bipartite")
    for lhs_shape, rhs_shape in [((6,), (6,)), ((2, 5), (2, 1)), ((1,), (7,)), ((4,), (3, 1))]:
        assert_same(g, op, features(g, targets[0], lhs_shape), features(g, targets[1], rhs_shape), targets)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("op", ["copy_rhs", "add", "dot"])
def test_equals_reference_on_every_kind_of_graph(op: str, kind: str, index: torch.dtype) -> None:
    g = graph(kind, index)
    for shape in [(6,), (2, 16), (0,)]:
        assert_same(g, op, features(g, "u", shape), features(g, "v", shape), ("u", "v"))


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_does_not_depend_on_threads_or_instruction_set(op: str) -> None:
    g = large_graph()
    lhs, rhs = features(g, "u", (3, 24)), features(g, "v", (3, 1))
    first, *others = on_all_backends(lambda: sddmm(g, op, lhs, rhs, "u", "v"))
    assert all(torch.equal(other, first) for other in others)
    assert torch.equal(first, reference(g, op, lhs, rhs, "u", "v"))


def test_dot_does_not_depend_on_threads(backend: str) -> None:
    g = large_graph()
    lhs, rhs = features(g, "u", (3, 24)), features(g, "v", (3, 24))
    for result in on_all_backends(lambda: sddmm(g, "dot", lhs, rhs, "u", "v")):
        assert_near(result, reference(g, "dot", lhs.double(), rhs.double(), "u", "v"))


def test_nan_and_inf_stay(backend: str) -> None:
    g = graph("random")
    lhs, rhs = features(g, "u", (18,)), features(g, "v", (18,))
    lhs[3, 7], rhs[5] = float("nan"), float("inf")
    for op in ("add", "mul", "div", "dot"):
        want = reference(g, op, lhs, rhs, "u", "v")
        torch.testing.assert_close(sddmm(g, op, lhs, rhs, "u", "v"), want, equal_nan=True)


@pytest.mark.parametrize("op", ["add", "dot"])
def test_half_precision_is_computed_in_float32(op: str) -> None:
    g = graph("random")
    lhs, rhs = features(g, "u", (9,), torch.bfloat16), features(g, "v", (9,), torch.bfloat16)
    got = sddmm(g, op, lhs, rhs, "u", "v")
    assert torch.equal(got, sddmm(g, op, lhs.float(), rhs.float(), "u", "v").bfloat16())


def test_never_returns_its_operand() -> None:
    g = graph("random")
    for dtype in (torch.float32, torch.float64):
        e = features(g, "e", (4,), dtype)
        out = sddmm(g, "copy_lhs", e, None, "e", "v")
        assert torch.equal(out, e)
        assert out.data_ptr() != e.data_ptr()


@pytest.mark.parametrize("op", [*ELEMENTWISE, "dot"])
def test_gradients_of_float64_pass_gradcheck(op: str) -> None:
    g = graph("parallel")
    lhs, rhs = features(g, "u", (2, 3), torch.float64), features(g, "v", (1, 3), torch.float64)
    torch.autograd.gradcheck(lambda x, y: sddmm(g, op, x, y, "u", "v"), (lhs.requires_grad_(), rhs.requires_grad_()))


@pytest.mark.parametrize("op", [*ELEMENTWISE, "dot"])
def test_op_is_sound(op: str) -> None:
    g = graph("bipartite")
    lhs, rhs = features(g, "u", (4, 6)).requires_grad_(), features(g, "v", (4, 6)).requires_grad_()
    assert_sound(sddmm.default, g, op, lhs, rhs, "u", "v")


@pytest.mark.parametrize("targets", [("u", "v"), ("v", "u"), ("u", "e"), ("e", "v")])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "dot"])
def test_equals_dgl(op: str, targets: tuple[str, str]) -> None:
    g = graph("bipartite")
    graph_of_dgl = dgl_graph(g)
    from dgl import ops as dgl_ops

    function = getattr(dgl_ops, f"{targets[0]}_{op}_{targets[1]}")
    tensors = [features(g, target, (3, 8)) for target in targets]
    assert_same_with_gradients(
        lambda lhs, rhs: sddmm(g, op, lhs, rhs, *targets), lambda lhs, rhs: function(graph_of_dgl, lhs, rhs), tensors
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("modulo", torch.ones(70, 4), torch.ones(11, 4)), "unknown operation 'modulo'"),
        (("add", torch.ones(70, 4), None), "needs both operands: give the one on destination nodes"),
        (("add", torch.ones(11, 4), torch.ones(11, 4)), r"\[11, 4\] .* 70 source nodes"),
        (("dot", torch.ones(70, 4), torch.ones(11, 1)), r"last axes of features \[4\] and \[1\]"),
        (("dot", torch.ones(70), torch.ones(11)), "must have the same size"),
        (("mul", torch.ones(70, 4), torch.ones(11, 4).bool()), "features of torch.bool"),
    ],
)
def test_refuses_arguments_that_do_not_fit(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        sddmm(graph("bipartite"), *arguments, "u", "v")
