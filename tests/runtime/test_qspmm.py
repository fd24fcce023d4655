"""SPMM on INT8 operands against its reference: exact where all operands are INT8."""

from __future__ import annotations

import pytest
import torch

from gqc.errors import KernelError
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import qspmm as reference
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

gqc = torch.ops.gqc
SHAPES = [(), (1,), (3,), (8,), (47,), (130,), (4, 16), (3, 5)]
KINDS = ["int8 and int8", "int8 and float", "float and int8"]


def operands(g: list[torch.Tensor], kind: str, u_shape: tuple[int, ...], e_shape: tuple[int, ...]) -> list:
    """``u, u_scale, e, e_scale`` of the operand types that ``kind`` names."""
    u_kind, _, e_kind = kind.split()
    u = quantized(g, "u", u_shape) if u_kind == "int8" else (features(g, "u", u_shape), None)
    e = quantized(g, "e", e_shape) if e_kind == "int8" else (features(g, "e", e_shape), None)
    return [*u, *e]


def assert_same(got: tuple[torch.Tensor, ...], want: tuple[torch.Tensor, ...], exact: bool = True) -> None:
    assert got[0].dtype == want[0].dtype
    if exact:
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    else:
        assert_near(got[0], want[0])
    assert got[1].shape == ()
    torch.testing.assert_close(
        got[1], got[0].float().abs().amax() if got[0].numel() else torch.zeros(()), rtol=0, atol=0
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", ["copy_lhs", "copy_rhs"])
def test_copies_equal_reference(backend: str, op: str, shape: tuple[int, ...]) -> None:
    g = graph("hub")
    arguments = operands(g, "int8 and int8", shape, shape)
    assert_same(gqc.qspmm(g, op, *arguments, torch.float32), reference.qspmm(g, op, *arguments, torch.float32))


@pytest.mark.parametrize(("u_shape", "e_shape"), BROADCASTS)
@pytest.mark.parametrize("kind", KINDS)
def test_products_equal_reference_for_every_broadcast(
    backend: str, kind: str, u_shape: tuple[int, ...], e_shape: tuple[int, ...]
) -> None:
    g = graph("random")
    arguments = operands(g, kind, u_shape, e_shape)
    got = gqc.qspmm(g, "mul", *arguments, torch.float32)
    assert_same(got, reference.qspmm(g, "mul", *arguments, torch.float32), exact=kind == "int8 and int8")


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", GRAPHS)
def test_equals_reference_on_every_kind_of_graph(kind: str, index: torch.dtype) -> None:
    g = graph(kind, index)
    for op in ("copy_lhs", "copy_rhs", "mul"):
        arguments = operands(g, "int8 and int8", (2, 8), (2, 8))
        assert_same(gqc.qspmm(g, op, *arguments, torch.float32), reference.qspmm(g, op, *arguments, torch.float32))


@pytest.mark.parametrize("width", [1, 20])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_hub_does_not_overflow(backend: str, sign: int, width: int) -> None:
    degree = 140_000
    g = from_edges(torch.zeros(degree, dtype=torch.int32), torch.zeros(degree, dtype=torch.int32), 1, 1)
    u, e = torch.full((1, width), 127, dtype=torch.int8), torch.full((degree, 1), sign * 127, dtype=torch.int8)
    out, absmax = gqc.qspmm(g, "mul", u, torch.ones(()), e, torch.ones(()), torch.float32)
    assert (out == float(sign * 127 * 127 * degree)).all()
    assert absmax == 127 * 127 * degree
    out, _ = gqc.qspmm(g, "copy_lhs", u, torch.ones(()), None, None, torch.float32)
    assert (out == float(127 * degree)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_does_not_depend_on_threads_or_instruction_set(kind: str) -> None:
    g = large_graph()
    arguments = operands(g, kind, (3, 24), (3, 1))
    first, *others = on_all_backends(lambda: gqc.qspmm(g, "mul", *arguments, torch.float32))
    assert all(torch.equal(x, y) for other in others for x, y in zip(other, first, strict=True))


@pytest.mark.parametrize("op", ["copy_lhs", "mul"])
def test_a_nan_scale_makes_all_results_nan(backend: str, op: str) -> None:
    g = graph("isolated")
    u, e = torch.zeros(50, 9, dtype=torch.int8), features(g, "e", (1,))
    out, absmax = gqc.qspmm(g, op, u, torch.tensor(float("nan")), e, None, torch.float32)
    assert out.isnan().all()
    assert absmax.isnan()


@pytest.mark.parametrize("steps", [127, 255])
def test_eight_bits_lose_the_attention_of_a_hub(steps: int) -> None:
    """Why weights of edges stay float: one edge of weight 1 sets the step for a hub's weights of 1/2000."""
    edges, width = 2000, 64
    dst = torch.cat([torch.zeros(edges, dtype=torch.int64), torch.ones(1, dtype=torch.int64)])
    g = from_edges(torch.arange(edges + 1), dst, edges + 1, 2)
    attention = torch.cat([torch.randn(edges).softmax(0), torch.ones(1)]).unsqueeze(1)
    rounded = (attention * steps + torch.rand_like(attention)).floor().clamp(max=steps) / steps
    rows = torch.randn(edges + 1, width)
    u, scale = gqc.quantize(rows, None, torch.tensor([7, 0]), 0, 8, True)
    want = (attention.double() * rows)[:edges].sum(0)

    def error(weights: torch.Tensor) -> float:
        return float((gqc.qspmm(g, "mul", u, scale, weights, None, torch.float32)[0][0] - want).norm() / want.norm())

    assert error(attention) < 0.04
    assert error(rounded) > 0.5


def test_an_all_zero_operand_gives_zero() -> None:
    g = graph("random")
    out, absmax = gqc.qspmm(
        g, "copy_lhs", torch.zeros(40, 9, dtype=torch.int8), torch.zeros(()), None, None, torch.float32
    )
    assert not out.any()
    assert absmax == 0


def test_bfloat16_output_and_its_absmax_are_rounded_alike() -> None:
    g = graph("random")
    arguments = operands(g, "int8 and int8", (33,), (1,))
    out, absmax = gqc.qspmm(g, "mul", *arguments, torch.bfloat16)
    assert torch.equal(out, gqc.qspmm(g, "mul", *arguments, torch.float32)[0].bfloat16())
    assert absmax.dtype == torch.float32
    assert absmax == out.float().abs().max()


@pytest.mark.parametrize("rows", [50, 70_000])
def test_every_float_is_rounded_to_bfloat16_as_torch_does(isa: str, rows: int) -> None:
    """NaN, Inf, subnormals and ties among them; the longer result is streamed."""
    ends = torch.arange(rows, dtype=torch.int32)
    g = from_edges(ends, ends, rows, rows)
    ones, bits = torch.ones(rows, 1, dtype=torch.int8), torch.randint(-(2**31), 2**31, (rows, 130))
    bits[:, ::3] = bits[:, ::3] & ~0xFFFF | 0x8000
    arguments = ones, torch.tensor(1.0), bits.int().view(torch.float32), None
    out, _ = gqc.qspmm(g, "mul", *arguments, torch.bfloat16)
    exact, _ = gqc.qspmm(g, "mul", *arguments, torch.float32)
    torch.testing.assert_close(out, exact.bfloat16(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_max_and_min_equal_reference(backend: str, reduce: str, shape: tuple[int, ...]) -> None:
    for kind in ("hub", "isolated", "no edges"):
        g = graph(kind, torch.int32)
        u, scale = quantized(g, "u", shape)
        got, want = (f(g, reduce, u, scale, torch.float32) for f in (gqc.qspmm_cmp, reference.qspmm_cmp))
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])


@pytest.mark.parametrize("width", [15, 16, 31, 64, 100, 130, 300])
def test_max_of_rows_with_more_entries_than_a_byte_can_number(backend: str, width: int) -> None:
    lengths = torch.tensor([1, 0, 255, 256, 257, 600, 2])
    dst = torch.arange(7).repeat_interleave(lengths)
    g = from_edges(torch.randint(0, 50, dst.shape).int(), dst[torch.randperm(len(dst))].int(), 50, 7)
    u, scale = torch.randint(-9, 10, (50, width), dtype=torch.int8), torch.tensor(0.5)
    for reduce in ("max", "min"):
        got, want = (f(g, reduce, u, scale, torch.float32) for f in (gqc.qspmm_cmp, reference.qspmm_cmp))
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])


