"""Python text that makes random inputs for a graph, of the sizes at the example call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx

from gqc.dump.index_bounds import index_bound, run_lengths
from gqc.dump.relations import NamedRelation
from gqc.dump.source import identifier
from gqc.joint import BUFFER, SEED, JointGraph
from gqc.passes.nodes import example
from gqc.runtime.relation import num_dst, num_edges, num_src

RANDOM_RELATION = '''
def random_relation(num_src, num_dst, num_edges, dtype):
    """The eight tensors of a random graph; see docs/architecture.md of gqc, section Relations."""
    src = torch.randint(num_src, (num_edges,), dtype=dtype)
    dst = torch.randint(num_dst, (num_edges,), dtype=dtype)
    return ops.relation(src, dst, num_src, num_dst)
'''


def example_inputs(joint: JointGraph, relations: Sequence[NamedRelation]) -> list[str]:
    """The lines of a function that returns a dict of random inputs, one for every placeholder.

    Relations are valid graphs, and integers that index something stay in its range.
    """
    lines = ["def example_inputs():"]
    if relations:
        lines.insert(0, RANDOM_RELATION.strip("\n") + "\n\n")
    parts: dict[fx.Node, str] = {}
    for relation in relations:
        values = [n.meta["val"] for n in relation.nodes]
        counts = ", ".join(str(example(count(values))) for count in (num_src, num_dst, num_edges))
        lines.append(f"    {relation.name} = random_relation({counts}, {values[0].dtype})")
        parts |= {node: f"{relation.name}[{i}]" for i, node in enumerate(relation.nodes)}
    lines.append("    return {")
    for placeholder in joint.placeholders:
        node = placeholder.node
        text = parts.get(node) or _random(node, placeholder.kind)
        lines.append(f'        "{identifier(node.name)}": {text},')
    return [*lines, "    }"]


def _random(node: fx.Node, kind: str) -> str:
    value = node.meta["val"]
    if not isinstance(value, Tensor):
        return str(example(value))
    if kind == SEED:
        return "torch.tensor([0, 0])"
    shape = str(tuple(example(size) for size in value.shape))
    dtype = value.dtype
    if dtype.is_floating_point or dtype.is_complex:
        draw = "rand" if kind == BUFFER and not dtype.is_complex else "randn"  # a variance must not be negative
        suffix = "" if dtype is torch.float32 else f", dtype={dtype}"
        return f"torch.{draw}({shape}{suffix})"
    if dtype is torch.bool:
        return f"torch.rand({shape}) < 0.5"
    lengths = run_lengths(node)
    if lengths is not None:
        rows, runs = lengths
        return f"torch.tensor({[rows // runs + (i < rows % runs) for i in range(runs)]}, dtype={dtype})"
    bound = index_bound(node)
    return f"torch.randint({bound}, {shape}, dtype={dtype})" if bound else f"torch.zeros({shape}, dtype={dtype})"
