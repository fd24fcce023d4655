"""Launches the kernels of csrc/cuda/sddmm_map.cu and sddmm_dot.cu."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import NamedTuple

from gqc.errors import KernelError
from gqc.runtime.cuda.target import Argument, Kernel, Target, launch, strided_blocks
from gqc.runtime.ops.feature_layout import OP_CODES, FeatureLayout

_THREADS = 256
_WARPS = _THREADS // 32
_MOST_ELEMENTS = 2**31 - 1

# Numbered as MapOp of csrc/cuda/sddmm_map.cu: the operation, and that with its operands swapped.
_OPS = {"copy_lhs": (0, 0), "add": (1, 1), "sub": (2, 5), "mul": (3, 3), "div": (4, 6)}
_NAMES = {code: name for name, code in OP_CODES.items() if name != "copy_rhs"}

# Widths in which operands of two types are read, the widest first: elements of a pack, edges a lane has under way.
_MAP_PACKS = ((4, 2), (1, 4))
_DOT_PACKS = {
    ("f32", "f32"): ((4, 4), (1, 4)),
    ("int8", "int8"): ((16, 4), (4, 4), (1, 4)),
    ("int8", "f32"): ((4, 4), (1, 4)),
    ("int4", "int4"): ((32, 4), (4, 4), (1, 4)),
    ("int4", "f32"): ((4, 4), (1, 4)),
}
_MAP_ARGUMENTS = "iii" + 2 * "ppipipi" + "iiiip"
_DOT_ARGUMENTS = "ii" + 2 * "ppipip" + "iiiip"


class _Features(NamedTuple):
    """Where the runs of an operand's features stand.

    Attributes:
        width: elements in a row.
        step: between elements of a run, 0 or 1.
        stride: between the starts of runs.
        offsets: starts of runs, where no stride gives them.
        divisor: of all starts.
    """

    width: int
    step: int
    stride: int
    offsets: tuple[int, ...] | None
    divisor: int


class _Operand(NamedTuple):
    type: str
    data: Argument
    rows: Argument
    scale: Argument
    features: _Features

    @property
    def row_size(self) -> int:
        """Elements of a row, bytes where they are packed."""
        return (self.features.width + 1) // 2 if self.type == "int4" else self.features.width

    def can_be_read_by(self, pack: int) -> bool:
        """Whether each pack of that many elements is aligned; a step of 0 reads single elements."""
        if self.features.step == 0:
            return True
        bits = {"f32": 32, "int8": 8, "int4": 4}[self.type] * pack
        row_bytes = self.row_size * (4 if self.type == "f32" else 1)
        return self.features.divisor % pack == 0 and (8 * gcd(row_bytes, self.data or 0)) % bits == 0


@lru_cache(maxsize=1024)
def _sides(layout: FeatureLayout) -> tuple[_Features, _Features]:
    native = layout.native
    if max(native.lhs_width, native.rhs_width, native.runs * native.length) > _MOST_ELEMENTS:
        raise KernelError(f"gqc {layout.op}: CUDA kernels take rows of at most {_MOST_ELEMENTS} elements: split them")
    return (
        _features(native.lhs_width, native.lhs_step, tuple(native.lhs_offsets[: native.runs])),
        _features(native.rhs_width, native.rhs_step, tuple(native.rhs_offsets[: native.runs])),
    )


def _features(width: int, step: int, offsets: tuple[int, ...]) -> _Features:
    stride = offsets[1] - offsets[0] if len(offsets) > 1 else 0
    regular = all(offset == run * stride for run, offset in enumerate(offsets))
    return _Features(width, step, stride, None if regular else offsets, gcd(*offsets))


def sddmm(
    target: Target,
    op: int,
    is_int64: bool,
    edges: int,
    lhs: Argument,
    lhs_rows: Argument,
    rhs: Argument,
    rhs_rows: Argument,
    layout: FeatureLayout,
    dtype: int,
    out: Argument,
) -> None:
    """Compute ``out[i] = op(lhs[lhs_rows[i]], rhs[rhs_rows[i]])`` for each edge i; ``dtype`` is that of float32."""
    sides = _sides(layout)
    operands = [_Operand("f32", lhs, lhs_rows, None, sides[0]), _Operand("f32", rhs, rhs_rows, None, sides[1])]
    _launch(target, op, is_int64, edges, operands, layout, out)


def qsddmm(
    target: Target,
    op: int,
    is_int64: bool,
    edges: int,
    lhs: Argument,
    lhs_rows: Argument,
    lhs_scale: Argument,
    rhs: Argument,
    rhs_rows: Argument,
    rhs_scale: Argument,
    packed: bool,
    layout: FeatureLayout,
    dtype: int,
    out: Argument,
) -> None:
    """As :func:`sddmm`; operands with a scale are INT8 or, where ``packed``, 4-bit values."""
    types = ["f32" if scale is None else "int4" if packed else "int8" for scale in (lhs_scale, rhs_scale)]
    sides = _sides(layout)
    operands = [
        _Operand(types[0], lhs, lhs_rows, lhs_scale, sides[0]),
        _Operand(types[1], rhs, rhs_rows, rhs_scale, sides[1]),
    ]
    _launch(target, op, is_int64, edges, operands, layout, out)


def _launch(
    target: Target,
    op: int,
    is_int64: bool,
    edges: int,
    operands: list[_Operand],
    layout: FeatureLayout,
    out: Argument,
) -> None:
    swapped = (operands[0].type, operands[1].type) not in _DOT_PACKS
    first, second = reversed(operands) if swapped else operands
    name, runs, length = _NAMES[op], layout.native.runs, layout.native.length
    is_dot = name == "dot"
    packs = _DOT_PACKS[first.type, second.type] if is_dot else _MAP_PACKS
    read = (first,) if name == "copy_lhs" else (first, second)
    pack, at_once = next(
        (pack, at_once)
        for pack, at_once in packs
        if (length % pack == 0 and all(operand.can_be_read_by(pack) for operand in read) and (is_dot or out % 16 == 0))
        or pack == 1
    )
    chunks = length // pack
    log_lanes = min(5, (chunks - 1).bit_length())
    log_slots = min(5 - log_lanes, (runs - 1).bit_length())
    edges_of_a_warp = (32 >> log_lanes >> log_slots) * at_once
    blocks = strided_blocks(target, edges, _WARPS * edges_of_a_warp)
    kernel = Kernel(
        f"sddmm_{'dot' if is_dot else 'map'}_{first.type}_{second.type}_by_{pack}",
        _DOT_ARGUMENTS if is_dot else _MAP_ARGUMENTS,
    )
    launch(
        *(target, kernel, blocks, _THREADS, *(() if is_dot else (_OPS[name][swapped],)), is_int64, edges),
        *(*_arguments(target, first, is_dot), *_arguments(target, second, is_dot)),
        *(runs, chunks, log_lanes, log_slots, out),
    )


def _arguments(target: Target, operand: _Operand, is_dot: bool) -> list[Argument]:
    features = operand.features
    offsets = None if features.offsets is None else target.upload(features.offsets).data_ptr()
    arguments = [operand.data, operand.rows, operand.row_size, offsets, features.stride, operand.scale]
    return arguments if is_dot else [*arguments, features.step]


LAUNCHERS = (sddmm, qsddmm)