def test_max_of_a_result_that_goes_past_the_caches(isa: str) -> None:
    g = from_edges(torch.randint(0, 90, (20000,)), torch.randint(0, 9000, (20000,)), 90, 9000)
    for width in (160, 163):  # whole cache lines, and parts of them
        u = torch.randint(-9, 10, (90, width), dtype=torch.int8)
        got = gqc.qspmm_cmp(g, "max", u, torch.tensor(0.5), torch.float32)
        in_floats = gqc.spmm_cmp(g, "copy_lhs", "max", u * 0.5, None)
        want = reference.qspmm_cmp(g, "max", u, torch.tensor(0.5), torch.float32)
        for results in (got, in_floats):
            assert torch.equal(results[0], want[0])
            assert torch.equal(results[1], want[1])


def test_max_does_not_depend_on_threads_or_instruction_set() -> None:
    g = large_graph()
    u, scale = quantized(g, "u", (40,))
    first, *others = on_all_backends(lambda: gqc.qspmm_cmp(g, "max", u, scale, torch.bfloat16))
    assert first[0].dtype == torch.bfloat16
    assert all(torch.equal(x, y) for other in others for x, y in zip(other, first, strict=True))


def test_max_of_a_nan_scale_is_nan() -> None:
    g = graph("random")
    u = torch.zeros(40, 3, dtype=torch.int8)
    out, _ = gqc.qspmm_cmp(g, "max", u, torch.tensor(float("nan")), torch.float32)
    assert out.isnan().all()


