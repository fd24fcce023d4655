"""How a tensor is cut into rows that are compressed, and how many bytes that saves."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from gqc.passes.nodes import aten, call, example, pick, size
from gqc.passes.primitive import ops
from gqc.save_bits import SaveBits

PROJECT, UNPROJECT = ops.project_rows.default, ops.unproject_rows.default
COMPRESS, DECOMPRESS = ops.compress_rows.default, ops.decompress_rows.default
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
FLAT_GROUP = 256
"""Values that share a range where rows are short, as in ActNN."""

_STATS = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Rows:
    """A tensor as rows that are compressed one by one.

    Attributes:
        bits: of a value.
        stats: dtype of the least element and the range.
        axes: how many of the last axes make a row.
        group: how many values of a row share a least element and a range; 0: all.
        is_flat: whether all rows are compressed as one, where ranges of their own would take more memory than values.
        kept: to how many values a row is projected before it is compressed; 0: it is not.
    """

    bits: int
    stats: torch.dtype
    axes: int = 1
    group: int = 0
    is_flat: bool = False
    kept: int = 0

    @classmethod
    def of(cls, bits: int, saves: SaveBits, value: Tensor, project: bool = False) -> Rows:
        """The rows in which a tensor is compressed: of its last axis, or of more axes if one is short.

        Args:
            bits: of a value.
            saves: stats, group and the fraction of a row that a projection keeps.
            value: the tensor.
            project: whether the tensor may be projected.
        """
        stats = _STATS[saves.stats]
        fewest = 8 * 2 * stats.itemsize // bits  # values that take as much as their range
        axes, width = 1, example(value.shape[-1])
        while width < fewest and axes + 1 < value.dim():
            if not isinstance(value.shape[-axes - 1], int) or not isinstance(value.shape[-axes], int):
                break
            axes += 1
            width *= value.shape[-axes]
        is_flat, kept = width < fewest or value.dim() == 1, 0
        if project and saves.project is not None and not is_flat and isinstance(value.shape[-1], int):
            kept = max(1, round(width * saves.project)) % width
            is_flat = kept > 0 and kept < fewest
        return cls(bits, stats, axes, saves.group or (FLAT_GROUP if is_flat else 0), is_flat, kept)

    def nbytes(self, value: Tensor) -> int:
        """What is saved of a tensor at the example call."""
        sizes = [*map(example, value.shape)]
        rows, width = prod(sizes[: -self.axes]), self.kept or prod(sizes[-self.axes :])
        if self.is_flat:
            rows, width = 1, rows * width
        groups = -(-width // self.group) if self.group else 1
        return rows * ((width * self.bits + 7) // 8 + groups * 2 * self.stats.itemsize)

    def compress(self, node: fx.Node, seed: fx.Node | None, stream: int, stochastic: bool) -> Compressed:
        """Add the compression of a tensor after it.

        Args:
            node: the tensor.
            seed: of the projection and of stochastic rounding; ``None`` without either.
            stream: number of the stream of their random bits.
            stochastic: how values are rounded.
        """
        with node.graph.inserting_before(node.next):
            rows, width = node, prod(node.meta["val"].shape[-self.axes :])
            if self.axes > 1 and (self.kept or not self.is_flat):
                rows = call(aten.reshape.default, (node, [-1, width]), node, f"{node.name}_rows")
            if self.kept:
                rows = call(PROJECT, (rows, self.kept, seed, stream), node, f"{node.name}_projected")
            if self.is_flat and rows.meta["val"].dim() > 1:
                rows = call(aten.reshape.default, (rows, [-1]), node, f"{node.name}_flat")
            arguments = (rows, self.bits, seed if stochastic else None, stream, self.stats, self.group)
            compressed = call(COMPRESS, arguments, node, f"{node.name}_compressed")
            packed_width = size(rows, -1)
        compressed.meta["partitioner_tag"] = "is_forward"
        names = enumerate(("packed", "zero", "range"))
        results = [pick(compressed, i, f"{node.name}_{name}") for i, name in names]
        return Compressed(node, self, results, packed_width, (width, seed, stream))


@dataclass(frozen=True)
class Compressed:
    """A tensor that is compressed.

    Attributes:
        node: the tensor.
        rows: how it is cut.
        results: the packed values, the least elements and the ranges.
        width: values of a row that is packed.
        projection: width of a row before it was projected, seed and number of the stream.
    """

    node: fx.Node
    rows: Rows
    results: list[fx.Node]
    width: fx.Node | int
    projection: tuple[Any, fx.Node | None, int]

    def decompress(self, reader: fx.Node) -> fx.Node:
        """Add the tensor as the backward reads it, before its first reader."""
        node, rows, value = self.node, self.rows, self.node.meta["val"]
        made = []
        with node.graph.inserting_before(reader):
            arguments = (*self.results, rows.bits, self.width, value.dtype, rows.group)
            made.append(call(DECOMPRESS, arguments, node, f"{node.name}_decompressed"))
            if rows.kept:
                if rows.is_flat:
                    made.append(call(aten.reshape.default, (made[-1], [-1, rows.kept]), node, f"{node.name}_rows"))
                made.append(call(UNPROJECT, (made[-1], *self.projection), node, f"{node.name}_unprojected"))
            if made[-1].meta["val"].dim() != value.dim():
                shape = [size(node, axis) for axis in range(value.dim())]
                made.append(call(aten.reshape.default, (made[-1], shape), node, f"{node.name}_again"))
        for again in made:
            again.meta["partitioner_tag"] = "is_backward"
        return made[-1]
