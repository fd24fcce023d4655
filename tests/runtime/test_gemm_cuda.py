"""What CUDA's products alone have: kernels for some GPUs and for some sizes, and half-precision floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gqc.runtime import kernels, ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.cuda.target import Kernel
from gqc.runtime.reference import fused_gemm, int4
from tests.emu import emulator

gqc = torch.ops.gqc
FLOAT, BFLOAT, HALF = torch.float32, torch.bfloat16, torch.float16
CODES = {FLOAT: 0, BFLOAT: 1, HALF: 2}
SEED = torch.tensor([987654321, 3])
WITH_S4, WITHOUT_S4 = (8, 6), (9, 0)
"""Compute capabilities of GPUs whose tensor cores multiply 4-bit values, or do not."""


class Recorder(emulator.Emulator):
    """An emulator that knows which kernels ran."""

    def __init__(self, capability: tuple[int, int] = WITHOUT_S4) -> None:
        super().__init__(emulator.library(), "random", torch.initial_seed(), capability)
        self.names: list[str] = []

    def start(self, kernel: Kernel, grid: tuple[int, int, int], block: int, arguments: Sequence[Any]) -> None:
        self.names.append(kernel.name)
        super().start(kernel, grid, block, arguments)


def int8(*shape: int) -> Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8)


def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.full(shape, -86).to(dtype)


def assert_equal(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    for g, w in zip(got, want, strict=True):
        assert torch.equal(g, w)


@pytest.mark.parametrize("form", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(40, 20, 64), (33, 130, 127), (20, 35, 3001), (70, 270, 32), (48, 64, 256), (1, 1, 1)]
)
def test_packed_values_are_multiplied_as_they_are_or_unpacked(form: tuple[bool, bool], m: int, n: int, k: int) -> None:
    shapes = (k, m) if form[0] else (m, k), (n, k) if form[1] else (k, n)
    for offset in (0, 3):
        packed = [int4.pack_int4(torch.randint(-7, 8, shape, dtype=torch.int8)) for shape in shapes]
        a, b = (torch.cat([p.new_full((offset,), 0x77), p.view(-1)])[offset:].view(p.shape) for p in packed)
        operands = (a, torch.rand(()), shapes[0][1], b, torch.rand(()), shapes[1][1])
        arguments = (*operands, *form, torch.randn(n), BFLOAT if offset else FLOAT)
        want = int4.qgemm_int4(*arguments)
        for capability in (WITH_S4, WITHOUT_S4):
            target = Recorder(capability)
            with target.running():
                assert_equal(gqc.qgemm_int4(*arguments), want)
            assert any("_s4_" in name for name in target.names) == (capability == WITH_S4)


@pytest.mark.parametrize(
    ("m", "n", "k"), [(700, 40, 80), (700, 40, 36), (300, 140, 144), (300, 140, 150), (40, 257, 64), (3, 40, 2000)]
)
@pytest.mark.parametrize("dtype", [FLOAT, BFLOAT])
def test_rows_are_quantized_by_the_one_block_that_reads_them(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    """At sizes where blocks take several tiles, on 16-byte boundaries and on none."""
    for offset in (0, 1):
        x = torch.randn(m * k + offset).to(dtype)[offset:].view(m, k)
        arguments = (x, None, SEED, 5, 8, True, int8(n, k), torch.rand(()), True, None, torch.rand(m), True, dtype)
        target = Recorder()
        with target.running():
            assert_equal(gqc.quantize_qgemm(*arguments), fused_gemm.quantize_qgemm(*arguments))
        fused = n <= 256 and k <= 1024
        assert [name for name in target.names if name.startswith("quantize_")] == [
            f"quantize_qgemm_{128 if n <= 128 else 256}" if fused else f"quantize_{'f32' if dtype is FLOAT else 'bf16'}"
        ]


@pytest.mark.parametrize("dtype", [HALF, BFLOAT])
@pytest.mark.parametrize(("m", "n", "k"), [(50, 24, 48), (70, 130, 33), (20, 12, 3000)])
def test_floats_of_16_bits(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    """Values that are rounded to 0 or to infinity are so in masks and absmax too."""
    a, b, one = int8(m, k), int8(k, n), torch.tensor(1.0)
    code, rows = CODES[dtype], torch.rand(m) * 2.0 ** torch.randint(-50, 8, (m,))
    sizes, after = (m, n, k, False, False), (None, rows, True)
    want, largest, bits = fused_gemm.qgemm_epilogue(a, one, b, one, False, False, *after, dtype)
    out, absmax, positive = poisoned(m, n, dtype=dtype), torch.zeros(()), torch.full_like(bits, 0xAA)
    q, scale, positive_of_q = poisoned(m, n, dtype=torch.int8), torch.zeros(()), torch.full_like(bits, 0xAA)
    grad = torch.randn(m, n).to(dtype)
    d_x = poisoned(m, n, dtype=dtype)
    with Recorder().running():
        left, right = (a.data_ptr(), one.data_ptr()), (b.data_ptr(), one.data_ptr())
        written = (out.data_ptr(), absmax.data_ptr(), positive.data_ptr())
        kernels.run(a, "qgemm", *left, False, *right, False, *sizes, None, rows.data_ptr(), True, code, *written)
        rounding, written = (SEED.data_ptr(), 2, 8, True, code), (q.data_ptr(), scale.data_ptr())
        last = positive_of_q.data_ptr()
        kernels.run(a, "qgemm_int8", *left, *right, *sizes, None, rows.data_ptr(), True, *rounding, *written, last)
        kernels.run(a, "relu_backward", grad.data_ptr(), code, m, n, positive.data_ptr(), d_x.data_ptr())
    assert_equal((out, absmax, positive), (want, largest, bits))
    quantized = fused_gemm.qgemm_int8(a, one, b, one, False, False, *after, SEED, 2, 8, True, dtype)
    if absmax.isfinite():
        assert_equal((q, scale, positive_of_q), quantized)
    else:
        assert scale.isnan()
        assert q.count_nonzero() == 0
    assert_equal((d_x,), (fused_gemm.relu_backward(grad, bits),))


def test_half_precision_is_quantized_as_it_is_read() -> None:
    m, n, k = 70, 30, 50
    x, b, one, bits = torch.randn(m, k).half(), int8(k, n), torch.tensor(1.0), torch.full((m, 4), 0xAA).byte()
    q, scale = poisoned(m, k, dtype=torch.int8), torch.zeros(())
    out, absmax, largest = poisoned(m, n, dtype=HALF), torch.zeros(()), x.float().abs().max()
    with Recorder().running():
        kernels.run(
            *(x, "quantize_qgemm", x.data_ptr(), 2, largest.data_ptr(), SEED.data_ptr(), 5, 8, True, q.data_ptr()),
            *(scale.data_ptr(), b.data_ptr(), one.data_ptr(), m, n, k, False, None, None, True, 2),
            *(out.data_ptr(), absmax.data_ptr(), bits.data_ptr()),
        )
    arguments = (x.float(), None, SEED, 5, 8, True, b, one, False, None, None, True, HALF)
    assert_equal((out, absmax, q, scale, bits), fused_gemm.quantize_qgemm(*arguments))
