"""The quantized matrix product against exact integer arithmetic, on every instruction set."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import native, ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import gemm as reference
from tests.runtime.backends import CUDA, on_backend

GAINING_ISAS = ("avxvnni", "amx")
gqc = torch.ops.gqc
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FORMS = [(False, False), (False, True), (True, False), (True, True)]
UNIT = torch.tensor(1.0)


def int8(*shape: int) -> Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8)


def operands(m: int, n: int, k: int, trans_a: bool, trans_b: bool) -> tuple[Tensor, Tensor]:
    return int8(*((k, m) if trans_a else (m, k))), int8(*((n, k) if trans_b else (k, n)))


def emulated_rows(m: int, trans_a: bool) -> int:
    """Fewer, for the form that is slowest in the emulator, which has a tile of 128 for each block of threads."""
    return 128 + m % 128 if trans_a and m > 256 else m


def assert_equals_reference(*arguments: object) -> None:
    out, absmax = gqc.qgemm(*arguments)
    want, want_absmax = reference.qgemm(*arguments)
    assert out.dtype == want.dtype
    assert torch.equal(out, want)
    assert torch.equal(absmax, want_absmax)


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(0, 70),
    n=st.integers(0, 140),
    k=st.integers(0, 300),
    form=st.sampled_from(FORMS),
    has_bias=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    backend=st.sampled_from((*native.isas(), CUDA)),
)
def test_equals_reference(
    m: int, n: int, k: int, form: tuple[bool, bool], has_bias: bool, dtype: torch.dtype, backend: str
) -> None:
    a, b = operands(m, n, k, *form)
    bias = torch.randn(n, dtype=dtype) if has_bias else None
    with on_backend(backend):
        assert_equals_reference(a, torch.rand(()), b, torch.rand(()), *form, bias, dtype)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("m", "n", "k"), [(5000, 64, 33), (33, 65, 5000), (50, 300, 1433), (7, 3, 140_000)])
def test_equals_reference_where_threads_share_the_work(
    backend: str, threads: int, form: tuple[bool, bool], m: int, n: int, k: int
) -> None:
    if backend == CUDA:
        if k == 140_000 and form[1]:
            pytest.skip("the emulator is slow: test_the_longest_contractions_stay_exact has this form too")
        m = emulated_rows(m, form[0])
    a, b = operands(m, n, k, *form)
    assert_equals_reference(a, torch.rand(()), b, torch.rand(()), *form, None, torch.float32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1100, 20, 80), (580, 136, 80), (129, 300, 48), (65, 129, 16), (64, 8, 400), (127, 72, 127)]
)
def test_equals_reference_at_sizes_around_tiles(backend: str, form: tuple[bool, bool], m: int, n: int, k: int) -> None:
    m = emulated_rows(m, form[0]) if backend == CUDA else m
    a, b = operands(m, n, k, *form)
    for dtype in DTYPES:
        assert_equals_reference(a, torch.rand(()), b, torch.rand(()), *form, torch.randn(n), dtype)


@pytest.mark.parametrize(("m", "n", "k"), [(144, 272, 77), (32, 16, 5001), (128, 128, 64), (16, 16, 1)])
def test_gradients_of_weights_equal_reference(backend: str, m: int, n: int, k: int) -> None:
    """Sizes of which whole vectors are read, with one part of the contracted index and with several."""
    a, b = operands(m, n, k, True, False)
    assert_equals_reference(a, torch.rand(()), b, torch.rand(()), True, False, torch.randn(n), torch.float32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("m", "n", "k"), [(140, 35, 66), (31, 130, 77), (48, 64, 128)])
def test_operands_may_start_anywhere(backend: str, form: tuple[bool, bool], m: int, n: int, k: int) -> None:
    """Also at the last bytes of their memory, behind which nothing may be read."""
    a, b = operands(m, n, k, *form)
    for offset in (1, 2, 7):
        x, y = (torch.cat([int8(offset), p.view(-1)])[offset:].view(p.shape) for p in (a, b))
        assert_equals_reference(x, torch.rand(()), y, torch.rand(()), *form, None, torch.float32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("k", [131_072, 131_073, 600_001])
def test_the_longest_contractions_stay_exact(
    backend: str, threads: int, form: tuple[bool, bool], sign: int, k: int
) -> None:
    """Products of 127 * 127 overflow int32 after 133,144 of them."""
    if backend == CUDA:  # slow: each length with one sign
        if (sign < 0) != (k == 131_073):
            pytest.skip("the emulator is slow: this length is there with the other sign")
        k = min(k, 140_000)
    a, b = (torch.full_like(x, 127) for x in operands(2, 3, k, *form))
    out, _ = gqc.qgemm(a, UNIT, b * sign, UNIT, *form, None, torch.float32)
    assert torch.equal(out, torch.full((2, 3), float(sign * 127 * 127 * k)))


def test_ten_million_nodes_are_contracted_exactly() -> None:
    k = 10_000_000
    a = torch.ones(k, 1, dtype=torch.int8)
    a[::2] = 127
    out, _ = gqc.qgemm(a, UNIT, a, UNIT, True, False, None, torch.float32)
    assert out.item() == float(torch.tensor(k // 2 * (127 * 127 + 1)).float())


@pytest.mark.parametrize("form", FORMS)
def test_zero_rows_and_columns_give_zeros(backend: str, form: tuple[bool, bool]) -> None:
    """Also beside the padding of packed panels."""
    a, b = operands(13, 17, 9, *form)
    (a[:, 6] if form[0] else a[6]).zero_()
    (b[11] if form[1] else b[:, 11]).zero_()
    out, _ = gqc.qgemm(a, UNIT, b, UNIT, *form, None, torch.float32)
    assert out[6].count_nonzero() == 0
    assert out[:, 11].count_nonzero() == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_scale_of_nan_makes_every_result_nan(backend: str, form: tuple[bool, bool], dtype: torch.dtype) -> None:
    a, b = operands(9, 20, 12, *form)
    out, absmax = gqc.qgemm(a.zero_(), torch.tensor(math.nan), b, UNIT, *form, torch.ones(20), dtype)
    assert out.isnan().all()
    assert absmax.isnan()


@pytest.mark.parametrize("dtype", DTYPES)
def test_absmax_is_that_of_the_rounded_output(backend: str, dtype: torch.dtype) -> None:
    a, b = int8(300, 40), int8(40, 70)
    bias = torch.randn(70)
    bias[69] = math.inf
    for shift in (None, torch.randn(70), bias):
        out, absmax = gqc.qgemm(a, torch.rand(()), b, torch.rand(()), False, False, shift, dtype)
        assert absmax == gqc.absmax(out)


def test_views_are_read_as_they_stand(backend: str) -> None:
    a, b = int8(20, 30), int8(30, 10)
    want = gqc.qgemm(a, UNIT, b, UNIT, False, False, None, torch.float32)[0]
    column_major = (a.t().contiguous().t(), b.t().contiguous().t())
    strided = (a.repeat_interleave(2, 1)[:, ::2], b.repeat_interleave(2, 0)[::2])
    for left, right in (column_major, strided):
        assert torch.equal(gqc.qgemm(left, UNIT, right, UNIT, False, False, None, torch.float32)[0], want)
        assert torch.equal(gqc.qgemm(left.t(), UNIT, right.t(), UNIT, True, True, None, torch.float32)[0], want)


def test_refusals_say_what_is_wrong() -> None:
    a, b = int8(4, 5), int8(6, 3)
    with pytest.raises(KernelError, match=r"a \(4, 5\).*b \(6, 3\).*do not fit"):
        gqc.qgemm(a, UNIT, b, UNIT, False, False, None, torch.float32)
    with pytest.raises(KernelError, match=r"bias \(4,\) do not fit"):
        gqc.qgemm(a, UNIT, b[:5], UNIT, False, False, torch.ones(4), torch.float32)
    with pytest.raises(KernelError, match=r"needs int8 matrices and got torch\.float32"):
        gqc.qgemm(a.float(), UNIT, b[:5], UNIT, False, False, None, torch.float32)
    with pytest.raises(KernelError, match=r"qgemm has no gradient"):
        gqc.qgemm(a, UNIT, b[:5], UNIT, False, False, torch.ones(3, requires_grad=True), torch.float32)


@pytest.mark.parametrize("form", FORMS)
def test_opcheck(form: tuple[bool, bool]) -> None:
    a, b = operands(5, 6, 7, *form)
    for bias, dtype in ((None, torch.float32), (torch.randn(6), torch.bfloat16)):
        torch.library.opcheck(gqc.qgemm.default, (a, UNIT, b, UNIT, *form, bias, dtype))
