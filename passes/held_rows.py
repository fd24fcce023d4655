"""Rows of a table that the caller holds: the backward gathers them again."""

from __future__ import annotations

from torch import fx

from gqc.passes.nodes import aten, call, is_updated, source
from gqc.passes.primitive import ops

_TABLE_AND_INDEX = {aten.embedding.default: (0, 1), aten.index_select.default: (0, 2)}


def table_and_index(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The parameter or input, that no update changes, of which a node selects rows, and their numbers."""
    if node.target not in _TABLE_AND_INDEX or (node.target is aten.index_select.default and node.args[1] != 0):
        return None
    table, index = (node.args[place] for place in _TABLE_AND_INDEX[node.target])
    return (table, index) if table.op == "placeholder" and not is_updated(table) else None  # type: ignore


def gathers_held_rows(node: fx.Node) -> bool:
    """Whether a node selects rows of a parameter or input, that no update changes, by an index that is an input."""
    found = table_and_index(node)
    return found is not None and source(found[1])[0].op == "placeholder"


def gather_again(node: fx.Node, reader: fx.Node) -> fx.Node:
    """The same rows once more, in the backward, before a reader."""
    table, index = table_and_index(node)  # type: ignore[misc]
    with node.graph.inserting_before(reader):
        again = call(ops.gather_rows.default, (table, index), node, f"{node.name}_again")
    again.meta["partitioner_tag"] = "is_backward"
    return again
