"""Which primitives form the layer that computes the model's output."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import fx

from gqc.joint import INPUT, JointGraph
from gqc.passes.nodes import FORWARD, IDENTITIES, RESHAPES, aten, inputs_of_values, origin
from gqc.passes.primitive import EDGE_SOFTMAX, GEMM, SDDMM, SPMM, mark

_SCALINGS = frozenset(
    {
        aten.mul.Tensor,
        aten.mul.Scalar,
        aten.div.Tensor,
        aten.div.Scalar,
        aten.add.Tensor,
        aten.sub.Tensor,
        aten.neg.default,
    }
)


def output_layer(joint: JointGraph) -> dict[fx.Node, str]:
    """The forward primitives of the output layer, each with the reason why it belongs there.

    - A *last* primitive is one from which an output of the model is reached with no further primitive between.
    - Its layer is the innermost module around it that itself runs graph primitives (``conv2`` for the GEMM of
      ``conv2.fc``), else the module that made the call. The layer's other primitives belong to the output layer
      if nothing of another module lies between, so an earlier call of a shared layer does not.
    - The model itself is no layer, nor is a module that runs several rounds of message passing (an SPMM feeds a GEMM
      that feeds an SPMM): there only the last primitive and, where it is an SPMM, the GEMM that feeds it belong.
    """
    layers = _modules_with_graph_primitives(joint)
    members: dict[fx.Node, str] = {}
    for last in nearest_primitives(_model_outputs(joint)):
        if mark(last).kind == EDGE_SOFTMAX:  # type: ignore[union-attr]
            continue
        members[last] = "output layer: no primitive follows"
        layer = _layer(origin(last).module, layers)
        others = _members(last, layer) if layer else None
        if others is None:
            others, where = _feeding_gemm(last), f"it feeds {last.name}"
        else:
            where = f"same layer as {last.name}"
        for node in others:
            members.setdefault(node, f"output layer: {where}")
    return members


def inputs_behind_outputs(joint: JointGraph) -> list[int]:
    """The :attr:`Placeholder.index` of inputs from which an output of the model is reached without a primitive."""
    seen = _walk_back(_model_outputs(joint), lambda node: True)
    return [p.index for p in joint.placeholders if p.kind == INPUT and p.node in seen]


def nearest_primitives(ends: Iterable[fx.Node], passes: Callable[[fx.Node], bool] = lambda node: True) -> list[fx.Node]:
    """The primitives met first on every way back from ``ends`` through nodes that ``passes`` lets through."""
    return [node for node in _walk_back(ends, passes) if mark(node) is not None]


def _model_outputs(joint: JointGraph) -> list[fx.Node]:
    outputs = joint.forward_outputs
    ours = range(len(outputs)) if joint.model_outputs is None else sorted(joint.model_outputs)
    return [outputs[i] for i in ours if isinstance(outputs[i], fx.Node)]  # type: ignore[misc]


def _walk_back(ends: Iterable[fx.Node], passes: Callable[[fx.Node], bool]) -> list[fx.Node]:
    """The nodes on the ways back from ``ends`` up to the first primitives, these included."""
    seen: dict[fx.Node, None] = {}
    stack = list(ends)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen[node] = None
        if mark(node) is None and passes(node):
            stack.extend(inputs_of_values(node))
    return list(seen)


def _modules_with_graph_primitives(joint: JointGraph) -> set[str]:
    graph_kinds = (SPMM, SDDMM, EDGE_SOFTMAX)
    marks = ((n, mark(n)) for n in joint.graph.nodes)
    return {origin(n).module for n, m in marks if m is not None and m.half == FORWARD and m.kind in graph_kinds}


def _layer(module: str, layers: set[str]) -> str:
    """The layer of a call made by ``module``, ``""`` if that is the model itself."""
    parts = module.split(".")
    around = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((m for m in around if m in layers), module)


def _members(last: fx.Node, layer: str) -> list[fx.Node] | None:
    """The primitives behind ``last`` that its layer runs; ``None`` if the layer runs several rounds."""
    start, in_aggregation, behind_aggregation = 0, 1, 2
    found: dict[fx.Node, None] = {}
    seen: set[tuple[fx.Node, int]] = set()
    stack = [(last, start)]
    while stack:
        node, phase = stack.pop()
        if (node, phase) in seen:
            continue
        seen.add((node, phase))
        primitive = mark(node)
        if primitive is not None:
            found[node] = None
            if primitive.kind == SPMM:
                if phase == behind_aggregation:
                    return None
                phase = in_aggregation
            elif primitive.kind == GEMM and phase == in_aggregation:
                phase = behind_aggregation
        stack.extend((n, phase) for n in inputs_of_values(node) if _inside(n, layer))
    found.pop(last)
    return list(found)


def _inside(node: fx.Node, layer: str) -> bool:
    module = origin(node).module
    recorded = bool(node.meta.get("custom"))
    return node.op == "call_function" and (not recorded or module == layer or module.startswith(f"{layer}."))


def _feeding_gemm(last: fx.Node) -> list[fx.Node]:
    if mark(last).kind != SPMM:  # type: ignore[union-attr]
        return []
    scaling = RESHAPES | IDENTITIES | _SCALINGS
    near = nearest_primitives(inputs_of_values(last), lambda node: node.target in scaling)
    return [n for n in near if mark(n).kind == GEMM]  # type: ignore[union-attr]
