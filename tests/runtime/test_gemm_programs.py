"""GEMMs whose result only a pointwise program reads, against the product and the program one after the other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import native, ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.kernels import DTYPES

GAINING_ISAS = ("avxvnni", "amx")
gqc = torch.ops.gqc
SEED = torch.tensor([5, 7])
NAN = float("nan")
FLOATS = (
    "v0 = mul(x0, x1); v1 = add(v0, x2); v2 = relu(v1); v3 = le(v1, 0.0); v4 = keep(0.4, 9); v5 = drop(v2, v4, 0.4); "
    "return float32(v5), bits(v3), bits(v4), absmax(v5), bfloat16(v1), bool(v3), float16(v0), float32(sum(v1, 0))"
)
"""What follows a linear layer: rows scaled, bias, ReLU and dropout with their masks, and a bias's gradient."""
INT8 = (
    "v0 = mul(x0, x1); v1 = add(v0, x2); v2 = relu(v1); v3 = le(v1, 0.0); "
    "return int8(v2, 3, 8, 1), bits(v3), absmax(v1), float32(v1), int8(v0, 4, 5, 0), float32(sum(v2, 0))"
)
PAIR = "v0 = add(x1, x0); v1 = mul(v0, x2); v2 = add(v1, x3); return float32(v2), bfloat16(x1), float32(sum(v2, 0))"
PAIR_INT8 = (
    "v0 = mul(x1, x2); v1 = add(v0, x0); v2 = relu(v1); v3 = le(v2, 0.0); "
    "return int8(v2, 3, 8, 1), bits(v3), float32(x1), int8(x1, 6, 8, 0), float32(sum(v1, 0))"
)
"""Of two products, x0 and x1."""
SHAPES = [(1, 1, 1), (45, 40, 100), (131, 47, 130), (70, 130, 64), (33, 16, 602), (600, 5, 3), (40, 8, 0)]


def int8(*shape: int) -> Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8)


def second_of(m: int, n: int, k: int, trans_b: bool, bias: Tensor | None) -> tuple[Any, ...]:
    """A second product, as the ops with a program take it behind the size."""
    return int8(m, k), torch.rand(()), int8(n, k) if trans_b else int8(k, n), torch.rand(()), trans_b, bias


def product_of(second: tuple[Any, ...], dtype: torch.dtype) -> Tensor:
    *operands, trans_b, bias = second
    return gqc.qgemm(*operands, False, trans_b, bias, dtype)[0]


def inputs_of(m: int, n: int) -> list[Tensor]:
    return [torch.rand(m, 1), torch.randn(n)]


def composed(
    product: Tensor, inputs: Sequence[Tensor], program: str, size: Sequence[int] | None = None
) -> list[Tensor]:
    x = product if size is None else product.reshape(size)
    return gqc.pointwise([x, *inputs], SEED, program, x.shape)


def assert_same(
    got: Sequence[Tensor], product: Tensor, inputs: Sequence[Tensor], program: str, size: Sequence[int] | None = None
) -> None:
    """Bit for bit the program of the product, but for a sum over rows, which blocks add up in another order."""
    want = composed(product, inputs, program, size)
    assert len(got) == len(want)
    tolerances: list[Tensor | None] = [None] * len(want)
    summed = re.search(r"sum\((\w+), 0\)", program)
    if summed:  # the last result
        steps = "".join(program.partition("return ")[:2])
        (summands,) = composed(product, inputs, f"{steps}float32({summed[1]})", size)
        tolerances[-1] = 1e-5 * summands.abs().sum(0)
    for x, y, tolerance in zip(got, want, tolerances, strict=True):
        near = (x == y) | (x.isnan() & y.isnan())  # float16 products overflow
        if tolerance is not None:
            near |= (x - y).abs() <= tolerance
        assert near.all()


@pytest.mark.parametrize("program", [FLOATS, INT8])
def test_product_and_program(isa: str, program: str) -> None:
    for i, (m, n, k) in enumerate(SHAPES):
        trans_b, dtype = bool(i % 2), DTYPES[i % 3]
        a, b = int8(m, k), int8(n, k) if trans_b else int8(k, n)
        operands = (a, torch.rand(()), b, torch.rand(()))
        product, _ = gqc.qgemm(*operands, False, trans_b, None, dtype)
        arguments = inputs_of(m, n)
        got = gqc.qgemm_pointwise(*operands, trans_b, dtype, arguments, SEED, program)
        assert_same(got, product, arguments, program)


