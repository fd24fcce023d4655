"""Quantize each tensor once."""

from __future__ import annotations

from collections import Counter

from torch import fx

from gqc.joint import PARAMETER, JointGraph
from gqc.passes.computation_graph import CAST, PART, UPDATED, ComputationGraph, carried, derivation, updated_by
from gqc.passes.int8_copies import bits_of, copied, copies_and_readers, lifetimes, quantize_nodes
from gqc.passes.nodes import call, drop_unused, half, mutates, origin, pick, replay, source
from gqc.passes.primitive import mark, ops
from gqc.passes.report import SHARED, UNSHARED, Decision, Report
from gqc.passes.verify import names_parameter, results_and_updates
from gqc.policy import Policy

PACK, UNPACK = ops.quantize_int4.default, ops.unpack_int4.default

__all__ = ["quantize_nodes", "share_quantized"]


def share_quantized(joint: JointGraph, policy: Policy) -> Report:
    """Let all primitives that read the same values read one int8 copy of them.

    Requires: ``quantize`` nodes, as :func:`quantize_operands` puts them.
    Does: on the :class:`ComputationGraph` of the joint graph, merges the ``quantize`` nodes of tensors that carry the
        same values, through reshapes, transposes, expansions, copies, and scalings and dropouts that change nothing.
        This joins siblings (the GEMMs of GraphSAGE), layers and relations, the forward with the backward (whose saved
        tensor is then the int8 copy) and the users of one gradient. An int8 copy of a parameter lives from the forward
        to the backward of one step. Packed values are unpacked once, too.
    Legal because one scale a tensor stands for every element, whatever their order and the contracted axis. Refused,
        with the reason, for

        - a part of a tensor, and for another width: their scales differ;
        - values that were cast between: they are others;
        - one that rounds to nearest and one that rounds stochastically, or that another absmax scales;
        - a tensor updated in place between the two uses, itself or through a view;
        - a parameter whose copy leaves the step;
        - values packed in rows of another shape.

    Ensures: no two ``quantize`` nodes of one width read the same values, except those refused. The report tells the
        lifetime of each copy.
    """
    report = Report("share_quantized")
    sharing = _Sharing(joint)
    for node in quantize_nodes(joint):
        refused = sharing.add(node)
        if refused is not None:
            report.decisions.append(_decision(node.args[0], UNSHARED, refused))  # type: ignore[arg-type]
    for copies in sharing.sets:
        _merge(copies)
    _unpack_once(joint)
    drop_unused(joint.graph)
    read = copies_and_readers(joint)
    widths = Counter(map(copied, read))
    for node, readers in read.items():
        values = copied(node)
        reason = f"one int{bits_of(node)} copy for {', '.join(r.name for r in readers)}"
        if widths[values] > 1 and not sharing.refused(values):
            report.decisions.append(_decision(values, SHARED, f"{reason}; other widths have copies of their own"))
        elif len(readers) > 1:
            report.decisions.append(_decision(values, SHARED, reason))
    report.lifetimes = lifetimes(joint)
    report.numbers["quantize nodes"] = len(quantize_nodes(joint))
    return report


class _Sharing:
    """Sets of ``quantize`` nodes that may become one, each in graph order."""

    def __init__(self, joint: JointGraph) -> None:
        self.joint = joint
        self.graph = ComputationGraph.of(joint)
        self.sets: list[list[fx.Node]] = []
        self._updates = [n for n in joint.graph.nodes if mutates(n)]
        self._leaving = {source(n)[0] for n in results_and_updates(joint)}
        self._parameters = {p.node for p in joint.placeholders if p.kind == PARAMETER}
        self._refused: set[fx.Node] = set()

    def add(self, node: fx.Node) -> str | None:
        """Put a node into a set; if it cannot share with the copies of related values, say why."""
        refusal = None
        for copies in self.sets:
            first = copies[0]
            if bits_of(first) != bits_of(node) or not _are_related(first, node):
                continue
            reason = self._refusal(first, node)
            if reason is None:
                copies.append(node)
                return None
            refusal = f"not shared with {first.name}: {reason}"
        self.sets.append([node])
        if refusal is not None:
            self._refused.add(node.args[0])  # type: ignore[arg-type]
        return refusal

    def refused(self, values: fx.Node) -> bool:
        """Whether copies of a tensor stand apart for another reason than their widths."""
        return values in self._refused

    def _refusal(self, first: fx.Node, second: fx.Node) -> str | None:
        (root, _), (other, _) = carried(first.args[0]), carried(second.args[0])  # type: ignore[arg-type]
        if root is not other:
            return _difference(root, other)
        if first.args[5] != second.args[5]:
            return "one rounds to nearest, the other stochastically"
        if _absmax(first, root) is not _absmax(second, root):
            return f"another absmax scales {second.args[0]}"
        if (
            first.target is PACK
            and first.args[0] is not second.args[0]
            and any(carried(n.args[0])[1] for n in (first, second))
        ):  # type: ignore[arg-type]
            return f"{second.args[0]} is packed in rows of another shape"
        return self._updated_between(root, first, second) or self._leaves(root, first, second)

    def _updated_between(self, root: fx.Node, first: fx.Node, second: fx.Node) -> str | None:
        """An update, between the two uses, of what holds the values: the root, a copy of it, or a view of these.

        A copy holds what the root was when it was copied, so the time from there on counts.
        """
        copies = [n for node in (first, second) for n in _path(node.args[0], root)]  # type: ignore[arg-type]
        start = min([first, *copies])
        between = [update for update in self._updates if start < update < second]
        for held in dict.fromkeys([root, *copies]) if between else ():
            aliases = self.graph.aliases(held)
            for update in between:
                for written in filter(aliases.__contains__, updated_by(update)):
                    through = "" if written is held else f" through {written.name}"
                    return f"{held.name} is updated in place by {update.name}{through}"
        return None

    def _leaves(self, root: fx.Node, *copies: fx.Node) -> str | None:
        if root in self._parameters or names_parameter(self.joint, root):
            for node in copies:
                if pick(node, 0) in self._leaving:
                    return f"{node.name}, a copy of parameter {root.name}, leaves the step"
        return None


