"""Every decision of the passes with the place in the model that it is about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gqc.dump.snapshot import NodeRecord, Snapshot

_REPLACES = re.compile(r"_(int8|out|masked|gqc|fused)(_\d+)?$")
_HOLDS = re.compile(r"_(quantized|int8|scale)(_\d+)?$")
"""What passes append to the name of a node that they replace, and to that of a tensor of which they make a copy."""


EXPLAINED = {
    "output layer": "The softmax of the loss reads this layer and would magnify its rounding errors (Tango, section "
    "3.3). Policy(keep_output_layer=False) quantizes it.",
    "attention logits": "The exponential of the edge softmax makes an error of a logit a factor of an attention "
    'weight. Policy(attention_logits="int8") quantizes them.',
    "softmax runs in full precision": "An exponential magnifies rounding errors.",
}
"""More about a rule that keeps a primitive in full precision, by what its reasons start with."""


def reasons(snapshots: Sequence[Snapshot]) -> list[dict[str, Any]]:
    """One entry a decision, in the order in which they were taken.

    Keys: ``pass``, ``node``, ``node_after`` (its name in the graph that runs, ``None`` if it is gone), ``module``,
    ``line``, ``half``, ``kind``, ``action``, ``reason``.
    """
    after = _names_after(snapshots[-1])
    lines: dict[str, str] = {}
    entries = []
    for snapshot in snapshots:
        lines |= {n.name: n.line for n in snapshot.nodes}
        for d in snapshot.report.decisions:
            line = lines.get(d.node, "")
            entry = {"pass": snapshot.report.name, "node": d.node, "node_after": after.get(d.node)}
            entry |= {
                "module": d.module,
                "line": line,
                "half": d.half,
                "kind": d.primitive,
                "action": d.action,
                "reason": d.reason,
            }
            entries.append(entry)
    return entries


def about(node: NodeRecord, entries: Sequence[dict[str, Any]]) -> list[int]:
    """Positions of the entries about a node, or about the node that it replaces."""
    copied = _HOLDS.sub("", node.name) if not node.kind else node.name
    names = {node.name, copied} if copied != node.name else _names_before(node)
    return [i for i, entry in enumerate(entries) if entry["node"] in names]


def _names_before(node: NodeRecord) -> set[str]:
    """The name of a node and of those that it has replaced."""
    names = {node.name}
    while names != (names := names | {_REPLACES.sub("", name) for name in names}):
        pass
    return names


def _names_after(last: Snapshot) -> dict[str, str]:
    """For each name that a node has had, the name of the node that stands for it in the end."""
    after: dict[str, str] = {}
    for node in sorted(last.nodes, key=lambda n: not n.kind):  # a primitive before the getitem of its result
        for name in _names_before(node):
            after.setdefault(name, node.name)
    return after | {node.name: node.name for node in last.nodes}
