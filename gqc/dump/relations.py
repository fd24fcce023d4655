"""Which placeholders of a graph are together a relation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from gqc.runtime.relation import reverse

_LENGTH = 8


@dataclass(frozen=True)
class NamedRelation:
    """Eight placeholders that form a relation (docs/architecture.md, section Relations).

    Attributes:
        name: ``"g0"``, ``"g1"``, ... in the order in which the graph reads them.
        nodes: the placeholders.
    """

    name: str
    nodes: tuple[fx.Node, ...]


def find_relations(graph: fx.Graph) -> list[NamedRelation]:
    """The relations that ops of the graph take as an argument; a relation and its reverse count once."""
    found: list[NamedRelation] = []
    for node in graph.nodes:
        for argument in node.args:
            if is_relation(argument) and not any(set(argument) & set(known.nodes) for known in found):
                found.append(NamedRelation(f"g{len(found)}", tuple(argument)))
    return found


def is_relation(argument: object) -> bool:
    """Whether an argument of an op is a relation made of placeholders."""
    return (
        isinstance(argument, list | tuple)
        and len(argument) == _LENGTH
        and all(isinstance(n, fx.Node) and n.op == "placeholder" for n in argument)
    )


def reversed_nodes(relation: NamedRelation) -> list[fx.Node]:
    """The placeholders in the order of the reversed relation."""
    return reverse(relation.nodes)  # type: ignore[arg-type,return-value]
