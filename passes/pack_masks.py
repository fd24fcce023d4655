"""Save masks in 1 bit an element."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, fx

from gqc.joint import JointGraph
from gqc.passes.backward_reading import Reading
from gqc.passes.nodes import FORWARD, aten, call, example_numel, origin, size
from gqc.passes.primitive import ops
from gqc.passes.report import COMPRESSED, Decision, Report
from gqc.passes.saved_values import choose_saved
from gqc.policy import Policy


def pack_masks(joint: JointGraph, policy: Policy) -> Report:
    """Pack the masks that the forward saves in 1 byte an element, and unpack them before their first reader.

    Requires: :func:`fuse_pointwise` (order only), whose programs write and read most masks in 1 bit anyway.
    Does: with ``Policy.save_bits``, for masks of at least its ``min_size`` elements.
    Ensures: the same values, bit for bit.
    """
    report = Report("pack_masks")
    if policy.saves is None or not joint.training:
        return report
    saved = choose_saved(joint)
    reading = Reading(joint, saved)
    for node in saved:
        value = node.meta["val"]
        if not isinstance(value, Tensor) or value.dtype is not torch.bool or node.op != "call_function":
            continue
        if value.dim() == 0 or example_numel(value) < policy.saves.min_size or node in joint.output.all_input_nodes:
            continue
        reading.restored[node] = partial(_unpack, node, *_pack(node))
        reason = "its mask is saved in 1 bit an element"
        report.decisions.append(Decision(node.name, origin(node).module, "mask", FORWARD, COMPRESSED, reason))
    reading.rewire()
    return report


def _pack(node: fx.Node) -> tuple[fx.Node, fx.Node | int]:
    """The packed mask as one row, and how many elements it has."""
    with node.graph.inserting_before(node.next):
        row = call(aten.reshape.default, (node, [1, -1]), node, f"{node.name}_row")
        packed = call(ops.pack_bits.default, (row, 1), node, f"{node.name}_packed")
        width = size(row, 1)
    for made in (row, packed):
        made.meta["partitioner_tag"] = "is_forward"
    return packed, width


def _unpack(node: fx.Node, packed: fx.Node, width: fx.Node | int, reader: fx.Node) -> fx.Node:
    with node.graph.inserting_before(reader):
        unpacked = call(ops.unpack_bits.default, (packed, 1, width), node, f"{node.name}_unpacked")
        mask = call(aten.view.dtype, (unpacked, torch.bool), node, f"{node.name}_mask")
        sizes = [size(node, axis) for axis in range(node.meta["val"].dim())]
        again = call(aten.reshape.default, (mask, sizes), node, f"{node.name}_again")
    for made in (unpacked, mask, again):
        made.meta["partitioner_tag"] = "is_backward"
    return again
