"""Matrices of float24: the format, what programs write and what sums and products read, against float32."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import float24, ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import float24 as reference
from tests.runtime.backends import CUDA
from tests.runtime.graph_cases import GRAPHS, features, graph, hub_graph, large_graph

gqc = torch.ops.gqc
GAINING_ISAS = ("amx",)
PRECISIONS = ("fp32", "bf16x3")
SEED = torch.tensor([5, 7])
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 3.4e38, -3.4e38, 1e-40, -1e-45]
WIDTHS = [1, 3, 8, 16, 21, 40, 47, 64, 100, 128, 192, 500, 512]


def of_bits(*bits: int) -> Tensor:
    return torch.tensor([b - (b >> 31 << 32) for b in bits], dtype=torch.int32).view(torch.float32)


def packed(x: Tensor) -> Tensor:
    """A matrix as kernels write it, and as they read it without a copy."""
    rows = float24.as_rows(reference.pack(x))
    assert float24.as_rows(rows) is rows
    return rows


def matrix(rows: int, width: int) -> Tensor:
    x = torch.randn(rows, width)
    if x.numel():
        x.view(-1)[torch.randint(0, x.numel(), (len(SPECIAL),))] = torch.tensor(SPECIAL)
    return x


def assert_same_values(got: Tensor, want: Tensor) -> None:
    """Bit for bit, whatever the bits of a NaN."""
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


# ---- the format


def test_error_is_at_most_that_of_16_bits() -> None:
    x = torch.randn(4000, 9) * 2.0 ** torch.randint(-60, 60, (4000, 9))
    error = (reference.unpack(reference.pack(x)).double() - x.double()).abs()
    assert bool((error <= reference.ERROR * x.abs().double()).all())
    assert float((error / x.abs()).max()) > 0.9 * reference.ERROR


def test_rounds_to_nearest_and_ties_away_from_zero() -> None:
    x = of_bits(0x3F800080, 0x3F80007F, 0xBF800080, 0x3FFFFFFF, 0x3F801234)
    want = of_bits(0x3F800100, 0x3F800000, 0xBF800100, 0x40000000, 0x3F801200)
    assert torch.equal(reference.unpack(reference.pack(x)), want)


def test_special_values() -> None:
    x = torch.tensor(SPECIAL)
    back = reference.unpack(reference.pack(x))
    assert back[:4].tolist() == SPECIAL[:4]
    assert bool(torch.signbit(back[1]))
    assert bool(back[4].isnan())
    assert reference.unpack(reference.pack(torch.tensor([3.4028235e38]))).item() == math.inf
    assert bool(reference.unpack(reference.pack(of_bits(0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF))).isnan().all())


def test_what_fits_stays() -> None:
    once = reference.unpack(reference.pack(matrix(50, 7)))
    assert_same_values(reference.unpack(reference.pack(once)), once)


def test_rows_start_at_lines() -> None:
    for width in WIDTHS:
        rows = packed(torch.randn(5, width))
        assert rows.shape == (5, 3 * width)
        assert rows.data_ptr() % float24.LINE == 0
        assert rows.stride() == (float24.bytes_of_row(width), 1)
        assert float24.shape_of(rows) == (5, width)


# ---- what programs write


def test_programs_write_it(isa: str) -> None:
    steps = "v0 = mul(x0, x1); v1 = le(v0, 0.0); return "
    text = f"{steps}float24(v0), bits(v1), float32(sum(v0, 0)), float24(x0), absmax(x0)"
    for width in WIDTHS:
        for rows in (1, 5, 17, 700):
            x, factor = torch.randn(rows, width), torch.rand(rows, 1)
            first, bits, sums, same, largest = gqc.pointwise([x, factor], None, text)
            want, want_bits, want_sums = gqc.pointwise(
                [x, factor], None, f"{steps}float32(v0), bits(v1), float32(sum(v0, 0))"
            )
            assert torch.equal(first, reference.pack(want)), (width, rows)
            assert torch.equal(same, reference.pack(x)), (width, rows)
            assert torch.equal(bits, want_bits)
            assert torch.equal(sums, want_sums)
            assert largest == x.abs().max()


@pytest.mark.parametrize("width", [40, 128, 192])
def test_writes_past_the_caches(isa: str, width: int) -> None:
    x = matrix((17 << 20) // (3 * width), width)
    (got,) = gqc.pointwise([x], None, "v0 = mul(x0, 0.7); return float24(v0)")
    assert torch.equal(reference.unpack(got).isnan(), x.isnan())
    assert_same_values(reference.unpack(got), reference.unpack(reference.pack(x * torch.tensor(0.7))))


def test_special_values_in_every_place(isa: str) -> None:
    for width in (16, 40, 64, 128):
        for special in (*SPECIAL, of_bits(0x7F800001).item(), of_bits(0x7FFFFFFF).item()):
            x = torch.randn(4, width)
            x.view(-1)[torch.arange(0, 4 * width, 3)] = special
            (got,) = gqc.pointwise([x], None, "v0 = neg(x0); return float24(v0)")
            assert_same_values(reference.unpack(got), reference.unpack(reference.pack(-x)))


@pytest.mark.parametrize("width", [16, 40, 64])
def test_programs_of_products_write_it(isa: str, width: int) -> None:
    g = large_graph()
    x, u = torch.randn(900, 24), torch.randn(900, width)
    w, factor, of_nodes = torch.randn(24, width), torch.rand(900, 1), torch.rand(1000, 1)
    (q, scale), (v, v_scale), (qu, u_scale) = (gqc.quantize(y, None, None, 0, 8, False) for y in (x, w, u))
    text = "v0 = mul(x0, x1); v1 = relu(v0); return {}(v1)"

    def results(form: str) -> list[Tensor]:
        program = text.format(form)
        int8 = (v, v_scale, False, torch.float32, [factor])
        return [
            gqc.mm_pointwise(x, w, False, [factor], None, program)[0],
            gqc.mm_pointwise(x, w, False, [factor], None, program, None, None, None, False, "bf16x3")[0],
            gqc.qgemm_pointwise(q, scale, *int8, None, program)[0],
            gqc.quantize_qgemm_pointwise(x, None, SEED, 3, 8, True, *int8, program)[2],
            gqc.spmm_pointwise(g, "copy_lhs", u, None, [of_nodes], None, program)[0],
            gqc.qspmm_pointwise(g, "copy_lhs", qu, u_scale, None, None, torch.float32, [of_nodes], None, program)[0],
        ]

    for got, want in zip(results("float24"), results("float32"), strict=True):
        assert torch.equal(got, reference.pack(want))


def test_only_matrices_are_written() -> None:
    for shape in ((4, 513), (3, 4, 5), (6,)):
        with pytest.raises(KernelError, match=r"is no matrix of at most 512 columns, as float24 is"):
            gqc.pointwise([torch.randn(shape)], None, "v0 = neg(x0); return float24(v0)")
    with pytest.raises(KernelError, match="only floats are summed"):
        gqc.pointwise([torch.randn(3, 4)], None, "v0 = neg(x0); return float24(sum(v0, 0))")
    (empty,) = gqc.pointwise([torch.randn(0, 40)], None, "v0 = neg(x0); return float24(v0)")
    assert (empty.shape, empty.dtype) == ((0, 120), torch.uint8)


# ---- what sums read


@pytest.mark.parametrize("kind", [*GRAPHS, "hub", "large"])
def test_sums_copy_its_rows(backend: str, kind: str) -> None:
    g = {"hub": hub_graph, "large": large_graph}.get(kind, lambda: graph(kind))()
    factors = torch.rand(len(g[0]) - 1)
    for width in (1, 3, 5, 16, 40, 47, 130) if backend != CUDA else (3, 40):
        u = features(g, "u", (width,))
        rows = packed(u)
        for more in ((), (factors, False), (factors, True)):
            got, want = (gqc.spmm(g, "copy_lhs", x, None, *more) for x in (rows, reference.unpack(rows)))
            torch.testing.assert_close(got, want, rtol=0, atol=0)
            assert got.dtype is torch.float32


def test_programs_of_sums_read_it(backend: str) -> None:
    g = large_graph()
    bias, rows = torch.randn(40), packed(features(g, "u", (40,)))
    program = "v0 = add(x0, x1); return float32(v0), float32(sum(v0, 0))"
    got = gqc.spmm_pointwise(g, "copy_lhs", rows, None, [bias], None, program)
    want = gqc.spmm_pointwise(g, "copy_lhs", reference.unpack(rows), None, [bias], None, program)
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_other_sums_refuse_it() -> None:
    g = graph("random")
    rows, e = packed(features(g, "u", (4,))), features(g, "e", (4,))
    with pytest.raises(KernelError, match=r"features of torch\.uint8"):
        gqc.spmm(g, "mul", rows, e)


# ---- what products read


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("special", [None, math.nan, math.inf])
def test_products_read_it(isa: str, precision: str, special: float | None) -> None:
    for m, n, k in [(1, 1, 1), (33, 40, 128), (700, 40, 100), (257, 7, 47), (1500, 130, 24)]:
        a, c, w, other = torch.randn(m, k), torch.randn(m, n), torch.randn(k, n), torch.rand(m)
        if special is not None:
            a[m // 2, k // 3] = special
        rows = packed(a)
        wide = reference.unpack(rows)
        for x, *how in [
            (w, False, False, None),
            (w.t().contiguous(), False, True, None),
            (c, True, False, None),
            (c, True, False, other),
        ]:
            got, want = (gqc.mm(of, x, *how, precision) for of in (rows, wide))
            assert_same_values(got, want)
        for how in ((True, False, None), (True, False, other), (False, True, None)):
            left = c if how[0] else torch.randn(n, k)
            got, want = (gqc.mm(left, of, *how, precision) for of in (rows, wide))
            assert_same_values(got, want)
        got, want = (gqc.mm(of, of, True, False, None, precision) for of in (rows, wide))
        assert_same_values(got, want)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_programs_of_products_read_it(isa: str, precision: str) -> None:
    a, a2, w, w2 = torch.randn(900, 48), torch.randn(900, 24), torch.randn(48, 40), torch.randn(24, 40)
    program = "v0 = add(x0, x1); return float32(v0)"
    narrow, narrow2 = packed(a), packed(a2)
    wide, wide2 = reference.unpack(narrow), reference.unpack(narrow2)
    (want,) = gqc.mm_pointwise(wide, w, False, [], None, program, None, wide2, w2, False, precision)
    for left, right in ((narrow, wide2), (wide, narrow2), (narrow, narrow2)):
        (got,) = gqc.mm_pointwise(left, w, False, [], None, program, None, right, w2, False, precision)
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_rows_that_lie_otherwise_are_moved() -> None:
    g, x, w = graph("random"), torch.randn(40, 6), torch.randn(6, 5)
    dense = reference.pack(x)
    assert torch.equal(gqc.mm(dense, w, False, False), gqc.mm(packed(x), w, False, False))
    assert torch.equal(gqc.spmm(g, "copy_lhs", dense, None), gqc.spmm(g, "copy_lhs", packed(x), None))


def test_products_refuse_what_does_not_fit() -> None:
    rows = packed(torch.randn(20, 6))
    with pytest.raises(KernelError, match="do not fit together"):
        gqc.mm(rows, torch.randn(18, 5), False, False)
    with pytest.raises(KernelError, match="one floating-point type"):
        gqc.mm(rows, torch.randn(6, 5).double(), False, False)
