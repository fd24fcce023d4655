"""Values of at most 4 bits, packed two a byte.

A tensor ``[N, *F]`` is packed row by row: uint8 ``[N, (W + 1) // 2]`` for ``W`` values a row, value ``2i`` in the low
and ``2i + 1`` in the high half of byte ``i``. The shape ``F`` is no part of a packed tensor; ops on it are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.kernels import dtype_code, pointer
from gqc.runtime.ops.graph_arguments import check_floats, float32
from gqc.runtime.ops.library import define
from gqc.runtime.ops.quantize import check_quantize


def packed_bytes(width: int | torch.SymInt) -> int | torch.SymInt:
    """Bytes of a row of ``width`` values."""
    return (width + 1) // 2


def check_packed(op: str, packed: Tensor, features: Sequence[int]) -> None:
    """Refuse a tensor that does not hold rows of packed ``features``.

    Raises:
        KernelError: if its dtype or its number of bytes a row is another.
    """
    width = prod(features)
    if packed.dtype is not torch.uint8 or packed.dim() != 2 or packed.shape[1] != packed_bytes(width):
        raise KernelError(
            f"gqc.{op}: rows of {list(features)} packed values are uint8 [N, {packed_bytes(width)}], not "
            f"{packed.dtype} {list(packed.shape)}: quantize them with gqc.quantize_int4"
        )


def _quantize_int4(
    x: Tensor, absmax: Tensor | None, seed: Tensor | None, node: int, bits: int, stochastic: bool
) -> tuple[Tensor, Tensor]:
    check_quantize("quantize_int4", x, seed, bits, stochastic, most=4)
    if x.dim() == 0:
        raise KernelError("gqc.quantize_int4: a number has no rows to pack: give it an axis")
    x = x.contiguous()
    rows, width = x.shape[0], prod(x.shape[1:])
    packed = kernels.empty(x, (rows, packed_bytes(width)), torch.uint8)
    scale = x.new_empty((), dtype=torch.float32)
    kernels.run(
        x,
        "quantize_int4",
        *(x.data_ptr(), dtype_code(x.dtype), rows if width else 0, width or 1),
        None if absmax is None else pointer(absmax, torch.float32),
        None if seed is None else pointer(seed, torch.int64),
        *(node, bits, stochastic, packed.data_ptr(), scale.data_ptr()),
    )
    return packed, scale


def _quantize_int4_fake(
    x: Tensor, absmax: Tensor | None, seed: Tensor | None, node: int, bits: int, stochastic: bool
) -> tuple[Tensor, Tensor]:
    packed = x.new_empty((x.shape[0], packed_bytes(prod(x.shape[1:]))), dtype=torch.uint8)
    return packed, x.new_empty((), dtype=torch.float32)


def unpack(packed: Tensor, features: Sequence[int]) -> Tensor:
    """int8 ``[N, *features]`` of a packed tensor."""
    check_packed("unpack_int4", packed, features)
    out = kernels.empty(packed, (packed.shape[0], *features), torch.int8)
    if out.numel():
        kernels.run(
            packed, "unpack_int4", pointer(packed, torch.uint8), packed.shape[0], prod(features), out.data_ptr()
        )
    return out


def unpacked_like(packed: Tensor, features: Sequence[int | torch.SymInt]) -> Tensor:
    """What :func:`unpack` gives, without values: for fake kernels."""
    return packed.new_empty((packed.shape[0], *features), dtype=torch.int8)


def graph_operand(
    op: str, x: Tensor, scale: Tensor | None, features: Sequence[int] | None
) -> tuple[Tensor, tuple[int, ...]]:
    """An operand of a graph op as the kernels read it, and its features.

    One with a scale stays packed for the CUDA kernels. Those of the CPU read int8: taking values apart at every edge
    costs them more than a pass over the rows.

    Raises:
        KernelError: if it does not hold packed ``features``, or has a scale or features alone.
    """
    if (scale is None) != (features is None):
        raise KernelError(f"gqc.{op}: a packed operand comes with its scale and its features, a float one with neither")
    if features is None:
        check_floats(op, x)
        return float32(x), tuple(x.shape[1:])
    check_packed(op, x, features)
    return x.contiguous() if kernels.on_gpu(x) else unpack(x.contiguous(), features), tuple(features)


define(
    "quantize_int4(Tensor x, Tensor? absmax, Tensor? seed, int node, int bits, bool stochastic) "
    "-> (Tensor packed, Tensor scale)",
    kernel=_quantize_int4,
    fake=_quantize_int4_fake,
)
define("unpack_int4(Tensor packed, SymInt[] features) -> Tensor", kernel=unpack, fake=unpacked_like)
