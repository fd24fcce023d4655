"""Forward and backward of a captured graph as one torch.fx graph.

AOTAutograd differentiates the captured graph and gives back one graph of aten and gqc ops that holds the forward, the
backward and the in-place updates of buffers. Every use of torch's private modules for this is in this file.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._functorch._aot_autograd import descriptors
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.utils._pytree import tree_leaves

from gqc.errors import GqcError

if TYPE_CHECKING:
    from gqc.passes.choose_bits import BitRule

PARAMETER, BUFFER, INPUT, TANGENT, SEED = "parameter", "buffer", "input", "tangent", "seed"


@dataclass(frozen=True)
class Placeholder:
    """The meaning of one placeholder of a joint graph.

    Attributes:
        node: the placeholder in the graph.
        kind: ``"parameter"``, ``"buffer"``, ``"input"``, ``"tangent"`` (the gradient of an output) or ``"seed"``.
        name: dotted name of a parameter or buffer, ``""`` otherwise.
        index: position of an input among the captured graph's placeholders, or of the output that a tangent belongs to.
    """

    node: fx.Node
    kind: str
    name: str = ""
    index: int = -1


@dataclass
class JointGraph:
    """One graph of forward and backward, which the passes rewrite.

    The graph's output is a flat list: ``num_forward_outputs`` outputs of the model, then one gradient or ``None``
    for every entry of ``gradient_of``.

    Attributes:
        module: the graph; backward nodes carry ``meta["partitioner_tag"] == "is_backward"``.
        placeholders: what each placeholder means, in graph order.
        num_forward_outputs: how many outputs belong to the forward.
        gradient_of: the placeholder nodes to which the gradients after the forward outputs belong.
        model_outputs: positions of the forward outputs from which the model's output is reached without another
            primitive; ``None``: all. What a stage before an eager island gives need not be among them.
        bit_rule: what ``Policy.bits="auto"`` decided for the model on the call that is compiled.
        saved_widths: bits and reason by name of a saved tensor, as ``save_bits="auto"`` decided on that call.
        training: whether the graph has a backward.
    """

    module: fx.GraphModule
    placeholders: list[Placeholder]
    num_forward_outputs: int
    gradient_of: list[fx.Node] = field(default_factory=list)
    model_outputs: frozenset[int] | None = None
    bit_rule: BitRule | None = None
    saved_widths: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def graph(self) -> fx.Graph:
        return self.module.graph

    @property
    def training(self) -> bool:
        return bool(self.gradient_of)

    @property
    def output(self) -> fx.Node:
        return next(iter(self.graph.find_nodes(op="output")))

    @property
    def forward_outputs(self) -> list[fx.Node | None]:
        """What the forward returns."""
        return self._results[: self.num_forward_outputs]

    @property
    def gradients(self) -> list[fx.Node | None]:
        """The gradients of ``gradient_of``, ``None`` where there is none."""
        return self._results[self.num_forward_outputs :]

    @property
    def _results(self) -> list[fx.Node | None]:
        return tree_leaves(self.output.args[0])

    def seed(self) -> fx.Node:
        """The int64 tensor ``[number drawn for the step, step]`` that keys stochastic rounding; added on first use."""
        for placeholder in self.placeholders:
            if placeholder.kind == SEED:
                return placeholder.node
        primals = [p.node for p in self.placeholders if p.kind != TANGENT]
        with self.graph.inserting_after(primals[-1]) if primals else self.graph.inserting_before():
            node = self.graph.placeholder("seed")
        node.target = node.name  # a parameter may be called seed, too
        with self._fake_mode():
            node.meta["val"] = torch.zeros(2, dtype=torch.int64, device=self.device)
        node.meta["partitioner_tag"] = "is_forward"
        self.placeholders.insert(len(primals), Placeholder(node, SEED))
        return node

    @property
    def device(self) -> torch.device:
        """Where it computes: the CPU only if no argument lies elsewhere."""
        devices = [p.node.meta["val"].device for p in self.placeholders if isinstance(p.node.meta["val"], torch.Tensor)]
        return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))

    def _fake_mode(self) -> Any:
        for node in self.graph.nodes:
            mode = getattr(node.meta.get("val"), "fake_mode", None)
            if mode is not None:
                return mode
        raise GqcError("the joint graph holds no tensor")


def build_joint(graph: fx.GraphModule, fakes: Sequence[Any]) -> JointGraph:
    """Differentiate a captured graph.

    Args:
        graph: captured graph; its parameters and buffers are real tensors, its output is a flat tuple.
        fakes: one fake tensor a placeholder with symbolic sizes; ``requires_grad`` says whether its gradient is wanted.

    Grad mode and autocast are those of the calling thread: without grad mode the result has no backward, and casts of
    an active autocast become nodes of the graph.

    Raises:
        GqcError: torch returned a joint graph in a form that this version of gqc does not know.
    """
    joint = _export(graph, fakes)
    if joint is None:
        joint = _export(_with_cloned_outputs(graph), fakes)
    if joint is None:
        raise GqcError(
            f"torch {torch.__version__} describes an output of the joint graph in an unknown way; "
            "run the model without gqc.compile and report its forward"
        )
    return joint


def _export(graph: fx.GraphModule, fakes: Sequence[Any]) -> JointGraph | None:
    """The joint graph, or None if outputs alias inputs or one another, which a flat graph cannot express."""
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = aot_export_joint_with_descriptors(stack, graph, tuple(fakes), keep_inference_input_mutations=True)
    module = _renumbered(exported.graph_module)
    output = next(iter(module.graph.find_nodes(op="output")))
    described = list(zip(output.args[0], output.meta["desc"], strict=True))  # type: ignore[arg-type]
    forward = [d for _, d in described if not isinstance(d, descriptors.GradAOTOutput) and d is not None]
    if not all(isinstance(d, descriptors.PlainAOTOutput) for d in forward) or _aliases(exported):
        return None
    placeholders = [_meaning(node) for node in module.graph.find_nodes(op="placeholder")]
    for placeholder in placeholders:
        _name(placeholder)
    training = any(p.kind == TANGENT for p in placeholders)
    gradient_of = [p.node for p in placeholders if p.kind != TANGENT] if training else []
    if len(described) - len(forward) != len(gradient_of):
        raise GqcError(
            f"torch {torch.__version__}: the joint graph has {len(described)} outputs, which gqc cannot match"
        )
    return JointGraph(module, placeholders, len(forward), gradient_of)


def _renumbered(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph with the nodes of each name numbered from 0 in graph order.

    Torch's own numbers count nodes that it has dropped again, so they differ from one release of torch to the next.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        args, kwargs = fx.map_arg((node.args, node.kwargs), copies.__getitem__)
        name = node.name if node.op == "placeholder" else re.sub(r"_\d+$", "", node.name)
        copies[node] = graph.create_node(node.op, node.target, args, kwargs, name, node.type)
        copies[node].meta = node.meta
    return fx.GraphModule(module, graph)


def _aliases(exported: Any) -> bool:
    metadata = exported._aot_state.fw_metadata
    return bool(metadata.aliased_out_indices) or metadata.num_mutated_inp_runtime_indices > 0


def _meaning(node: fx.Node) -> Placeholder:
    desc = node.meta["desc"]
    if isinstance(desc, descriptors.ParamAOTInput):
        return Placeholder(node, PARAMETER, name=desc.target)
    if isinstance(desc, descriptors.BufferAOTInput):
        return Placeholder(node, BUFFER, name=desc.target)
    if isinstance(desc, descriptors.PlainAOTInput):
        return Placeholder(node, INPUT, index=desc.idx)
    if isinstance(desc, descriptors.TangentAOTInput) and isinstance(desc.output, descriptors.PlainAOTOutput):
        return Placeholder(node, TANGENT, index=desc.output.idx)
    raise GqcError(
        f"torch {torch.__version__} describes input {node.name} of the joint graph as {desc}, unknown to gqc"
    )


def _name(placeholder: Placeholder) -> None:
    """Name a placeholder after its meaning, for those who read the graph or a report."""
    meaning = placeholder.name.replace(".", "_") or f"{placeholder.kind}_{placeholder.index}"
    placeholder.node._rename(meaning)
    placeholder.node.target = placeholder.node.name


def _with_cloned_outputs(graph: fx.GraphModule) -> fx.GraphModule:
    copied = fx.Graph()
    outputs = copied.graph_copy(graph.graph, {})
    copied.output(tuple(copied.call_function(_own, (o,)) if isinstance(o, fx.Node) else o for o in outputs))
    return fx.GraphModule(graph, copied)


def _own(output: Any) -> Any:
    return output.clone() if isinstance(output, torch.Tensor) else output
