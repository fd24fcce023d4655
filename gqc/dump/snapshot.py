"""What a graph looks like at one moment; the passes change the graph itself in place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor, fx

from gqc.dump.precision import precision
from gqc.dump.relations import NamedRelation
from gqc.dump.scale import Scale
from gqc.dump.sizes import SizeNames
from gqc.dump.source import Source, identifier
from gqc.joint import BUFFER, INPUT, PARAMETER, SEED, TANGENT, JointGraph, Placeholder
from gqc.passes.int8_copies import is_copy, lifetimes
from gqc.passes.measure_saved import SAVED_BYTES
from gqc.passes.nodes import (
    BACKWARD,
    FORWARD,
    IDENTITIES,
    RESHAPES,
    aten,
    example,
    example_numel,
    half,
    is_size,
    mutates,
    needed_for,
    origin,
)
from gqc.passes.primitive import mark
from gqc.passes.report import Lifetime, Report
from gqc.passes.saved_values import choose_saved, describe

_GATHERS = {"index", "index_put", "index_select", "index_add", "gather", "scatter", "scatter_add", "scatter_reduce"}
_FLOATS = {"float32", "float64", "float16", "bfloat16"}

_GENERATED = re.compile(r"^torch_geometric(?:\.\w+)*\.(\w+)_\w{8}\.py")
"""Files that PyG writes for a conv; their names end in random letters."""

STRUCTURE = "structure"
"""What an input is called that is computed once a graph, in front of all stages."""

_MOVES = RESHAPES | IDENTITIES | {aten.expand.default, aten.slice.Tensor, aten.select.int}


class Place(NamedTuple):
    """Where in the model something is computed: dotted path and class of the module, and ``"file.py:12"``."""

    module: str
    layer: str
    line: str

    @classmethod
    def of(cls, node: fx.Node) -> Place:
        """The place that recorded a node; what is unknown is ``""``."""
        where, recorded = origin(node), node.meta.get("custom", {}).get("gqc", {})
        line = _GENERATED.sub(r"\1.py", recorded.get("line", ""))
        return cls(where.module, where.type, line)


@dataclass(frozen=True)
class NodeRecord:
    """One node.

    Attributes:
        name: the variable that holds it.
        op: what it computes, ``"aten.mm"``; ``"input"``, ``"parameter"``, ... of a placeholder.
        code: Python of the call; ``""`` for a placeholder.
        meaning: of a placeholder: ``"parameter conv1.weight"``.
        inputs: names of the nodes that it reads.
        type: dtype and shape with named sizes, ``"float32 [N, 64]"``, of each result.
        shape: the same at the example call, ``"[500, 64]"``.
        nbytes: memory of its results at the example call.
        half: ``"forward"`` or ``"backward"``.
        module, layer, line: where it comes from; dotted path, class and ``"file.py:12"``, each ``""`` if unknown.
        kind, form: of a primitive: ``"gemm"`` and ``"nt"``.
        kept: why a primitive stays in full precision.
        precision: one of the names of :mod:`gqc.dump.precision`.
        scale: of an int8 copy: how it gets its scale.
        plumbing: whether it computes nothing that a reader looks for: sizes, views, the results of one call.
    """

    name: str
    op: str
    code: str
    meaning: str
    inputs: tuple[str, ...]
    type: str
    shape: str
    nbytes: int
    half: str
    module: str
    layer: str
    line: str
    kind: str
    form: str
    kept: str
    precision: str
    scale: Scale | None
    plumbing: bool

    @property
    def primitive(self) -> str:
        """``"gemm nt"``; the form alone where it names the kind, as ``"edge_softmax_bwd"`` does."""
        return self.form if self.form.startswith(self.kind) else f"{self.kind} {self.form}"

    @property
    def is_gather(self) -> bool:
        """Whether it moves rows of floats by index with an op of PyTorch, outside any primitive."""
        name = self.op.removeprefix("aten.").partition(".")[0]
        return self.op.startswith("aten.") and name in _GATHERS and self.type.partition(" ")[0] in _FLOATS

    @property
    def is_placeholder(self) -> bool:
        return not self.code


@dataclass(frozen=True)
class SavedRecord:
    """A value that the forward would keep for the backward if the graph were partitioned now.

    Attributes:
        name: its node.
        type: dtype and shape, ``"size"`` for a number.
        nbytes: at the example call; 0 if the caller holds it anyway.
        held: whether the caller holds it: a parameter, buffer or input.
    """

    name: str
    type: str
    nbytes: int
    held: bool


@dataclass(frozen=True)
class Snapshot:
    """A joint graph after a pass.

    Attributes:
        report: what the pass decided.
        nodes: in graph order, without the output.
        outputs: what the forward returns; ``None`` for a constant.
        gradients: the placeholders that get a gradient, and their gradient.
        saved: what crosses from forward to backward.
        forward, backward: names of the nodes that run in each half; a few cheap ones run in both.
        constants: tensors that the graph holds itself.
        modules: what the nodes' code imports.
        signatures: of gqc's ops that the nodes' code calls.
        copies: the int8 copies of tensors, by the names that tensors and readers have now.
    """

    report: Report
    nodes: tuple[NodeRecord, ...]
    outputs: tuple[str | None, ...]
    gradients: dict[str, str]
    saved: tuple[SavedRecord, ...]
    forward: frozenset[str]
    backward: frozenset[str]
    constants: dict[str, Tensor] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    signatures: tuple[str, ...] = ()
    copies: tuple[Lifetime, ...] = ()

    @property
    def structure(self) -> list[NodeRecord]:
        """The inputs that are computed once a graph."""
        return [n for n in self.nodes if n.meaning == STRUCTURE]

    def record(self, name: str) -> NodeRecord:
        """A node by its name."""
        return next(n for n in self.nodes if n.name == name)


@dataclass(frozen=True)
class Names:
    """The names that stay the same from pass to pass.

    Attributes:
        relations: relations among the placeholders.
        sizes: of symbolic sizes.
        reads: for each input of the joint graph, the value of the model that it takes.
        structure: those values that are computed once a graph, with the place in the model that computes each.
    """

    relations: list[NamedRelation]
    sizes: SizeNames
    reads: Sequence[str]
    structure: Mapping[str, Place]

    def read(self, placeholder: Placeholder) -> str:
        """The value of the model that an input takes, ``""`` for other placeholders."""
        return (
            self.reads[placeholder.index] if placeholder.kind == INPUT and placeholder.index < len(self.reads) else ""
        )


def exact_bytes(snapshots: Sequence[Snapshot]) -> int | None:
    """What training in full precision would save, as :func:`gqc.passes.measure_saved` has it if it ran."""
    return next((s.report.numbers[SAVED_BYTES] for s in snapshots if SAVED_BYTES in s.report.numbers), None)


def take(joint: JointGraph, report: Report, names: Names) -> Snapshot:
    """Record a joint graph without changing it."""
    source = Source(names.relations)
    meanings = {p.node: p for p in joint.placeholders}
    calls = [n for n in joint.graph.nodes if n.op != "output"]
    records = tuple(_record(node, meanings.get(node), source, names) for node in calls)
    gradients = zip(joint.gradient_of, joint.gradients, strict=True) if joint.training else ()
    saved = choose_saved(joint)
    forward, backward = _halves(joint, saved)
    return Snapshot(
        report=report,
        nodes=records,
        outputs=tuple(identifier(n.name) if isinstance(n, fx.Node) else None for n in joint.forward_outputs),
        gradients={identifier(of.name): identifier(g.name) for of, g in gradients if isinstance(g, fx.Node)},
        saved=tuple(_saved(node, names.sizes) for node in saved),
        forward=frozenset(identifier(n.name) for n in forward),
        backward=frozenset(identifier(n.name) for n in backward),
        constants={
            identifier(n.name): value
            for n in joint.graph.find_nodes(op="get_attr")
            if isinstance(value := _attribute(joint.module, n.target), Tensor)
        },
        modules=tuple(sorted(source.modules - {"torch"})),
        signatures=tuple(source.signatures.values()),
        copies=tuple(map(_with_identifiers, lifetimes(joint))),
    )


def _with_identifiers(life: Lifetime) -> Lifetime:
    names = {key: identifier(getattr(life, key)) for key in ("tensor", "producer", "first_use", "last_use")}
    return replace(life, **names)


def _record(node: fx.Node, placeholder: Placeholder | None, source: Source, names: Names) -> NodeRecord:
    primitive, value = mark(node), node.meta.get("val")
    in_backward = placeholder.kind == TANGENT if placeholder is not None else half(node) == BACKWARD
    module, layer, line = Place.of(node) if placeholder is None else _place(placeholder, names)
    return NodeRecord(
        name=identifier(node.name),
        op=placeholder.kind if placeholder is not None else source.target(node.target).removesuffix(".default"),
        code="" if placeholder is not None else source.call(node),
        meaning=_meaning(placeholder, names) if placeholder is not None else "",
        inputs=tuple(identifier(n.name) for n in node.all_input_nodes),
        type=_type(value, names.sizes.shape),
        shape=_type(value, lambda shape: f"[{', '.join(str(example(size)) for size in shape)}]"),
        nbytes=_nbytes(value),
        half=BACKWARD if in_backward else FORWARD,
        module=module,
        layer=layer,
        line=line,
        kind=primitive.kind if primitive is not None else "",
        form=primitive.op if primitive is not None else "",
        kept=(primitive.kept or "") if primitive is not None else "",
        precision=precision(node, primitive),
        scale=Scale.of(node),
        plumbing=is_plumbing(node, names.relations),
    )


def _place(placeholder: Placeholder, names: Names) -> Place:
    if placeholder.kind in (PARAMETER, BUFFER):
        return Place(placeholder.name.rpartition(".")[0], "", "")
    return names.structure.get(names.read(placeholder), Place("", "", ""))


def _meaning(placeholder: Placeholder, names: Names) -> str:
    if placeholder.kind in (PARAMETER, BUFFER):
        return f"{placeholder.kind} {placeholder.name}"
    if placeholder.kind == INPUT:
        read = names.read(placeholder)
        return STRUCTURE if read in names.structure else f"input {read}".rstrip()
    if placeholder.kind == TANGENT:
        return f"gradient of output {placeholder.index}"
    return "seed of the step" if placeholder.kind == SEED else placeholder.kind


def _type(value: Any, shape: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {shape(value.shape)}"
    if isinstance(value, list | tuple):
        return ", ".join(_type(item, shape) for item in value)
    return "" if value is None else f"size {shape([value])[1:-1]}"


def _nbytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return example_numel(value) * value.dtype.itemsize
    return sum(map(_nbytes, value)) if isinstance(value, list | tuple) else 0


def _saved(node: fx.Node, sizes: SizeNames) -> SavedRecord:
    saved = describe(node)
    name = identifier(node.name)
    return SavedRecord(name, _type(node.meta["val"], sizes.shape), saved.nbytes(), saved.held)


def _attribute(module: fx.GraphModule, path: Any) -> Any:
    value: Any = module
    for part in str(path).split("."):
        value = getattr(value, part)
    return value


def _halves(joint: JointGraph, saved: Sequence[fx.Node]) -> tuple[set[fx.Node], set[fx.Node]]:
    """The nodes that :func:`gqc.passes.partition.partition` would put into each half; unused ones go by their tag."""
    tangents = {p.node for p in joint.placeholders if p.kind == TANGENT}
    updates = [n for n in joint.graph.nodes if mutates(n)]
    backward = needed_for(joint.gradients, {*saved} - tangents) | tangents
    results = [*joint.forward_outputs, *saved, *(n for n in updates if n not in backward)]
    forward = needed_for(results)
    for node in joint.graph.nodes:
        if node.op == "placeholder" and node not in tangents:
            forward.add(node)
        elif node.op != "output" and node not in forward and node not in backward:
            (backward if half(node) == BACKWARD else forward).add(node)
    return forward, backward


def is_plumbing(node: fx.Node, relations: Sequence[NamedRelation]) -> bool:
    """Whether a drawing may leave a node out: it moves or counts what other nodes compute."""
    if node.op == "placeholder":
        return any(node in relation.nodes for relation in relations)
    picks = getattr(node.target, "__name__", "") == "getitem"
    return not is_copy(node) and (is_size(node) or node.target in _MOVES or picks)
