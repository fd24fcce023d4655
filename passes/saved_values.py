"""Which values cross from the forward to the backward."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

import networkx  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx

from gqc.joint import TANGENT, JointGraph
from gqc.passes.nodes import (
    EARLY,
    RESHAPES,
    aten,
    example,
    example_numel,
    is_random,
    is_size,
    is_updated,
    mutates,
    needed_for,
)
from gqc.passes.primitive import ops

REPEATED = RESHAPES | {
    aten.detach.default,
    aten.alias.default,
    aten.expand.default,
    aten.slice.Tensor,
    aten.select.int,
    ops.dequantize.default,
    ops.unpack_int4.default,
}
"""Ops that the backward repeats: views, which cost nothing, and the return from int8 or packed values, whose result is
larger."""

COMPRESSED = (ops.compress_rows.default, ops.pack_bits.default)
"""Ops that run in the forward whatever it saves: what they read is not saved itself."""

_HELD_BYTES = 1
_SIZE_BYTES = 8


@dataclass(frozen=True)
class SavedTensor:
    """A value that the forward keeps for the backward.

    Attributes:
        name: its node in the joint graph.
        dtype: ``None`` for a size, which is saved as a Python int.
        shape: symbolic sizes.
        held: whether the caller holds it anyway, as a parameter, buffer or input.
    """

    name: str
    dtype: torch.dtype | None
    shape: tuple[int | torch.SymInt, ...]
    held: bool

    def nbytes(self) -> int:
        """Memory that saving it costs at the example call: 0 if the caller holds it anyway."""
        if self.held or self.dtype is None:
            return 0
        count = self.dtype.itemsize
        for size in self.shape:
            count *= example(size)
        return count


def describe(node: fx.Node) -> SavedTensor:
    """What saving a node means."""
    value = node.meta["val"]
    held = node.op == "placeholder"
    if isinstance(value, Tensor):
        return SavedTensor(node.name, value.dtype, tuple(value.shape), held)
    return SavedTensor(node.name, None, (), held)


Cost = Callable[[fx.Node], "int | None"]
"""Bytes that saving a tensor costs; ``None``: as many as it has."""


def choose_saved(
    joint: JointGraph,
    cost: Cost | None = None,
    early: Container[fx.Node] = (),
    repeats: Container[fx.Node] = (),
) -> list[fx.Node]:
    """The values that the forward saves, in graph order: the set of fewest bytes from which the backward can run.

    What the forward outputs and in-place updates need is computed in the forward; what depends on a gradient is
    computed in the backward. Everything between, such as the mask of an activation, goes where fewer bytes cross.
    Only the ops of :data:`REPEATED` and sizes are computed in both halves; parameters, buffers and inputs count as
    free, because the caller holds them anyway. What is marked :data:`EARLY` is computed in the forward.

    Args:
        joint: forward and backward.
        cost: what saving a tensor that the forward computes costs, where it is not what the tensor takes.
        early: nodes that only the forward may compute, beside those of :data:`COMPRESSED`.
        repeats: nodes that both halves may compute, beside those of :data:`REPEATED`.

    It is a minimum cut (as in torch's min-cut partitioner): a value is an edge with its bytes as capacity, from
    *computed in the forward* to *known to the backward*.
    """
    if not joint.training:
        return []
    late = tangent_dependent(joint)
    needed = needed_for([*joint.forward_outputs, *(n for n in joint.graph.nodes if mutates(n))], late)
    gradients = set(joint.gradients)
    flow = networkx.DiGraph()
    flow.add_nodes_from(("source", "sink"))
    before = [n for n in joint.graph.nodes if n not in late and n.op not in ("output", "get_attr")]
    for node in before:
        computed, known = (node, "computed"), (node, "known")
        flow.add_edge(computed, known, **_capacity(node, cost))
        repeated = is_repeated(node) or node in repeats
        fixed = node in early or node.target in COMPRESSED or EARLY in node.meta or is_random(node)
        if node.op == "placeholder" or (node in needed and not repeated) or fixed:
            flow.add_edge("source", computed)
        if node in gradients:
            flow.add_edge(known, "sink")
        for user in node.users:
            if user in late:
                flow.add_edge(known, "sink")
            elif user.op != "output":
                flow.add_edge(known, (user, "computed"))
                if not repeated:
                    # A user in the forward keeps its operand there: otherwise both halves would compute the operand.
                    flow.add_edge((user, "computed"), computed)
    _, (forward, _) = networkx.minimum_cut(flow, "source", "sink")
    return [n for n in before if (n, "computed") in forward and (n, "known") not in forward]


def halves_of(joint: JointGraph, saved: Iterable[fx.Node]) -> tuple[set[fx.Node], set[fx.Node]]:
    """The nodes that the forward computes and those that the backward does when ``saved`` crosses; some are in both."""
    saved, late = set(saved), tangent_dependent(joint)
    updates = [n for n in joint.graph.nodes if mutates(n)]
    forward = needed_for([*joint.forward_outputs, *saved, *(n for n in updates if n not in late)])
    backward = needed_for([*joint.gradients, *(n for n in updates if n in late)], saved)
    return forward, backward


def tangent_dependent(joint: JointGraph) -> set[fx.Node]:
    """The nodes that depend on a gradient and so can only run in the backward."""
    late = {p.node for p in joint.placeholders if p.kind == TANGENT}
    for node in joint.graph.nodes:
        if node.op != "output" and any(n in late for n in node.all_input_nodes):
            late.add(node)
    return late


def is_repeated(node: fx.Node) -> bool:
    """Whether both halves may compute a node."""
    return node.target in REPEATED or is_size(node)


def _is_compressed(node: fx.Node) -> bool:
    return any(u.target in COMPRESSED or (u.target in RESHAPES and _is_compressed(u)) for u in node.users)


def _capacity(node: fx.Node, cost: Cost | None) -> dict[str, int]:
    """The cost of saving a node.

    It is unlimited for a node with several results, which are saved one by one, for a buffer that is updated in
    place, which the backward would find changed, and for what is saved in fewer bits.
    """
    value = node.meta.get("val")
    if node.op == "placeholder":
        return {} if is_updated(node) else {"capacity": _HELD_BYTES}
    if isinstance(value, Tensor):
        if _is_compressed(node):
            return {}
        nbytes = cost(node) if cost is not None else None
        if nbytes is not None:
            return {"capacity": nbytes + (node.target in REPEATED)}
        # One byte more for a view: of a tensor and its view, the tensor is saved.
        return {"capacity": example_numel(value) * value.dtype.itemsize + (node.target in REPEATED)}
    return {"capacity": _SIZE_BYTES} if is_size(node) else {}
