"""What the passes share that fuse products with the steps around them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from gqc.joint import JointGraph
from gqc.passes.nodes import call, half, mutates, origin
from gqc.passes.primitive import mark
from gqc.passes.report import UNFUSED, Decision, Report

MOST_CONTRACTED = 512
"""With more contracted indices a second product takes longer than writing and reading the float matrix."""

MOST_CONTRACTED_FLOATS = 128
"""The same for a product of float matrices, which takes longer."""


@dataclass
class ProductFusion:
    """Rewrites the products of a joint graph and says why.

    Attributes:
        joint: the graph.
        report: gets a decision for each product that is fused, and for those that look alike and are not.
    """

    joint: JointGraph
    report: Report

    def fused(self, target: Any, arguments: tuple[Any, ...], product: fx.Node, name: str) -> fx.Node:
        """Add the fused form of a product at the insertion point; what was said of the product is said of it."""
        fused = call(target, arguments, product, name)
        fused.meta["gqc"] = mark(product)
        decisions = self.report.decisions
        decisions[:] = [replace(d, node=fused.name) if d.node == product.name else d for d in decisions]
        return fused

    def updates_between(self, first: fx.Node, last: fx.Node) -> bool:
        """Whether the graph updates anything in place between two nodes, which then stay where they are."""
        node = first
        while node is not last:
            node = node.next
            if node.op == "call_function" and mutates(node):
                self.say(first, UNFUSED, f"{node.name} updates a tensor in place before {last.name}")
                return True
        return False

    def say(self, node: fx.Node, action: str, reason: str) -> None:
        """Report a decision."""
        primitive = mark(node)
        kind = primitive.kind if primitive is not None else "tensor"
        self.report.decisions.append(Decision(node.name, origin(node).module, kind, half(node), action, reason))

    def sort_decisions(self) -> None:
        """Put the decisions in the order of the graph."""
        order = {node.name: i for i, node in enumerate(self.joint.graph.nodes)}
        self.report.decisions.sort(key=lambda d: order.get(d.node, 0))
