"""Launches the kernels of csrc/cuda/pack_bits.cu."""

from __future__ import annotations

from gqc.runtime.cuda.target import Argument, Kernel, Target, launch, strided_blocks

_THREADS = 256
_OF_THREAD = 16  # values
TILE = 2048
"""Packed bytes that a block works on together where rows end within a byte, PackedTile::kBytes."""

_PACK, _UNPACK = (
    {bits: Kernel(f"{name}_{bits}", "pip") for bits in (1, 2, 4)} for name in ("pack_bits", "unpack_bits")
)
_PACK_ROWS, _UNPACK_ROWS = (
    {bits: Kernel(f"{name}_rows_{bits}", "piip") for bits in (1, 2, 4)} for name in ("pack_bits", "unpack_bits")
)


def pack_bits(target: Target, values: Argument, rows: int, width: int, bits: int, packed: Argument) -> None:
    """Pack rows of values of 1, 2 or 4 bits."""
    _launch(target, _PACK[bits], _PACK_ROWS[bits], values, rows, width, bits, packed)


def unpack_bits(target: Target, packed: Argument, rows: int, width: int, bits: int, values: Argument) -> None:
    """Write packed values as bytes."""
    _launch(target, _UNPACK[bits], _UNPACK_ROWS[bits], packed, rows, width, bits, values)


def _launch(
    target: Target, one_row: Kernel, of_rows: Kernel, x: Argument, rows: int, width: int, bits: int, out: Argument
) -> None:
    if rows == 1:
        launch(target, one_row, strided_blocks(target, width, _OF_THREAD * _THREADS), _THREADS, x, width, out)
    else:
        grid = strided_blocks(target, rows * -(-width * bits // 8), TILE)
        launch(target, of_rows, grid, _THREADS, x, rows, width, out)


LAUNCHERS = (pack_bits, unpack_bits)
