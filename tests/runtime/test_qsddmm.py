"""SDDMM on INT8 operands against its reference."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from gqc.errors import KernelError
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference.qsddmm import qsddmm as reference
from gqc.runtime.relation import from_edges
from tests.runtime.graph_cases import (
    BROADCASTS,
    GRAPHS,
    assert_near,
    assert_sound,
    features,
    graph,
    large_graph,
    on_all_backends,
    quantized,
)

qsddmm = torch.ops.gqc.qsddmm
ELEMENTWISE = ["add", "sub", "mul", "div"]
KINDS = ["int8 and int8", "int8 and float", "float and int8"]
Shape = tuple[int, ...]


def operands(g: list[torch.Tensor], kind: str, shapes: tuple[Shape, Shape], targets: tuple[str, str]) -> list:
    """``lhs, lhs_scale, rhs, rhs_scale`` of the operand types that ``kind`` names."""
    return [
        x
        for name, shape, target in zip(kind.split()[::2], shapes, targets, strict=True)
        for x in (quantized(g, target, shape) if name == "int8" else (features(g, target, shape), None))
    ]


@pytest.mark.parametrize("shapes", BROADCASTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_equals_reference_for_every_broadcast(backend: str, op: str, kind: str, shapes: tuple[Shape, Shape]) -> None:
    g = graph("bipartite")
    arguments = [*operands(g, kind, shapes, ("u", "v")), "u", "v", torch.float32]
    want = reference(g, op, *arguments)
    torch.testing.assert_close(qsddmm(g, op, *arguments), want, rtol=1e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("shapes", [((1,), (1,)), ((3,), (3,)), ((130,), (130,)), ((4, 8), (4, 8)), ((3, 5), (1, 5))])
@pytest.mark.parametrize("kind", KINDS)
def test_dot_equals_reference(backend: str, kind: str, shapes: tuple[Shape, Shape]) -> None:
    for targets in product("uve", "uve"):
        g = graph("bipartite", torch.int32)
        arguments = [*operands(g, kind, shapes, targets), *targets, torch.float32]
        got, want = qsddmm(g, "dot", *arguments), reference(g, "dot", *arguments)
        if kind == "int8 and int8":
            assert torch.equal(got, want)
        else:
            assert_near(got, want)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", GRAPHS)
def test_equals_reference_on_every_kind_of_graph(kind: str, index: torch.dtype) -> None:
    g = graph(kind, index)
    for op in ("add", "dot"):
        arguments = [*operands(g, "int8 and int8", ((2, 8), (2, 8)), ("u", "v")), "u", "v", torch.float32]
        torch.testing.assert_close(qsddmm(g, op, *arguments), reference(g, op, *arguments))


def test_a_long_dot_does_not_overflow(backend: str) -> None:
    g, width = graph("single"), 140_003
    x, one = torch.full((1, width), 127, dtype=torch.int8), torch.ones(())
    assert qsddmm(g, "dot", x, one, x, one, "u", "v", torch.float32).item() == float(
        torch.tensor(127 * 127 * width).float()
    )


def test_does_not_depend_on_threads_or_instruction_set() -> None:
    g = large_graph()
    for op, shapes in [("add", ((24,), (1,))), ("mul", ((3, 24), (3, 1))), ("dot", ((3, 24), (3, 24)))]:
        arguments = [*operands(g, "int8 and int8", shapes, ("u", "v")), "u", "v", torch.float32]
        first, *others = on_all_backends(lambda op=op, arguments=arguments: qsddmm(g, op, *arguments))
        assert all(torch.equal(other, first) for other in others)


@pytest.mark.parametrize("op", [*ELEMENTWISE, "dot"])
def test_a_nan_scale_makes_all_results_nan(backend: str, op: str) -> None:
    g = graph("random")
    zeros, nan = torch.zeros(40, 9, dtype=torch.int8), torch.tensor(float("nan"))
    assert qsddmm(g, op, zeros, nan, features(g, "v", (9,)), None, "u", "v", torch.float32).isnan().all()


def test_bfloat16_output_is_rounded_from_float32() -> None:
    g = graph("random")
    arguments = [*operands(g, "int8 and float", ((9,), (9,)), ("u", "v")), "u", "v"]
    assert torch.equal(
        qsddmm(g, "mul", *arguments, torch.bfloat16), qsddmm(g, "mul", *arguments, torch.float32).bfloat16()
    )


@pytest.mark.parametrize("op", [*ELEMENTWISE, "dot"])
def test_op_is_sound(op: str) -> None:
    g = graph("bipartite")
    u, u_scale, v, v_scale = operands(g, "int8 and int8", ((4, 6), (4, 6)), ("u", "v"))
    v[v == 0] = 1  # 0 / 0 is NaN, which torch's checker takes for a difference
    assert_sound(qsddmm.default, g, op, u, u_scale, v, v_scale, "u", "v", torch.bfloat16)


def test_refuses_arguments_that_do_not_fit() -> None:
    g = graph("random")
    u, scale = quantized(g, "u", (4,))
    v = torch.ones(40, 4)
    with pytest.raises(KernelError, match="operation 'copy_lhs': expected"):
        qsddmm(g, "copy_lhs", u, scale, v, None, "u", "v", torch.float32)
    with pytest.raises(KernelError, match="no operand has a scale"):
        qsddmm(g, "add", v, None, v, None, "u", "v", torch.float32)
    with pytest.raises(KernelError, match="200 edges"):
        qsddmm(g, "add", u, scale, v, None, "u", "e", torch.float32)


@pytest.mark.parametrize("op", ["add", "dot"])
def test_half_precision_is_rounded_and_long_results_are_streamed(op: str) -> None:
    g = from_edges(torch.randint(0, 500, (35_000,)), torch.randint(0, 400, (35_000,)), 500, 400)
    (u, u_scale), (v, v_scale) = quantized(g, "u", (2, 66)), quantized(g, "v", (2, 66))
    arguments = (g, op, u, u_scale, v, v_scale, "u", "v")
    exact = qsddmm(*arguments, torch.float32)  # 18 MB of an elementwise operation
    assert_near(exact, reference(*arguments, torch.float32))
    floats = [x.float() * scale for x, scale in ((u, u_scale), (v, v_scale))]
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(qsddmm(*arguments, dtype), exact.to(dtype))
        halves = [x.to(dtype) for x in floats]
        got, want = (torch.ops.gqc.sddmm(g, op, *x, "u", "v") for x in (halves, [h.float() for h in halves]))
        assert torch.equal(got, want.to(dtype))
