"""How the kernels walk over broadcast features: the mirror of ``FeatureLayout`` in csrc/cpu/graph/features.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from math import prod
from typing import NamedTuple

from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime.features import pad_left

# Numbered as OpCode in csrc/cpu/graph/edge_op.h. A copy reads its first operand.
OP_CODES = {"copy_lhs": 0, "copy_rhs": 0, "add": 1, "sub": 2, "mul": 3, "div": 4, "dot": 5}
COPY_FLOAT24 = 6
"""A copy of rows of float24 (:mod:`gqc.runtime.float24`), on the CPU."""


class _Native(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("runs", "length", "lhs_width", "rhs_width", "lhs_step", "rhs_step")),
        *((name, ctypes.POINTER(ctypes.c_int64)) for name in ("lhs_offsets", "rhs_offsets")),
    )
    __hash__ = object.__hash__  # so that what is derived from a layout can be cached


class FeatureLayout(NamedTuple):
    """The features of an output and how they are computed from those of the operands.

    Attributes:
        op: the operation to run: that asked for, or a simpler one with the same result.
        features: feature axes of the output.
        address: of the native struct.
        native: keeps the struct alive.
    """

    op: str
    features: tuple[int, ...]
    address: int
    native: _Native

    @property
    def _as_parameter_(self) -> int:
        """What ctypes gives to a kernel."""
        return self.address


class _Axis(NamedTuple):
    size: int
    in_lhs: bool
    in_rhs: bool


def layout_of(op: str, lhs: Tensor, rhs: Tensor | None) -> FeatureLayout:
    """Layout of ``op`` on ``[*, *L]`` and ``[*, *R]``; a copy gives its one operand as ``lhs``.

    Raises:
        KernelError: if the features do not broadcast.
    """
    features = lhs.shape[1:]
    return layout_of_features(op, features, features if rhs is None else rhs.shape[1:])


@lru_cache(maxsize=1024)
def layout_of_features(op: str, lhs: tuple[int, ...], rhs: tuple[int, ...]) -> FeatureLayout:
    """Layout of ``op`` on rows of ``lhs`` and ``rhs`` features, as :func:`layout_of`."""
    rank = max(len(lhs), len(rhs))
    axes = []
    for left, right in zip(pad_left(lhs, rank), pad_left(rhs, rank), strict=True):
        if left != right and 1 not in (left, right):
            raise KernelError(
                f"gqc {op}: features {list(lhs)} and {list(rhs)} do not broadcast: each axis, counted from the last, "
                "must have the same size in both or size 1 in one"
            )
        axes.append(_Axis(right if left == 1 else left, left != 1 or right == 1, right != 1 or left == 1))
    features = tuple(axis.size for axis in axes)
    if op == "dot":
        if lhs[-1:] != rhs[-1:] or not lhs:
            raise KernelError(f"gqc dot: the last axes of features {list(lhs)} and {list(rhs)} must have the same size")
        if lhs[-1] == 1:
            return layout_of_features("mul", lhs, rhs)
        outer, inner, features = _merged(axes[:-1]), axes[-1], (*features[:-1], 1)
    else:
        *outer, inner = _merged(axes) or [_Axis(1, True, True)]
    native = _Native(
        prod(axis.size for axis in outer),
        inner.size,
        prod(lhs),
        prod(rhs),
        inner.in_lhs,
        inner.in_rhs,
        _array(_offsets([(a.size, a.in_lhs) for a in outer], inner.size if inner.in_lhs else 1)),
        _array(_offsets([(a.size, a.in_rhs) for a in outer], inner.size if inner.in_rhs else 1)),
    )
    return FeatureLayout(op, features, ctypes.addressof(native), native)


def _merged(axes: Sequence[_Axis]) -> list[_Axis]:
    """Join neighbouring axes that the same operands have, so that runs are as long as they can be."""
    groups = groupby((axis for axis in axes if axis.size != 1), key=lambda axis: axis[1:])
    return [_Axis(prod(axis.size for axis in group), *kind) for kind, group in groups]


def _offsets(axes: Sequence[tuple[int, bool]], inner: int) -> list[int]:
    """Start of each run in an operand's row; ``axes`` are the outer ones with whether the operand has them."""
    offsets, stride = [0], inner
    for size, present in reversed(axes):
        step = stride if present else 0
        offsets = [i * step + offset for i in range(size) for offset in offsets]
        stride *= size if present else 1
    return offsets


def _array(values: list[int]) -> ctypes.Array:
    return (ctypes.c_int64 * len(values))(*values)