def test_ops_are_sound() -> None:
    g = graph("bipartite")
    u, u_scale, e, e_scale = operands(g, "int8 and int8", (4, 6), (4, 1))
    assert_sound(gqc.qspmm.default, g, "copy_lhs", u, u_scale, None, None, torch.float32)
    assert_sound(gqc.qspmm.default, g, "copy_rhs", None, None, e, e_scale, torch.bfloat16)
    assert_sound(gqc.qspmm.default, g, "mul", u, u_scale, e, e_scale, torch.float32)
    assert_sound(gqc.qspmm_cmp.default, g, "max", u, u_scale, torch.float32)


def test_refuses_arguments_that_do_not_fit() -> None:
    g = graph("random")
    u, scale = quantized(g, "u", (4,))
    e = torch.ones(200, 1)
    with pytest.raises(KernelError, match="operation 'add': expected"):
        gqc.qspmm(g, "add", u, scale, e, None, torch.float32)
    with pytest.raises(KernelError, match="no operand has a scale"):
        gqc.qspmm(g, "mul", u.float(), None, e, None, torch.float32)
    with pytest.raises(KernelError, match="goes with int8 features"):
        gqc.qspmm(g, "mul", u, scale, e, scale, torch.float32)
    with pytest.raises(KernelError, match=r"features of torch\.int8"):
        gqc.qspmm(g, "mul", u, None, e, None, torch.float32)
    with pytest.raises(KernelError, match="only floating-point"):
        gqc.qspmm(g, "copy_lhs", u, scale, None, None, torch.int32)
    with pytest.raises(KernelError, match="has no gradient"):
        gqc.qspmm(g, "mul", u, scale, e.requires_grad_(), None, torch.float32)
