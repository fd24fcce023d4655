"""How a tensor is cut into rows that are compressed, and how many bytes that saves."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, fx

from gqc.passes.nodes import aten, call, example, pick, size
from gqc.passes.primitive import ops
from gqc.save_bits import SaveBits

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
        axes: how many of the last axes make a row; 0: the whole tensor is one.
        group: how many values of a row share a least element and a range; 0: all.
    """

    bits: int
    stats: torch.dtype
    axes: int = 1
    group: int = 0

    @classmethod
    def of(cls, bits: int, saves: SaveBits, value: Tensor) -> Rows:
        """The rows in which a tensor is compressed: of its last axis, or of more axes if ranges would take more memory
        than the values of such a row, or of the whole tensor in groups.
        """
        stats, axes, width = _STATS[saves.stats], 1, example(value.shape[-1])
        while not (is_long := width * bits >= 8 * 2 * stats.itemsize) and axes + 1 < value.dim():
            if not isinstance(value.shape[-axes - 1], int) or not isinstance(value.shape[-axes], int):
                break
            axes += 1
            width *= value.shape[-axes]
        if value.dim() > 1 and is_long:
            return cls(bits, stats, axes, saves.group or 0)
        return cls(bits, stats, 0, saves.group or FLAT_GROUP)

    def nbytes(self, value: Tensor) -> int:
        """What is saved of a tensor at the example call."""
        sizes = [*map(example, value.shape)]
        cut = value.dim() - self.axes if self.axes else 0
        rows, width = prod(sizes[:cut]), prod(sizes[cut:])
        groups = -(-width // self.group) if self.group else 1
        return rows * ((width * self.bits + 7) // 8 + groups * 2 * self.stats.itemsize)

    def compress(self, node: fx.Node, seed: fx.Node | None, stream: int) -> Compressed:
        """Add the compression of a tensor after it."""
        with node.graph.inserting_before(node.next):
            rows = node
            if self.axes != 1:
                width = prod(node.meta["val"].shape[-self.axes :])
                shape = [-1, width] if self.axes else [-1]
                rows = call(aten.reshape.default, (node, shape), node, f"{node.name}_rows")
            arguments = (rows, self.bits, seed, stream, self.stats, self.group)
            compressed = call(COMPRESS, arguments, node, f"{node.name}_compressed")
            width = size(rows, -1)
        compressed.meta["partitioner_tag"] = "is_forward"
        names = ("packed", "zero", "range")
        return Compressed(
            node, self, [pick(compressed, i, f"{node.name}_{name}") for i, name in enumerate(names)], width
        )


@dataclass(frozen=True)
class Compressed:
    """A tensor that is compressed.

    Attributes:
        node: the tensor.
        rows: how it is cut.
        results: the packed values, the least elements and the ranges.
        width: values of a row.
    """

    node: fx.Node
    rows: Rows
    results: list[fx.Node]
    width: fx.Node | int

    def decompress(self, reader: fx.Node) -> fx.Node:
        """Add the tensor as the backward reads it, before its first reader."""
        node, value = self.node, self.node.meta["val"]
        with node.graph.inserting_before(reader):
            arguments = (*self.results, self.rows.bits, self.width, value.dtype, self.rows.group)
            read = call(DECOMPRESS, arguments, node, f"{node.name}_decompressed")
            read.meta["partitioner_tag"] = "is_backward"
            if self.rows.axes != 1 and value.dim() != 1:
                shape = [size(node, axis) for axis in range(value.dim())]
                read = call(aten.reshape.default, (read, shape), read, f"{node.name}_again")
        return read
