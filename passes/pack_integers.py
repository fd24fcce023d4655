"""Save masks and indices in as few bits as they need."""

from __future__ import annotations

import operator
from functools import partial
from math import prod

import torch
from torch import SymInt, Tensor, fx

from gqc.joint import JointGraph
from gqc.passes.backward_reading import Reading
from gqc.passes.nodes import FORWARD, aten, by_name, call, example_numel, origin, size
from gqc.passes.primitive import ops
from gqc.passes.report import COMPRESSED, Decision, Report
from gqc.passes.saved_plan import MASK, PLAN, SavedPlan, compressed_to
from gqc.passes.saved_values import choose_saved, tangent_dependent
from gqc.policy import Policy
from gqc.runtime.ops.pack_bits import WIDTHS
from gqc.runtime.relation import SRC

_DTYPES = {8: torch.uint8, 16: torch.int16, 32: torch.int32}
_PLANES = {
    aten.max_pool2d_with_indices.default: 2,
    aten.max_pool3d_with_indices.default: 3,
    aten.adaptive_max_pool2d.default: 2,
    aten.adaptive_max_pool3d.default: 3,
}
"""Ops whose second result are places in a plane of the operand, and how many axes a plane has."""


def pack_integers(joint: JointGraph, policy: Policy) -> Report:
    """Save masks in 1 bit an element and the winners of maxima in as few bits as their bound needs.

    Requires: :func:`fuse_pointwise` (order only), whose programs write and read most masks in 1 bit anyway.
    Does: with ``Policy.save_bits``, for tensors of at least its ``min_size`` elements: packs masks of 1 byte an element
        and places in a plane of a max pooling; keeps edge ids of a maximum over neighbours in 32 bits, for graphs of
        less than 2^31 edges, of which others get a variant of their own. They come back before their first reader.
    Ensures: the same values, bit for bit.
    """
    report = Report("pack_integers")
    if policy.saves is None or not joint.training:
        return report
    late, saved = tangent_dependent(joint), choose_saved(joint)
    reading = Reading(joint, saved)
    for node in saved:
        value, bits = node.meta["val"], _bits(node)
        if bits is None or value.dim() == 0 or example_numel(value) < policy.saves.min_size:
            continue
        if node in joint.output.all_input_nodes:
            continue
        packed, width = _pack(node, bits) if bits < 8 else (_cast(node, _DTYPES[bits]), None)
        reading.restored[node] = partial(_restore, node, packed, bits, width)
        kept = packed.meta["val"]
        how, reason = (MASK, "one bit an element") if bits == 1 else (compressed_to(bits), "indices, exactly")
        plan = SavedPlan.of(node, example_numel(kept) * kept.dtype.itemsize, how, reason, late)
        packed.meta[PLAN] = plan
        told = f"{how}: {reason}"
        report.decisions.append(Decision(node.name, origin(node).module, "integers", FORWARD, COMPRESSED, told))
    reading.rewire()
    return report


def _bits(node: fx.Node) -> int | None:
    """How many bits a value of an integer tensor needs, ``None`` if it stays as it is."""
    value = node.meta["val"]
    if node.op != "call_function" or not isinstance(value, Tensor):
        return None
    if value.dtype is torch.bool:
        return 1
    if value.dtype is not torch.int64 or node.target is not operator.getitem or node.args[1] != 1:
        return None
    maker: fx.Node = node.args[0]  # type: ignore[assignment]
    if maker.target in (ops.spmm_cmp.default, ops.qspmm_cmp.default):
        edges = by_name(maker)["g"][SRC].meta["val"].shape[0]
        return 32 if bool(edges < 2**31) else None  # a symbolic size is guarded
    if maker.target in _PLANES:
        plane = maker.args[0].meta["val"].shape[-_PLANES[maker.target] :]  # type: ignore[union-attr,index]
        if not any(isinstance(length, SymInt) for length in plane):
            return next((b for b in (*WIDTHS, 16, 32) if prod(plane) <= 2 ** (b - (b > 8))), None)
    return None


def _cast(node: fx.Node, dtype: torch.dtype) -> fx.Node:
    with node.graph.inserting_before(node.next):
        narrow = call(aten._to_copy.default, (node,), node, f"{node.name}_narrow", dtype=dtype)
    narrow.meta["partitioner_tag"] = "is_forward"
    return narrow


def _pack(node: fx.Node, bits: int) -> tuple[fx.Node, fx.Node | int]:
    """The packed values as one row, and how many there are."""
    values = node if node.meta["val"].dtype is torch.bool else _cast(node, torch.uint8)
    with node.graph.inserting_before(values.next):
        row = call(aten.reshape.default, (values, [1, -1]), node, f"{node.name}_row")
        packed = call(ops.pack_bits.default, (row, bits), node, f"{node.name}_packed")
        width = size(row, 1)
    for made in (row, packed):
        made.meta["partitioner_tag"] = "is_forward"
    return packed, width


def _restore(node: fx.Node, packed: fx.Node, bits: int, width: fx.Node | int | None, reader: fx.Node) -> fx.Node:
    value, made = node.meta["val"], [packed]
    with node.graph.inserting_before(reader):
        if width is not None:
            made.append(call(ops.unpack_bits.default, (packed, bits, width), node, f"{node.name}_unpacked"))
            if value.dtype is torch.bool:
                made.append(call(aten.view.dtype, (made[-1], torch.bool), node, f"{node.name}_mask"))
            sizes = [size(node, axis) for axis in range(value.dim())]
            made.append(call(aten.reshape.default, (made[-1], sizes), node, f"{node.name}_again"))
        if value.dtype is not torch.bool:
            made.append(call(aten._to_copy.default, (made[-1],), node, f"{node.name}_wide", dtype=value.dtype))
    for again in made[1:]:
        again.meta["partitioner_tag"] = "is_backward"
    return made[-1]