def _are_related(first: fx.Node, second: fx.Node) -> bool:
    """Whether two quantized tensors carry the same values, or one is a part or a cast of the other."""
    (root, _), (other, _) = carried(first.args[0]), carried(second.args[0])  # type: ignore[arg-type]
    return root is other or other in _ancestry(root) or root in _ancestry(other)


def _path(tensor: fx.Node, root: fx.Node) -> list[fx.Node]:
    """The tensors from ``root``, which a tensor carries the values of, to the tensor itself, without ``root``."""
    path = []
    while tensor is not root:
        path.append(tensor)
        tensor = derivation(tensor)[1]  # type: ignore[index]
    return path


def _ancestry(tensor: fx.Node) -> list[fx.Node]:
    """The tensors from which a tensor's values are taken, nearest first."""
    found = []
    while (derived := derivation(tensor)) is not None:
        tensor = derived[1]
        found.append(tensor)
    return found


def _difference(first: fx.Node, second: fx.Node) -> str:
    """Why two tensors that come from one do not have the same values."""
    for tensor in (second, first):
        derived = derivation(tensor)
        if derived is not None and derived[0] == PART:
            return f"{tensor.name} is a part of {derived[1].name} and has a scale of its own"
        if derived is not None and derived[0] == UPDATED:
            return f"{derived[1].name} is updated in place by {tensor.name}"
        if derived is not None and derived[0] == CAST:
            dtype = str(tensor.meta["val"].dtype).removeprefix("torch.")
            return f"{tensor.name} is {derived[1].name} cast to {dtype}, which are other values"
    return f"{second.name} has other values than {first.name}"


def _absmax(quantize: fx.Node, root: fx.Node) -> fx.Node | None:
    """What scales a copy; ``None`` if it is the absmax of the values themselves."""
    given = quantize.args[1]
    if not isinstance(given, fx.Node):
        return None
    if given.target is ops.absmax.default and carried(given.args[0])[0] is root:  # type: ignore[arg-type]
        return None
    beside_root = root.args and given.args and given.args[0] is root.args[0] and root.args[1:] == (0,)
    return None if beside_root and given.args[1:] == (1,) else given


def _merge(copies: list[fx.Node]) -> None:
    """Replace all copies of the same values by one."""
    if len(copies) == 1:
        return
    first = copies[0]
    shared, values = first, first.args[0]
    if any(node.args[0] is not values for node in copies):
        root, _ = carried(values)  # type: ignore[arg-type]
        with first.graph.inserting_before(first):
            shared = call(first.target, (root, *first.args[1:]), first, f"{root.name}_quantized")  # type: ignore[arg-type]
    for node in copies:
        if node is shared:
            continue
        int8 = pick(shared, 0)
        if shared is not first:
            with node.graph.inserting_before(node):
                for step in carried(node.args[0])[1]:  # type: ignore[arg-type]
                    int8 = replay(step, int8, f"{step.name}_int8")
        pick(node, 0).replace_all_uses_with(int8)
        pick(node, 1).replace_all_uses_with(pick(shared, 1))


def _unpack_once(joint: JointGraph) -> None:
    first: dict[tuple[object, ...], fx.Node] = {}
    for node in joint.graph.find_nodes(op="call_function", target=UNPACK, sort=True):
        packed, features = node.args
        same = first.setdefault((packed, *features), node)
        if same is not node:
            node.replace_all_uses_with(same)


def _decision(values: fx.Node, action: str, reason: str) -> Decision:
    primitive = mark(values)
    kind = primitive.kind if primitive is not None else "tensor"
    return Decision(values.name, origin(values).module, kind, half(values), action, reason)
