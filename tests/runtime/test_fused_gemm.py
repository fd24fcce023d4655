"""Products fused with the steps around them against the chain of single steps, bit for bit, on every back end."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import native, ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.kernels import DTYPES
from gqc.runtime.reference import fused_gemm as reference
from tests.runtime.backends import BACKENDS, CUDA, on_backend

GAINING_ISAS = ("avxvnni", "amx")
gqc = torch.ops.gqc
SEED = torch.tensor([123456789, 7])
FLOAT, BFLOAT = torch.float32, torch.bfloat16

shapes = st.tuples(st.integers(0, 70), st.integers(0, 140), st.integers(0, 300))
epilogues = st.tuples(st.booleans(), st.booleans(), st.booleans())
dtypes = st.sampled_from(DTYPES)
roundings = st.tuples(st.integers(2, 8), st.booleans())
backends = st.sampled_from(BACKENDS)


def int8(*shape: int) -> Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8)


def matrix(rows: int, columns: int, transposed: bool) -> Tensor:
    return int8(columns, rows) if transposed else int8(rows, columns)


def epilogue(m: int, n: int, wanted: tuple[bool, bool, bool]) -> tuple[Tensor | None, Tensor | None, bool]:
    has_bias, scales_rows, relu = wanted
    return torch.randn(n) if has_bias else None, torch.randn(m) if scales_rows else None, relu


def same(name: str, *arguments: Any) -> tuple[Tensor, ...]:
    got, want = getattr(gqc, name)(*arguments), getattr(reference, name)(*arguments)
    got, want = ((x,) if isinstance(x, Tensor) else x for x in (got, want))
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        assert g.shape == w.shape
        assert torch.equal(torch.nan_to_num(g, 1.25), torch.nan_to_num(w, 1.25))
        assert torch.equal(g.isnan(), w.isnan())
    return got


@settings(max_examples=30, deadline=None)
@given(shape=shapes, trans_a=st.booleans(), trans_b=st.booleans(), wanted=epilogues, dtype=dtypes, backend=backends)
@example((1, 1, 2), False, False, (False, False, False), FLOAT, CUDA)  # all of a matrix within a word
@example((3, 1, 1), False, False, (False, False, False), FLOAT, CUDA)
@example((1, 3, 1), True, True, (False, False, False), FLOAT, CUDA)
def test_epilogue(
    shape: tuple[int, int, int],
    trans_a: bool,
    trans_b: bool,
    wanted: tuple[bool, bool, bool],
    dtype: torch.dtype,
    backend: str,
) -> None:
    m, n, k = shape
    a, b = matrix(m, k, trans_a), matrix(k, n, trans_b)
    with on_backend(backend):
        operands = (a, torch.rand(()), b, torch.rand(()), trans_a, trans_b)
        same("qgemm_epilogue", *operands, *epilogue(m, n, wanted), dtype)


@settings(max_examples=30, deadline=None)
@given(
    shape=shapes,
    trans_b=st.booleans(),
    wanted=epilogues,
    dtype=dtypes,
    x_dtype=dtypes,
    has_absmax=st.booleans(),
    rounding=roundings,
    backend=backends,
)
def test_quantize_while_reading(
    shape: tuple[int, int, int],
    trans_b: bool,
    wanted: tuple[bool, bool, bool],
    dtype: torch.dtype,
    x_dtype: torch.dtype,
    has_absmax: bool,
    rounding: tuple[int, bool],
    backend: str,
) -> None:
    m, n, k = shape
    x, b = torch.randn(m, k).to(x_dtype), matrix(k, n, trans_b)
    absmax = torch.tensor(3.5) if has_absmax else None
    with on_backend(backend):
        quantizer = (x, absmax, SEED, 5, *rounding)
        _, _, q, scale, _ = same(
            "quantize_qgemm", *quantizer, b, torch.rand(()), trans_b, *epilogue(m, n, wanted), dtype
        )
        want = gqc.quantize(*quantizer)
        assert torch.equal(q, want[0])
        assert torch.equal(scale, want[1])


@settings(max_examples=30, deadline=None)
@given(
    shape=shapes,
    trans_a=st.booleans(),
    trans_b=st.booleans(),
    wanted=epilogues,
    dtype=dtypes,
    rounding=roundings,
    backend=backends,
)
def test_int8_result(
    shape: tuple[int, int, int],
    trans_a: bool,
    trans_b: bool,
    wanted: tuple[bool, bool, bool],
    dtype: torch.dtype,
    rounding: tuple[int, bool],
    backend: str,
) -> None:
    m, n, k = shape
    a, b = matrix(m, k, trans_a), matrix(k, n, trans_b)
    with on_backend(backend):
        operands = (a, torch.rand(()), b, torch.rand(()), trans_a, trans_b)
        same("qgemm_int8", *operands, *epilogue(m, n, wanted), SEED, 9, *rounding, dtype)


@settings(max_examples=15, deadline=None)
@given(m=st.integers(0, 40), n=st.integers(0, 90), dtype=dtypes, backend=backends)
def test_relu_backward(m: int, n: int, dtype: torch.dtype, backend: str) -> None:
    grad = torch.randn(m, n).to(dtype)
    grad[::3, ::2] = math.nan
    with on_backend(backend):
        same("relu_backward", grad, torch.randint(256, (m, (n + 7) // 8), dtype=torch.uint8))


@pytest.mark.parametrize("shape", [(3001, 64, 128), (777, 130, 33), (2000, 256, 64)])
def test_sizes_that_threads_share(backend: str, threads: int, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    m = m // 5 if backend == CUDA else m  # the emulator is slow
    x, b, scale = torch.randn(m, k), int8(k, n), torch.rand(())
    after = epilogue(m, n, (True, True, True))
    _, _, q, q_scale, _ = same("quantize_qgemm", x, None, SEED, 5, 8, True, b, scale, False, *after, FLOAT)
    same("qgemm_int8", q, q_scale, b, scale, False, False, *after, SEED, 2, 8, True, FLOAT)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_makes_every_result_nan(backend: str, wrong: float) -> None:
    x, b, one = torch.randn(50, 20), int8(20, 30), torch.tensor(1.0)
    x[17, 3] = wrong
    out, absmax, q, scale, _ = same("quantize_qgemm", x, None, SEED, 5, 8, True, b, one, False, None, None, True, FLOAT)
    assert out.isnan().all()
    assert absmax.isnan()
    assert scale.isnan()
    assert q.count_nonzero() == 0
    _, scale, positive = same("qgemm_int8", q, scale, b, one, False, False, None, None, True, None, 0, 8, False, FLOAT)
    assert scale.isnan()
    assert (positive[:, :3] == 255).all()  # a NaN lets its gradient through, as in torch


@pytest.mark.parametrize("value", [0.0, 1e-44, 3.0, -2.0])
def test_constant_tensors(backend: str, value: float) -> None:
    x, one = torch.full((33, 40), value), torch.tensor(1.0)
    _, _, q, scale, _ = same(
        "quantize_qgemm", x, None, None, 5, 8, False, int8(40, 9), one, False, None, None, False, FLOAT
    )
    same("qgemm_int8", q, scale, q, scale, False, True, None, None, True, None, 0, 4, False, BFLOAT)


def test_infinite_bias_and_scale_reach_the_result(backend: str) -> None:
    bias, row_scale = torch.randn(30), torch.randn(50)
    bias[3], bias[4], row_scale[7], row_scale[8] = math.inf, math.nan, -math.inf, math.nan
    operands = (int8(50, 20), torch.rand(()), int8(20, 30), torch.rand(()), False, False)
    for dtype in DTYPES:
        same("qgemm_epilogue", *operands, bias, row_scale, True, dtype)
        same("qgemm_int8", *operands, bias, row_scale, True, SEED, 0, 8, True, dtype)


@pytest.mark.parametrize("k", [131_073, 300_000])
def test_long_contractions(backend: str, k: int) -> None:
    if backend == CUDA and k > 140_000:
        pytest.skip("the emulator is slow")
    x, b, one = torch.randn(2, k), int8(k, 3), torch.tensor(1e-3)
    _, _, q, scale, _ = same("quantize_qgemm", x, None, SEED, 5, 8, True, b, one, False, None, None, True, FLOAT)
    same("qgemm_int8", q, scale, b, one, False, False, None, None, True, SEED, 1, 8, True, FLOAT)


def test_refusals_say_what_is_wrong() -> None:
    a, b, one = int8(4, 5), int8(5, 3), torch.tensor(1.0)
    with pytest.raises(KernelError, match=r"row_scale has shape \(3,\); the product needs \(4,\)"):
        gqc.qgemm_epilogue(a, one, b, one, False, False, None, torch.ones(3), False, FLOAT)
    with pytest.raises(KernelError, match=r"qgemm_int8: bias has shape \(4,\)"):
        gqc.qgemm_int8(a, one, b, one, False, False, torch.ones(4), None, False, SEED, 0, 8, True, FLOAT)
    with pytest.raises(KernelError, match=r"qgemm_int8: bits=9"):
        gqc.qgemm_int8(a, one, b, one, False, False, None, None, False, SEED, 0, 9, True, FLOAT)
    with pytest.raises(KernelError, match="stochastic rounding needs a seed"):
        gqc.quantize_qgemm(torch.ones(4, 5), None, None, 0, 8, True, b, one, False, None, None, False, FLOAT)
    with pytest.raises(KernelError, match=r"needs positive bits \(4, 1\) and got \(4, 2\)"):
        gqc.relu_backward(torch.ones(4, 5), torch.zeros(4, 2, dtype=torch.uint8))
    x = torch.ones(4, 5, requires_grad=True)
    with pytest.raises(KernelError, match="quantize_qgemm has no gradient"):
        gqc.quantize_qgemm(x, None, None, 0, 8, False, b, one, False, None, None, False, FLOAT)


def test_opcheck() -> None:
    a, b, one, rows = int8(5, 7), int8(7, 6), torch.tensor(1.0), torch.ones(5)
    check = partial(torch.library.opcheck, test_utils=("test_schema", "test_faketensor"))
    check(gqc.qgemm_epilogue.default, (a, one, b, one, False, False, torch.ones(6), rows, True, BFLOAT))
    check(gqc.qgemm_int8.default, (a, one, b, one, False, False, None, rows, True, SEED, 1, 8, True, FLOAT))
    x = torch.randn(5, 7)
    check(gqc.quantize_qgemm.default, (x, None, SEED, 1, 8, True, b, one, False, None, None, False, FLOAT))
    check(gqc.relu_backward.default, (torch.randn(5, 9), torch.ones(5, 2, dtype=torch.uint8)))


@pytest.mark.parametrize("name", native.isas()[-2:])
def test_matrices_too_large_for_a_cache(name: str) -> None:
    """What is written past the caches, in rows that are no whole cache lines."""
    m, n = 140_003, 121
    a, b, scale = int8(m, 3), int8(3, n), torch.tensor(0.5)
    x, w = torch.randn(m, n), int8(n, 3)
    want = (a.float() @ b.float()) * 0.25
    with native.use_isa(name):
        out, _, positive = gqc.qgemm_epilogue(a, scale, b, scale, False, False, None, None, True, FLOAT)
        q, q_scale, _ = gqc.qgemm_int8(a, scale, b, scale, False, False, None, None, True, None, 0, 8, False, FLOAT)
        half, _ = gqc.qgemm(a, scale, b, scale, False, False, None, BFLOAT)
        _, _, x_q, x_scale, _ = gqc.quantize_qgemm(
            x, None, None, 0, 8, False, w, scale, False, None, None, False, FLOAT
        )
        assert torch.equal(out, want.relu())
        assert torch.equal(gqc.relu_backward(torch.ones_like(out), positive), (want > 0).float())
        assert torch.equal(half, want.bfloat16())
        for got, quantized in (((q, q_scale), out), ((x_q, x_scale), x)):
            wanted = gqc.quantize(quantized, None, None, 0, 8, False)
            assert all(map(torch.equal, got, wanted))