@pytest.mark.parametrize("program", [FLOATS, INT8])
def test_product_of_what_it_quantizes_and_program(isa: str, program: str) -> None:
    for i, (m, n, k) in enumerate(SHAPES):
        trans_b, dtype, bits, stochastic = bool(i % 2), DTYPES[i % 3], 8 - i % 4, i % 3 != 1
        x, b = torch.randn(m, k).to(DTYPES[i // 2 % 3]), int8(n, k) if trans_b else int8(k, n)
        absmax = torch.tensor(6.0) if i % 2 else None
        quantizer, scale, inputs = (x, absmax, SEED, 11, bits, stochastic), torch.rand(()), inputs_of(m, n)
        q, q_scale, *got = gqc.quantize_qgemm_pointwise(*quantizer, b, scale, trans_b, dtype, inputs, program)
        want = gqc.quantize(*quantizer)
        assert torch.equal(q, want[0])
        assert torch.equal(q_scale, want[1])
        product, _ = gqc.qgemm(q, q_scale, b, scale, False, trans_b, None, dtype)
        assert_same(got, product, inputs, program)


@pytest.mark.parametrize("program", [PAIR, PAIR_INT8])
def test_two_products_and_program(isa: str, program: str) -> None:
    contracted = (1, 130, 64, 7, 40, 0, 33)
    for i, ((m, n, k), k2) in enumerate(zip(SHAPES, contracted, strict=True)):
        trans_b, dtype, inputs = bool(i % 2), DTYPES[i % 3], inputs_of(m, n)
        second = second_of(m, n, k2, i % 3 == 1, torch.randn(n).to(DTYPES[i // 2 % 3]) if i % 3 else None)
        weight = (int8(n, k) if trans_b else int8(k, n), torch.rand(()), trans_b, dtype)
        a, scale, x = int8(m, k), torch.rand(()), torch.randn(m, k)
        product, _ = gqc.qgemm(a, scale, *weight[:2], False, trans_b, None, dtype)
        got = gqc.qgemm_pointwise(a, scale, *weight, inputs, SEED, program, None, *second)
        beside = [product_of(second, dtype), *inputs]
        assert_same(got, product, beside, program)
        q, scale, *got = gqc.quantize_qgemm_pointwise(
            x, None, SEED, 11, 8, True, *weight, inputs, program, None, *second
        )
        product, _ = gqc.qgemm(q, scale, *weight[:2], False, trans_b, None, dtype)
        assert_same(got, product, beside, program)


def test_program_that_looks_at_heads(isa: str) -> None:
    m, heads, width, k = 75, 4, 12, 40
    operands = (int8(m, k), torch.rand(()), int8(k, heads * width), torch.rand(()))
    product, _ = gqc.qgemm(*operands, False, False, None, torch.bfloat16)
    program = "v0 = mul(x0, x1); return float32(sum(v0, -1)), int8(x0, 2, 8, 1), float32(sum(v0, 0))"
    attention, size = [torch.randn(heads, width)], [m, heads, width]
    got = gqc.qgemm_pointwise(*operands, False, torch.bfloat16, attention, SEED, program, size)
    assert_same(got, product, attention, program, size)


def test_rows_of_a_program_may_lie_across_those_of_the_product() -> None:
    operands = (int8(8, 5), torch.rand(()), int8(5, 6), torch.rand(()))
    product, _ = gqc.qgemm(*operands, False, False, None, torch.float32)
    program, size, factors = "v0 = mul(x0, x1); return float32(v0)", [12, 4], [torch.rand(4)]
    got = gqc.qgemm_pointwise(*operands, False, torch.float32, factors, None, program, size)
    assert_same(got, product, factors, program, size)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 3), (5, 0, 3), (0, 0, 0), (3, 4, 0)])
def test_nothing_to_multiply(m: int, n: int, k: int) -> None:
    operands, inputs = (int8(m, k), torch.rand(()), int8(k, n), torch.rand(())), inputs_of(m, n)
    product, _ = gqc.qgemm(*operands, False, False, None, torch.float32)
    got = gqc.qgemm_pointwise(*operands, False, torch.float32, inputs, SEED, INT8)
    assert_same(got, product, inputs, INT8)
    x = torch.randn(m, k)
    q, _, *got = gqc.quantize_qgemm_pointwise(
        x, None, SEED, 1, 8, True, operands[2], operands[3], False, torch.float32, inputs, INT8
    )
    assert q.shape == x.shape
    assert [r.shape for r in got] == [r.shape for r in composed(product, inputs, INT8)]


def test_what_is_not_finite_stays_so(isa: str) -> None:
    program = "v0 = mul(x0, 2.0); return float32(v0), absmax(v0), int8(v0, 1, 8, 1), float32(sum(v0, 0))"
    b, scale = int8(30, 20), torch.rand(())
    out, absmax, q, q_scale, total = gqc.qgemm_pointwise(
        int8(40, 30), torch.tensor(NAN), b, scale, False, torch.bfloat16, [], SEED, program
    )
    assert all(x.isnan().all() for x in (out, absmax, q_scale, total))
    assert not q.any()
    x = torch.randn(40, 30)
    x[7, 3] = float("inf")
    q, q_scale, out, *_ = gqc.quantize_qgemm_pointwise(
        x, None, SEED, 1, 8, True, b, scale, False, torch.float32, [], program
    )
    assert not q.any()
    assert q_scale.isnan()
    assert out.isnan().all()


def test_any_layout_of_the_operands() -> None:
    m, n, k = 20, 24, 28
    inputs = inputs_of(m, n)
    a, b = int8(k, m).t(), int8(2 * k, n)[::2]
    operands = (a, torch.rand(()), b, torch.rand(()))
    product, _ = gqc.qgemm(*operands, False, False, None, torch.float32)
    got = gqc.qgemm_pointwise(*operands, False, torch.float32, inputs, SEED, INT8)
    assert_same(got, product, inputs, INT8)


def test_results_do_not_depend_on_threads_or_instruction_set() -> None:
    m, n, k = 5000, 24, 40
    inputs, x = inputs_of(m, n), torch.randn(m, k)
    weight = (int8(k, n), torch.rand(()))
    results = []
    before = torch.get_num_threads()
    for isa in native.isas():
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with native.use_isa(isa):
                arguments: Any = (x, None, SEED, 1, 8, True, *weight, False, torch.float32, inputs)
                results.append([r for p in (FLOATS, INT8) for r in gqc.quantize_qgemm_pointwise(*arguments, p)])
    torch.set_num_threads(before)
    for i, (first, second) in enumerate(zip(results[::2], results[1::2], strict=True)):
        assert all(map(torch.equal, first, second)), native.isas()[i]  # also what is added up
    for other in results[2::2]:
        sums = [i for i, r in enumerate(results[0]) if r.shape == (n,)]
        assert all(torch.equal(x, y) for i, (x, y) in enumerate(zip(results[0], other, strict=True)) if i not in sums)


def test_the_longest_contraction() -> None:
    """Sums of more products than 32 bits hold."""
    m, n, k = 9, 3, 140_000
    operands, inputs = (int8(m, k), torch.rand(()), int8(n, k), torch.rand(())), inputs_of(m, n)
    product, _ = gqc.qgemm(*operands, False, True, None, torch.float32)
    got = gqc.qgemm_pointwise(*operands, True, torch.float32, inputs, SEED, INT8)
    assert_same(got, product, inputs, INT8)
    x = torch.randn(m, k)
    q, scale, *got = gqc.quantize_qgemm_pointwise(
        x, None, SEED, 1, 8, True, *operands[2:], True, torch.float32, inputs, INT8
    )
    product, _ = gqc.qgemm(q, scale, *operands[2:], False, True, None, torch.float32)
    assert_same(got, product, inputs, INT8)
    short, long = second_of(m, n, 5, True, None), (*operands, True, None)
    for first, second in ((operands, short), (short[:4], long)):
        got = gqc.qgemm_pointwise(*first, True, torch.float32, inputs, SEED, PAIR, None, *second)
        product, _ = gqc.qgemm(*first, False, True, None, torch.float32)
        assert_same(got, product, [product_of(second, torch.float32), *inputs], PAIR)


def test_what_does_not_fit_is_named() -> None:
    operands = (int8(4, 5), torch.rand(()), int8(5, 6), torch.rand(()))
    with pytest.raises(KernelError, match="do not fit together"):
        gqc.qgemm_pointwise(*operands, True, torch.float32, [], None, "return float32(x0)")
    with pytest.raises(KernelError, match="does not broadcast"):
        gqc.qgemm_pointwise(
            *operands, False, torch.float32, [torch.rand(7)], None, "v0 = mul(x0, x1); return float32(v0)"
        )
    for second, wrong in (
        ((int8(4, 5),), "a2 comes without a2_scale, b2 or b2_scale"),
        (second_of(4, 7, 3, False, None), r"the second product is \(4, 7\) and the first \(4, 6\)"),
        (second_of(4, 6, 3, False, torch.rand(5)), "do not fit together"),
    ):
        with pytest.raises(KernelError, match=wrong):
            gqc.qgemm_pointwise(*operands, False, torch.float32, [], None, "return float32(x1)", None, *second)
    with pytest.raises(KernelError, match="needs a seed"):
        gqc.qgemm_pointwise(*operands, False, torch.float32, [], None, "return int8(x0, 1, 8, 1)")


@pytest.mark.parametrize("program", [FLOATS, INT8])
def test_opcheck(program: str) -> None:
    m, n, k = 10, 6, 8
    x, b, scale, inputs = torch.randn(m, k), int8(k, n), torch.rand(()), inputs_of(m, n)
    torch.library.opcheck(
        gqc.qgemm_pointwise.default, (int8(m, k), scale, b, scale, False, torch.float32, inputs, SEED, program)
    )
    torch.library.opcheck(
        gqc.quantize_qgemm_pointwise.default,
        (x, None, SEED, 1, 8, True, b, scale, False, torch.float32, inputs, program),
    )


def test_opcheck_of_two_products() -> None:
    m, n, k = 10, 6, 8
    rest = (int8(k, n), torch.rand(()), False, torch.float32, inputs_of(m, n))
    second = second_of(m, n, 5, True, torch.rand(n))
    torch.library.opcheck(
        gqc.qgemm_pointwise.default, (int8(m, k), torch.rand(()), *rest, SEED, PAIR_INT8, None, *second)
    )
    torch.library.opcheck(
        gqc.quantize_qgemm_pointwise.default, (torch.randn(m, k), None, SEED, 1, 8, True, *rest, PAIR, None, *second)
    )
