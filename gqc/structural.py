"""Which part of a captured graph depends on the graph structure alone.

Degrees, normalisation coefficients, self-loops and sorted edges are functions of integer tensors that stay the same
from step to step. They need no gradient, so they are computed before the stages and kept while their inputs live.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from gqc.capture.islands import Island


def structural_nodes(captured: fx.GraphModule, inputs: Sequence[Tensor]) -> list[fx.Node]:
    """The calls that depend on integer arguments only and neither write to a tensor nor draw random numbers.

    Args:
        captured: a captured graph.
        inputs: the real tensors of the call that it was captured on, one a placeholder.
    """
    written = _written_memory(captured.graph)
    values = dict(zip(captured.graph.find_nodes(op="placeholder"), inputs, strict=True))
    known = {node: value for node, value in values.items() if not value.is_floating_point() and not value.is_complex()}
    calls: list[fx.Node] = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for node in captured.graph.nodes:
            if _may_be_structural(node, known, written):
                before = torch.get_rng_state()
                value = _run(node, known)
                if torch.equal(before, torch.get_rng_state()):
                    known[node] = value
                    calls.append(node)
    return calls


def _may_be_structural(node: fx.Node, known: dict[fx.Node, Tensor], written: set[int]) -> bool:
    if node.op not in ("call_function", "call_method") or node.meta.get("writes"):
        return False
    if isinstance(node.target, Island) and not node.target.pure:
        return False
    sources = node.all_input_nodes
    return bool(sources) and all(s in known for s in sources) and written.isdisjoint(_memory(node))


def _run(node: fx.Node, known: dict[fx.Node, Tensor]) -> Tensor:
    args = fx.map_arg(node.args, known.__getitem__)
    kwargs = fx.map_arg(node.kwargs, known.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], node.target)(*args[1:], **kwargs)  # type: ignore[arg-type]
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _written_memory(graph: fx.Graph) -> set[int]:
    """Memory that some call changes; which operand of the call it is does not matter here."""
    return {
        m for node in graph.nodes if node.meta.get("writes") for source in node.all_input_nodes for m in _memory(source)
    }


def _memory(node: fx.Node) -> set[int]:
    """Identities of the memory behind a node's fake result."""
    tensors = pytree.tree_leaves(node.meta.get("val"))
    return {t.untyped_storage()._cdata for t in tensors if isinstance(t, Tensor)}
