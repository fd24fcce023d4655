"""Packed values of 1, 2, 4 and 8 bits against their reference, on every back end."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import pack_bits as reference
from tests.runtime.backends import BACKENDS, on_backend

gqc = torch.ops.gqc
BITS = (1, 2, 4, 8)


def assert_packs(values: Tensor, bits: int) -> None:
    packed = gqc.pack_bits(values, bits)
    assert packed.dtype is torch.uint8
    assert torch.equal(packed, reference.pack_bits(values, bits))
    unpacked = gqc.unpack_bits(packed, bits, values.shape[1])
    assert torch.equal(unpacked, reference.unpack_bits(packed, bits, values.shape[1]))
    assert torch.equal(unpacked, values & (2**bits - 1))


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(0, 40),
    width=st.integers(0, 70),
    bits=st.sampled_from(BITS),
    offset=st.integers(0, 16),
    backend=st.sampled_from(BACKENDS),
)
def test_equals_reference(rows: int, width: int, bits: int, offset: int, backend: str) -> None:
    """Wherever a tensor starts; bits beyond those of a value are left out."""
    memory = torch.randint(256, (offset + rows * width,), dtype=torch.uint8)
    with on_backend(backend):
        assert_packs(memory[offset:].view(rows, width), bits)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("rows", "width"), [(1, 70_001), (3, 20_001), (5000, 7), (2, 16_384), (1, 16_391), (300, 64)])
def test_large_tensors_equal_reference(backend: str, threads: int, bits: int, rows: int, width: int) -> None:
    assert_packs(torch.randint(2**bits, (rows, width), dtype=torch.uint8), bits)


@pytest.mark.parametrize("width", [1, 5, 8, 33])
def test_a_mask_comes_back_as_a_view(backend: str, width: int) -> None:
    mask = torch.rand(50, width) < 0.3
    packed = gqc.pack_bits(mask, 1)
    assert packed.shape == (50, (width + 7) // 8)
    assert torch.equal(gqc.unpack_bits(packed, 1, width).view(torch.bool), mask)


def test_views_are_packed_as_they_stand() -> None:
    values = torch.randint(4, (30, 22), dtype=torch.uint8)
    for view in (values.t(), values[:, ::3], values[0].expand(5, 22)):
        assert_packs(view, 2)
    packed = gqc.pack_bits(values, 2)
    assert torch.equal(gqc.unpack_bits(packed[::2], 2, 22), values[::2])
    assert gqc.pack_bits(values, 8).data_ptr() != values.data_ptr()


def test_refusals_say_what_is_wrong() -> None:
    values = torch.zeros(4, 5, dtype=torch.uint8)
    with pytest.raises(KernelError, match="pack_bits: bits=3 is none of 1, 2, 4, 8: take the next larger one"):
        gqc.pack_bits(values, 3)
    with pytest.raises(KernelError, match=r"takes uint8 or bool \[N, W\] and got torch\.int8 \[4, 5\]"):
        gqc.pack_bits(values.view(torch.int8), 4)
    with pytest.raises(KernelError, match=r"got torch\.uint8 \[2, 2, 5\]: flatten"):
        gqc.pack_bits(values.view(2, 2, 5), 4)
    with pytest.raises(KernelError, match=r"rows of 9 values of 4 bits are uint8 \[N, 5\], not torch\.uint8 \[4, 3\]"):
        gqc.unpack_bits(gqc.pack_bits(values, 4), 4, 9)


@pytest.mark.parametrize("bits", BITS)
def test_opcheck(bits: int) -> None:
    values = torch.randint(2**bits, (5, 7), dtype=torch.uint8)
    torch.library.opcheck(gqc.pack_bits.default, (values, bits))
    torch.library.opcheck(gqc.unpack_bits.default, (gqc.pack_bits(values, bits), bits, 7))
