"""Compute chains of elementwise nodes in one pass over memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from gqc.joint import JointGraph
from gqc.passes.int8_copies import QUANTIZE
from gqc.passes.nodes import BACKWARD, FORWARD, aten, call, drop_unused, origin, pick
from gqc.passes.pointwise_groups import Group, aligned, find_groups, readers
from gqc.passes.pointwise_steps import (
    DROPOUT,
    SUM,
    Operand,
    Size,
    holder,
    is_same,
    is_same_size,
    operands_of,
    size_of,
    step_of,
    summed_axis,
    unexpanded,
    values_of,
)
from gqc.passes.primitive import ops
from gqc.passes.report import FUSED, Decision, Report
from gqc.passes.saved_plan import MASK_SHAPE, hand_on
from gqc.passes.schedule import sort
from gqc.policy import Policy

_FORMS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16", torch.bool: "bool"}


def fuse_pointwise(joint: JointGraph, policy: Policy) -> Report:
    """Replace groups of elementwise nodes of one size by programs that one kernel runs (docs/architecture.md).

    Requires: nothing. It runs after the passes that rewrite single elementwise nodes or fuse them into primitives.
    Does: groups nodes that lie on the same side of the cut between forward and backward, iterate over one size, views
        between them aside, and need nothing that is computed from the group itself; with them sums over the first axis
        and over the last. What others read is written once, the rest never. If a quantize reads a value, the program
        gives it the absmax, or, if nothing else reads the value, int8 values and the scale. A mask that only programs
        read takes 1 bit an element. A single node is left unless this spares a quantize its pass, or the node reads a
        product that can run it.
    Ensures: sums, products and quotients as of the single ops, bit for bit; nothing is saved for the backward that was
        not, and no random op and no update changes its place among the others.
    """
    report = Report("fuse_pointwise")
    if joint.device.type != "cpu":
        return report
    groups = find_groups(joint)
    fusions = [_Fusion(group) for group in groups]
    wanted = [fusion for fusion in fusions if fusion.is_worth() and fusion.knows_size()]
    inside = {node for fusion in wanted for node in fusion.group.members}
    packed: dict[fx.Node, fx.Node] = {}
    for fusion in wanted:
        report.decisions.append(fusion.build(joint, inside, packed))
    sort(joint)
    drop_unused(joint.graph)
    return report


@dataclass
class _Fusion:
    """Writes the program of a group."""

    group: Group
    names: dict[fx.Node, str] = field(default_factory=dict)
    inputs: dict[fx.Node, fx.Node] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    # ---- before anything changes

    def is_worth(self) -> bool:
        """Whether the program spares a pass over memory."""
        members = self.group.members
        behind_product = any(holder(n).target is ops.mm.default for node in members for n in operands_of(node))
        return len(members) > 1 or behind_product or any(_waiting(v) for v in self.group.values())

    def knows_size(self) -> bool:
        """Whether an input has all elements, those that keep their shape broadcast to the size or tell its axes."""
        read = self._read()
        if any(is_same_size(_shape(n), size_of(node)) for node, n in read):
            return True
        lengths = [length for _, n in read for length in _shape(n)]
        return all(isinstance(n, int) or any(is_same(n, other) for other in lengths) for n in self.group.size)

    def _read(self) -> list[tuple[fx.Node, fx.Node]]:
        """The floats from outside that members read, with the member."""
        inside = {value for node in self.group.members for value in values_of(node)}
        read = [(node, unexpanded(n)) for node in self.group.members for n in operands_of(node)]
        return [(node, n) for node, n in read if n.meta["val"].is_floating_point() and holder(n) not in inside]

    # ---- the program

    def build(self, joint: JointGraph, inside: set[fx.Node], packed: dict[fx.Node, fx.Node]) -> Decision:
        """Add the program to the graph and let all read from it."""
        members = self.group.members
        last = members[-1]
        with joint.graph.inserting_before(last):
            for node in members:
                if node.target is not SUM:
                    self._translate(node, packed)
            results = self._results(inside, packed)
            seed = joint.seed() if any("keep(" in line for line in self.lines) or _draws(results) else None
            text = "; ".join([*self.lines, f"return {', '.join(r.text for r in results)}"])
            arguments: tuple[Any, ...] = (list(self.inputs.values()), seed, text)
            size = self._size()
            arguments = arguments if size is None else (*arguments, size)
            name = f"{next(r.value for r in results).name}_fused"
            fused = call(ops.pointwise.default, arguments, last, name)
        at = 0
        for result in results:
            at = result.take(fused, at, packed)
        half = BACKWARD if self.group.half else FORWARD
        given = ", ".join(result.told() for result in results)
        reason = f"{'; '.join(self.shown)} in one pass, which gives {given}"
        return Decision(fused.name, origin(last).module, "pointwise", half, FUSED, reason)

    def _translate(self, node: fx.Node, packed: dict[fx.Node, fx.Node]) -> None:
        step = step_of(node)
        assert step is not None
        operands = [self._operand(o, size_of(node), packed) for o in step.operands]
        self.shown.append(_shown(node, step.name, step.operands, step.parameters))
        if node.target is DROPOUT:
            p, stream = step.parameters
            mask = self._line(f"keep({p!r}, {int(stream)})")
            value = self._line(f"drop({operands[0]}, {mask}, {p!r})", step.rounding)
            for user in values_of(node):
                self.names[user] = mask if user.args[1] == 1 else value
            return
        if step.name:
            written = ", ".join([*operands, *map(repr, step.parameters)])
            self.names[node] = self._line(f"{step.name}({written})", step.rounding)
        elif step.rounding:
            self.names[node] = self._line(f"{step.rounding}({operands[0]})")
        else:
            self.names[node] = operands[0]

    def _line(self, computed: str, rounding: str = "") -> str:
        for text in (computed, rounding):
            if text:
                name = f"v{len(self.lines)}"
                self.lines.append(f"{name} = {text if text is computed else f'{text}(v{len(self.lines) - 1})'}")
        return f"v{len(self.lines) - 1}"

    def _operand(self, operand: Operand, shape: Size, packed: dict[fx.Node, fx.Node]) -> str:
        if not isinstance(operand, fx.Node):
            return repr(float(operand))
        base = holder(unexpanded(operand))
        if base not in self.names:
            key, node = self._input(unexpanded(operand), shape, packed)
            if key not in self.names:
                self.names[key] = f"x{len(self.inputs)}"
                self.inputs[key] = node
            return self.names[key]
        return self.names[base]

    def _input(self, node: fx.Node, shape: Size, packed: dict[fx.Node, fx.Node]) -> tuple[fx.Node, fx.Node]:
        """What a tensor is remembered by, and the tensor as the program reads it."""
        size, base = self.group.size, holder(node)
        if base in packed:
            return base, packed[base]
        if node.meta["val"].dtype is torch.uint8:
            return node, node
        if is_same_size(_shape(node), shape):
            return base, _viewed(base, size)
        if is_same_size(shape, size):
            return node, node
        # Broadcast along axes of a member that are several in the size of the group.
        axes = aligned(shape, size)
        assert axes is not None
        own = (1,) * (len(shape) - len(_shape(node))) + _shape(node)
        has = [not is_same(length, 1) for length in own]
        full = [n if has[i] else 1 for i, (first, end) in enumerate(axes) for n in size[first:end]]
        return node, _viewed(node, tuple(full))

    def _size(self) -> list[Any] | None:
        """The size as an argument, ``None`` where the inputs broadcast to it."""
        shapes = [_shape(n) for n in self.inputs.values() if n.meta["val"].dtype is not torch.uint8]
        if any(is_same_size(shape, self.group.size) for shape in shapes):
            return None
        return [n if isinstance(n, int) else self._length(n) for n in self.group.size]

    def _length(self, length: torch.SymInt) -> fx.Node:
        for node in self.inputs.values():
            for axis, other in enumerate(_shape(node)):
                if node.meta["val"].dtype is not torch.uint8 and is_same(other, length):
                    return call(aten.sym_size.int, (node, axis), node, f"{node.name}_size_{axis}")
        raise AssertionError("knows_size() found it")

    # ---- its results

    def _results(self, inside: set[fx.Node], packed: dict[fx.Node, fx.Node]) -> list[_Result]:
        members, results = set(self.group.members), []
        for value in self.group.values():
            read = [reader for reader in readers(value) if reader not in members]
            quantized = _waiting(value)
            if quantized and read == quantized[:1] and quantized[0].target is ops.quantize.default:
                results.append(_Int8(value, self.names[value], quantized[0]))
                continue
            if read:
                dtype = value.meta["val"].dtype
                form = "bits" if dtype is torch.uint8 else _FORMS[dtype]
                if dtype is torch.bool and all(reader in inside for reader in read):
                    results.append(_Mask(value, f"bits({self.names[value]})"))
                else:
                    results.append(_Result(value, f"{form}({self.names[value]})"))
            if quantized:
                results.append(_Absmax(value, f"absmax({self.names[value]})", quantized))
        for node in self.group.members:
            if node.target is SUM:
                name = self._operand(node.args[0], size_of(node), packed)  # type: ignore[arg-type]
                form = _FORMS[node.meta["val"].dtype]
                results.append(_Result(node, f"{form}(sum({name}, {summed_axis(node)}))"))
                self.shown.append(f"{node.name} = sum({node.args[0]}, {summed_axis(node)})")
        return results


@dataclass
class _Result:
    """A result of a program that takes the place of ``value``."""

    value: fx.Node
    text: str

    def take(self, fused: fx.Node, at: int, packed: dict[fx.Node, fx.Node]) -> int:
        """Let all readers read from the program, whose result number ``at`` it is; returns the next number."""
        self._replace(self.value, fused, at)
        return at + 1

    def told(self) -> str:
        return self.value.name

    def _replace(self, value: fx.Node, fused: fx.Node, at: int) -> None:
        picked = pick(fused, at, f"{value.name}_out")
        with fused.graph.inserting_after(picked):
            viewed = _viewed(picked, tuple(value.meta["val"].shape))
        value.replace_all_uses_with(viewed)
        if "desc" in value.meta:
            viewed.meta["desc"] = value.meta["desc"]
        hand_on(value, picked)


@dataclass
class _Mask(_Result):
    """A mask that other programs read in 1 bit an element."""

    def take(self, fused: fx.Node, at: int, packed: dict[fx.Node, fx.Node]) -> int:
        bits = packed[self.value] = pick(fused, at, f"{self.value.name}_bits")
        bits.meta[MASK_SHAPE] = _shape(self.value)
        return at + 1

    def told(self) -> str:
        return f"{self.value.name} in 1 bit an element"


@dataclass
class _Absmax(_Result):
    """The absmax of a value for what quantizes it."""

    quantized: list[fx.Node]

    def take(self, fused: fx.Node, at: int, packed: dict[fx.Node, fx.Node]) -> int:
        absmax = pick(fused, at, f"{self.value.name}_absmax")
        for node in self.quantized:
            node.update_arg(1, absmax)
        return at + 1

    def told(self) -> str:
        return f"its absmax for {', '.join(node.name for node in self.quantized)}"


@dataclass
class _Int8(_Result):
    """The int8 values and the scale of a value that is not read otherwise."""

    quantize: fx.Node

    def __post_init__(self) -> None:
        _, _, _, node, bits, stochastic = self.quantize.args
        self.text = f"int8({self.text}, {node}, {bits}, {int(stochastic)})"  # type: ignore[arg-type]

    def take(self, fused: fx.Node, at: int, packed: dict[fx.Node, fx.Node]) -> int:
        for user in list(self.quantize.users):
            if user.args[1] == 0:
                self._replace(user, fused, at)
            else:
                user.replace_all_uses_with(pick(fused, at + 1, f"{user.name}_out"))
            self.quantize.graph.erase_node(user)
        self.quantize.graph.erase_node(self.quantize)
        return at + 2

    def told(self) -> str:
        return f"{self.value.name} in int8"


def _waiting(value: fx.Node) -> list[fx.Node]:
    """What quantizes a tensor and would look for its absmax."""
    return [user for user in value.users if user.target in QUANTIZE and user.args[1] is None]


def _draws(results: list[_Result]) -> bool:
    return any(isinstance(r, _Int8) and r.quantize.args[5] for r in results)


def _shape(node: fx.Node) -> Size:
    return tuple(node.meta["val"].shape)


def _viewed(node: fx.Node, shape: Size) -> fx.Node:
    """A contiguous tensor in another shape, of which at most one axis is symbolic."""
    if is_same_size(_shape(node), shape):
        return node
    sizes = [length if isinstance(length, int) else -1 for length in shape]
    return call(aten.reshape.default, (node, sizes), node, f"{node.name}_view")


def _shown(node: fx.Node, name: str, operands: tuple[Operand, ...], parameters: tuple[float, ...]) -> str:
    names = [o.name if isinstance(o, fx.Node) else f"{o:g}" for o in operands]
    numbers = [f"{p:g}" for p in parameters] if node.target is not DROPOUT else [f"{parameters[0]:g}"]
    return f"{node.name} = {name or 'cast'}({', '.join([*names, *numbers])})"
