"""SPMM that writes half precision, and multiplies or divides rows: what single ops give, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import qspmm as qspmm_reference
from gqc.runtime.reference.spmm import spmm as spmm_reference
from gqc.runtime.relation import num_dst
from tests.runtime.graph_cases import Relation, assert_near, assert_sound, features, graph, hub_graph, quantized

gqc = torch.ops.gqc
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(), (3,), (8,), (20,), (64,), (130,), (512,), (2, 40)]


def factors(g: Relation, dtype: torch.dtype = torch.float32) -> Tensor:
    """One number a destination, among them what a division by a degree of 0 or a lost node brings."""
    rows = torch.rand(num_dst(g)) + 0.5
    rows[:4] = torch.tensor([0.0, -1.5, float("inf"), float("nan")])
    return rows.to(dtype).float()


def one_by_one(total: Tensor, rows: Tensor, divide: bool) -> Tensor:
    """As torch's op computes it, on a column of the same dtype."""
    column = rows.to(total.dtype).view(-1, *[1] * (total.dim() - 1))
    return total / column if divide else total * column


def assert_like_single_ops(g: Relation, op: Callable[..., tuple[Tensor, Tensor]], dtype: torch.dtype) -> None:
    total, absmax = op(torch.float32)
    rounded, absmax_of_rounded = op(dtype)
    assert rounded.dtype == dtype
    assert torch.equal(rounded, total.to(dtype))
    assert torch.equal(absmax_of_rounded, absmax.to(dtype).float())
    rows = factors(g, dtype)
    for divide in (False, True):
        want = one_by_one(rounded, rows, divide)
        out, absmax = op(dtype, rows, divide)
        torch.testing.assert_close(out, want, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(absmax, want.float().abs().amax(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_int8_sums(backend: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    g = graph("hub", torch.int32)
    u, scale = quantized(g, "u", shape)
    assert_like_single_ops(g, lambda *last: gqc.qspmm(g, "copy_lhs", u, scale, None, None, *last), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3,), (16,), (4, 16)])
def test_weighted_sums_and_their_reference(backend: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    g = graph("bipartite")
    (u, scale), (e, e_scale) = quantized(g, "u", shape), quantized(g, "e", (*shape[:-1], 1))
    arguments = (g, "mul", u, scale, e, e_scale, dtype)
    assert_like_single_ops(g, lambda *last: gqc.qspmm(*arguments[:-1], *last), dtype)
    rows = factors(g)
    for divide in (False, True):
        got, want = (f(*arguments, rows, divide) for f in (gqc.qspmm, qspmm_reference.qspmm))
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5,), (64,)])
def test_float_sums(backend: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    g = hub_graph(edges=3000)
    u, e = features(g, "u", shape, dtype), features(g, "e", (1,), dtype)

    def op(dtype: torch.dtype, *last: object) -> tuple[Tensor, Tensor]:
        out = gqc.spmm(g, "mul", u.to(dtype), e.to(dtype), *last)
        return out, out.float().abs().amax()

    assert_like_single_ops(g, op, dtype)


@pytest.mark.parametrize("shape", [(7,), (64,)])
def test_packed_sums(backend: str, shape: tuple[int, ...]) -> None:
    g = graph("hub")
    packed, scale = gqc.quantize_int4(features(g, "u", shape), None, None, 0, 4, False)
    operands = (g, "copy_lhs", packed, scale, list(shape), None)
    assert_like_single_ops(g, lambda *last: gqc.qspmm_int4(*operands, *last), torch.bfloat16)


def test_a_sum_beyond_float16_is_inf_and_so_is_its_absmax(backend: str) -> None:
    g = graph("hub")
    u = torch.full((30, 8), 127, dtype=torch.int8)
    out, absmax = gqc.qspmm(g, "copy_lhs", u, torch.ones(()), None, None, torch.float16)
    assert out.isinf().any()
    assert absmax == float("inf")


@pytest.mark.parametrize("divide", [False, True])
@pytest.mark.parametrize("op", ["copy_lhs", "copy_rhs", "add", "sub", "mul", "div"])
def test_gradients(op: str, divide: bool) -> None:
    g = graph("parallel")
    x = [features(g, "u", (2, 3)), features(g, "e", (2, 1)), torch.rand(3) + 0.5]
    single, double = ([t.to(dtype).requires_grad_() for t in x] for dtype in (torch.float32, torch.float64))
    got = gqc.spmm(g, op, *single, divide)
    want = spmm_reference(g, op, *double, divide)
    assert_near(got, want)
    grad = torch.randn_like(got)
    unused = {"copy_lhs": 1, "copy_rhs": 0}.get(op)
    single, double = ([t for i, t in enumerate(given) if i != unused] for given in (single, double))
    for a, b in zip(
        torch.autograd.grad(got, single, grad), torch.autograd.grad(want, double, grad.double()), strict=True
    ):
        assert a.dtype == torch.float32
        assert_near(a, b)


def test_gradients_in_half_precision_are_of_its_dtype() -> None:
    g = graph("random")
    u, rows = features(g, "u", (5,), torch.bfloat16).requires_grad_(), (torch.rand(40) + 0.5).requires_grad_()
    gqc.spmm(g, "copy_lhs", u, None, rows).float().sum().backward()
    assert u.grad.dtype == torch.bfloat16
    assert rows.grad.dtype == torch.float32


def test_ops_are_sound() -> None:
    g = graph("bipartite")
    (u, scale), rows = quantized(g, "u", (4, 6)), torch.rand(11)
    assert_sound(gqc.qspmm.default, g, "copy_lhs", u, scale, None, None, torch.bfloat16, rows, True)
    given = features(g, "u", (4, 6)).requires_grad_(), None, rows.requires_grad_(), True
    assert_sound(gqc.spmm.default, g, "copy_lhs", *given)


def test_refuses_other_factors() -> None:
    g = graph("random")
    u, scale = quantized(g, "u", (4,))
    for rows, message in [
        (torch.ones(39), "must have 40 rows"),
        (torch.ones(40, 1), r"shape \[40, 1\] and torch.float32: give one float32 number a row"),
        (torch.ones(40, dtype=torch.float64), r"shape \[40\] and torch.float64"),
    ]:
        with pytest.raises(KernelError, match=message):
            gqc.qspmm(g, "copy_lhs", u, scale, None, None, torch.float32, rows)
        with pytest.raises(KernelError, match=message):
            gqc.spmm(g, "copy_lhs", u.float(), None, rows)
    with pytest.raises(KernelError, match="has no gradient"):
        gqc.qspmm(g, "copy_lhs", u, scale, None, None, torch.float32, torch.ones(40, requires_grad=True))
