"""Place what reads one int8 copy together."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator

from torch import fx

from gqc.joint import JointGraph
from gqc.passes.computation_graph import CAST, derivation
from gqc.passes.int8_copies import QUANTIZE, copied, copies_and_readers
from gqc.passes.nodes import half, is_random, is_size, mutates, origin
from gqc.passes.primitive import mark, ops
from gqc.passes.report import MOVED, Decision, Report
from gqc.policy import Policy

_LIGHT = (*QUANTIZE, ops.unpack_int4.default, ops.absmax.default, operator.getitem)


def schedule(joint: JointGraph, policy: Policy) -> Report:
    """Order the readers of one int8 copy next to each other, so that it is in the cache when the next one reads it.

    Requires: the int8 copies as :func:`share_quantized` leaves them.
    Does: moves a reader over other work up to the one before it in the same half, if all that it still waits for is
        int8 copies of tensors that are there, views and sizes. Other work is not pulled forward, because its results
        would wait in memory; those of the reader do.
    Ensures: every node runs after what it reads. Nothing crosses an in-place update, and random ops keep their order,
        so every value stays the same.
    """
    report = Report("schedule")
    siblings = _siblings(joint)
    for segment in segments(joint):
        placed = Order(segment)
        for node in segment:
            placed.place(node)
            for sibling, copy in siblings.get(node, ()):
                if not placed.waits(sibling) or not all(map(_is_light, placed.missing(sibling))):
                    continue
                between = segment[segment.index(node) + 1 : segment.index(sibling)]
                if any(placed.waits(n) and not _is_light(n) for n in between):
                    placed.place(sibling)
                    report.decisions.append(_decision(sibling, node, copy))
        anchor = segment[-1].next
        for node in placed.order:
            anchor.prepend(node)
    return report


def _siblings(joint: JointGraph) -> dict[fx.Node, list[tuple[fx.Node, fx.Node]]]:
    """For each reader of an int8 copy the later readers in its half, with the tensor that is copied."""
    found: dict[fx.Node, list[tuple[fx.Node, fx.Node]]] = {}
    for copy, readers in copies_and_readers(joint).items():
        for i, reader in enumerate(readers):
            later = [(r, copied(copy)) for r in readers[i + 1 :] if half(r) == half(reader)]
            found.setdefault(reader, []).extend(later)  # type: ignore[arg-type]
    return found


def segments(joint: JointGraph) -> Iterator[list[fx.Node]]:
    """The runs of calls between in-place updates; constants of the graph may stand among them."""
    segment: list[fx.Node] = []
    for node in list(joint.graph.nodes):
        if node.op == "call_function" and not mutates(node):
            segment.append(node)
        elif node.op != "get_attr" and segment:
            yield segment
            segment = []


def sort(joint: JointGraph) -> None:
    """Put every node behind what it reads; random ops and updates keep their order."""
    for segment in segments(joint):
        order = Order(segment)
        for node in segment:
            order.place(node)
        anchor = segment[-1].next
        for node in order.order:
            anchor.prepend(node)


class Order:
    """A new order of a segment, which grows node by node."""

    def __init__(self, segment: Iterable[fx.Node]) -> None:
        self.order: list[fx.Node] = []
        self._waiting = set(segment)
        random = [node for node in segment if is_random(node)]
        self._before = dict(zip(random[1:], random[:-1], strict=True))

    def waits(self, node: fx.Node) -> bool:
        """Whether a node belongs to the segment and is not placed yet."""
        return node in self._waiting

    def missing(self, node: fx.Node) -> list[fx.Node]:
        """What must be placed before a node, each after what it reads itself."""
        found: dict[fx.Node, None] = {}

        def visit(needed: fx.Node) -> None:
            if needed in self._waiting and needed not in found:
                for before in self._needs(needed):
                    visit(before)
                found[needed] = None

        for needed in self._needs(node):
            visit(needed)
        return list(found)

    def place(self, node: fx.Node) -> None:
        """Place a node and what it needs, unless it is placed."""
        if node in self._waiting:
            for placed in (*self.missing(node), node):
                self._waiting.remove(placed)
                self.order.append(placed)

    def _needs(self, node: fx.Node) -> list[fx.Node]:
        return node.all_input_nodes + ([self._before[node]] if node in self._before else [])


def _is_light(node: fx.Node) -> bool:
    derived = derivation(node)
    return node.target in _LIGHT or is_size(node) or (derived is not None and derived[0] != CAST)


def _decision(node: fx.Node, sibling: fx.Node, copy: fx.Node) -> Decision:
    primitive = mark(node)
    kind = primitive.kind if primitive is not None else "operator"
    reason = f"beside {sibling.name}, which reads the int8 copy of {copy.name} too"
    return Decision(node.name, origin(node).module, kind, half(node), MOVED, reason)
