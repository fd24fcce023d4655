"""Which tensors are never compressed, and why."""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import Tensor, fx

from gqc.joint import BUFFER, PARAMETER, JointGraph
from gqc.passes.compressed_rows import FLOATS, Rows
from gqc.passes.nodes import IDENTITIES, RESHAPES, aten, example_numel, is_random, is_size, source
from gqc.passes.saved_values import tangent_dependent
from gqc.passes.saving_modules import asked_bits
from gqc.save_bits import SaveBits

AS_THEY_ARE = 32
"""Width that leaves the tensors of a module as they are."""

EXACT_STATISTIC = "a value for each row; from it and the row the backward computes what would be saved too"

_CARRY = RESHAPES | IDENTITIES | {aten._to_copy.default, aten.expand.default}


class KeptAsIs:
    """Why tensors of a joint graph stay as they are under an option.

    Args:
        joint: forward and backward.
        saves: the option.
        exact: statistics of rows that stay as they are.
    """

    def __init__(self, joint: JointGraph, saves: SaveBits, exact: Container[fx.Node] = ()) -> None:
        self._exact = exact
        self._saves, self._late = saves, tangent_dependent(joint)
        self._results = {node for node in joint.forward_outputs if node is not None}
        self._gradients = {node for node in joint.gradients if node is not None}
        self._held = {p.node: f"{p.kind} {p.name}" for p in joint.placeholders if p.kind in (PARAMETER, BUFFER)}
        self._of_floats = _of_floats(joint)
        self._found: dict[fx.Node, str | None] = {}

    def reason(self, node: fx.Node) -> str | None:
        """Why a value is saved as it is; ``None``: it is compressed."""
        if node not in self._found:
            self._found[node] = self._reason(node)
        return self._found[node]

    def _reason(self, node: fx.Node) -> str | None:
        node = source(node)[0]
        value = node.meta.get("val")
        if node.op != "call_function":
            return "the caller holds it"
        if not isinstance(value, Tensor):
            return "a size"
        if not (value.is_floating_point() or value.is_complex()):
            return "a mask" if value.dtype is torch.bool else "integers"
        if node in self._results:
            return "an output of the model, which the caller holds"
        if node in self._gradients:
            return "it is a gradient itself"
        if value.dtype not in FLOATS:
            return f"{str(value.dtype).removeprefix('torch.')} is not compressed"
        if value.dim() == 0:
            return "a scalar"
        if node in self._exact:
            return EXACT_STATISTIC
        return self._made_of(node) or self._gains_nothing(node, value)

    def _made_of(self, node: fx.Node) -> str | None:
        if node not in self._of_floats:
            return "made of graph structure alone"
        while node.op == "call_function" and node.target in _CARRY:
            node = node.args[0]  # type: ignore[assignment]
        return f"values of {self._held[node]}" if node in self._held else None

    def _gains_nothing(self, node: fx.Node, value: Tensor) -> str | None:
        count, saves = example_numel(value), self._saves
        if count < saves.min_size:
            return f"{count:,} elements are fewer than min_size={saves.min_size:,}"
        entry, bits = asked_bits(node, saves, self._late)
        if bits == AS_THEY_ARE:
            return "no entry of save_bits covers its module" if entry is None else f"save_bits[{entry!r}]={bits}"
        if Rows.of(bits, saves, value).nbytes(value) >= count * value.dtype.itemsize:
            return f"{bits} bits and the ranges of its rows take as much"
        return None


def _of_floats(joint: JointGraph) -> set[fx.Node]:
    """The nodes that depend on a float tensor which is given, or on random numbers."""
    found: set[fx.Node] = set()
    for node in joint.graph.nodes:
        value = node.meta.get("val")
        given = node.op in ("placeholder", "get_attr") and isinstance(value, Tensor) and value.is_floating_point()
        if given or is_random(node) or any(n in found for n in node.all_input_nodes if not is_size(n)):
            found.add(node)
    return found
