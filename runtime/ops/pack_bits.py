"""Values of few bits, packed into bytes: masks in 1 bit, indices and quantized activations in 1, 2, 4 or 8.

A row of ``W`` values of ``b`` bits is packed into ``ceil(W * b / 8)`` bytes, value ``i`` at bit ``i * b``, low bits
first; what a row leaves of its last byte is 0. A mask is packed as it is, and comes back by ``.view(torch.bool)``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.kernels import pointer
from gqc.runtime.ops.library import define

WIDTHS = (1, 2, 4, 8)
"""Bits of a packed value."""


def bytes_of_row(width: int | torch.SymInt, bits: int) -> int | torch.SymInt:
    """Bytes of a packed row."""
    return (width * bits + 7) // 8


def check_bits(op: str, bits: int) -> None:
    """Refuse bits that do not fill a byte evenly.

    Raises:
        KernelError: unless they are one of :data:`WIDTHS`.
    """
    if bits not in WIDTHS:
        raise KernelError(f"gqc.{op}: bits={bits} is none of {', '.join(map(str, WIDTHS))}: take the next larger one")


def check_packed_rows(op: str, packed: Tensor, bits: int, width: int) -> None:
    """Refuse a tensor that does not hold packed rows of ``width`` values in its last axis.

    Raises:
        KernelError: saying what it should be.
    """
    check_bits(op, bits)
    if packed.dtype is not torch.uint8 or packed.shape[-1:] != (bytes_of_row(width, bits),):
        raise KernelError(
            f"gqc.{op}: rows of {width} values of {bits} bits are uint8 [N, {bytes_of_row(width, bits)}], not "
            f"{packed.dtype} {list(packed.shape)}: pack them with gqc.pack_bits"
        )


def _check_values(values: Tensor, bits: int) -> None:
    check_bits("pack_bits", bits)
    if values.dim() != 2 or values.dtype not in (torch.uint8, torch.bool):
        raise KernelError(
            f"gqc.pack_bits takes uint8 or bool [N, W] and got {values.dtype} {list(values.shape)}: "
            "flatten what follows the rows, and convert the values"
        )


def _pack_bits(values: Tensor, bits: int) -> Tensor:
    _check_values(values, bits)
    values = values.contiguous().view(torch.uint8)
    rows, width = values.shape
    if bits == 8:
        return values.clone()
    packed = kernels.empty(values, (rows, bytes_of_row(width, bits)))
    _run(values, "pack_bits", values, packed, rows, width, bits)
    return packed


def _pack_bits_fake(values: Tensor, bits: int) -> Tensor:
    _check_values(values, bits)
    return values.new_empty((values.shape[0], bytes_of_row(values.shape[1], bits)), dtype=torch.uint8)


def _unpack_bits(packed: Tensor, bits: int, width: int) -> Tensor:
    check_packed_rows("unpack_bits", packed, bits, width)
    if packed.dim() != 2:
        raise KernelError(f"gqc.unpack_bits takes rows [N, bytes] and got {list(packed.shape)}: flatten its first axes")
    packed = packed.contiguous()
    if bits == 8:
        return packed.clone()
    values = kernels.empty(packed, (packed.shape[0], width))
    _run(packed, "unpack_bits", packed, values, packed.shape[0], width, bits)
    return values


def _unpack_bits_fake(packed: Tensor, bits: int, width: int) -> Tensor:
    check_bits("unpack_bits", bits)
    torch._check(
        packed.shape[1] == bytes_of_row(width, bits),
        lambda: f"gqc.unpack_bits: {packed.shape[1]} bytes a row do not hold {width} values of {bits} bits",
    )
    return packed.new_empty((packed.shape[0], width))


def _run(on: Tensor, name: str, x: Tensor, out: Tensor, rows: int, width: int, bits: int) -> None:
    if out.numel() == 0:
        return
    if width * bits % 8 == 0:  # rows lie side by side
        rows, width = 1, rows * width
    kernels.run(on, name, pointer(x, torch.uint8), rows, width, bits, out.data_ptr())


define("pack_bits(Tensor values, int bits) -> Tensor", kernel=_pack_bits, fake=_pack_bits_fake)
define("unpack_bits(Tensor packed, int bits, SymInt width) -> Tensor", kernel=_unpack_bits, fake=_unpack_bits_fake)
