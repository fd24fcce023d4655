"""Norms and other statistics of rows: exact, the backward computes from them and from a row what it else reads."""

from __future__ import annotations

from torch import fx

from gqc.joint import JointGraph
from gqc.passes.nodes import RESHAPES, aten, example_numel, inputs_of_values, is_float
from gqc.passes.pointwise_steps import step_of

FEWEST_VALUES = 16
"""A statistic is of at least so many values, so that it takes no more than these in 2 bits."""

_REDUCTIONS = frozenset(
    (
        *(aten.linalg_vector_norm.default, aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default),
        *(aten.var.correction, aten.std.correction, aten.logsumexp.default),
    )
)
_SUMS = (aten.add.Tensor, aten.sub.Tensor)
_SCALINGS = (aten.mul.Tensor, aten.div.Tensor)


def row_statistics(joint: JointGraph) -> set[fx.Node]:
    """The tensors that hold one value a row: reductions of rows, and what is computed from such values alone."""
    found: set[fx.Node] = set()
    for node in joint.graph.nodes:
        if node.op != "call_function" or not is_float(node):
            continue
        read = [n for n in inputs_of_values(node) if is_float(n)]
        if not read:
            continue
        if node.target in _REDUCTIONS:
            is_one = example_numel(read[0].meta["val"]) >= FEWEST_VALUES * example_numel(node.meta["val"])
        else:
            repeats = node.target in RESHAPES or node.target is aten.expand.default or step_of(node) is not None
            is_one = repeats and all(n in found for n in read)
        if is_one:
            found.add(node)
    return found


def sums_and_scalings(joint: JointGraph, statistics: set[fx.Node]) -> set[fx.Node]:
    """Sums of tensors and products of rows with such values, which take no longer than what decompresses the result."""
    found = set()
    for node in joint.graph.nodes:
        if node.op == "call_function" and is_float(node) and node not in statistics:
            read = [n for n in inputs_of_values(node) if n not in statistics]
            if node.target in _SUMS or (node.target in _SCALINGS and len(read) == 1 and node.args[0] is read[0]):
                found.add(node)
    return found
