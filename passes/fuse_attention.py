"""Run the edge phase of an attention as one op."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from gqc.joint import JointGraph
from gqc.passes.attention_chain import FLOATS, NotFused, back_to_values, need, only, readers, shape_of
from gqc.passes.attention_scores import Scores, scores_of
from gqc.passes.nodes import BACKWARD, FORWARD, aten, by_name, call, drop_unused, half, origin, pick
from gqc.passes.pointwise_steps import is_same
from gqc.passes.primitive import ATTENTION, mark, ops
from gqc.passes.report import KEPT, REPLACED, Decision, Report
from gqc.policy import Policy
from gqc.runtime.relation import SRC, reverse


def fuse_attention(joint: JointGraph, policy: Policy) -> Report:
    """Replace the chain of ops on edges that a graph attention layer runs, and its backward, by one op each.

    Requires: :func:`draw_masks` and :func:`save_masks` before it (order only): torch's own dropout is not fused, and
        both forms of the leaky ReLU's backward are known.
    Does: finds logits, edge softmax, ``gqc.dropout`` and ``spmm mul`` of one relation, with all that the backward
        derives from them, where nothing else reads the tensors on edges. ``gat`` and ``gat_bwd`` take their place where
        logits are ``sddmm add`` and leaky ReLU of one number a node and head; on the CPU ``attend`` and ``attend_bwd``
        where those of features are multiplied with a vector (GATv2), and where logits are ``sddmm dot`` times a number.
        They run on int8 features where the sums are int8 and on floats where they are kept; features that logits are
        made of are floats.
    Ensures: the same values up to float rounding, with the same dropout mask. No value an edge is written, and only two
        numbers a destination and head are saved for the backward.
    """
    report = Report("fuse_attention")
    for softmax in joint.graph.find_nodes(op="call_function", target=ops.edge_softmax.default, sort=True):
        try:
            forward = _forward(softmax)
            backward = _backward(forward)
        except NotFused as why:
            decision = Decision(softmax.name, origin(softmax).module, "edge_softmax", FORWARD, KEPT, str(why))
            report.decisions.append(decision)
            continue
        report.decisions += _fuse(forward, backward)
    drop_unused(joint.graph)
    return report


@dataclass(frozen=True)
class _Forward:
    """The calls of one layer's attention; ``total`` sums up the features."""

    relation: list[fx.Node]
    scores: Scores
    softmax: fx.Node
    dropout: fx.Node | None
    weights: fx.Node
    total: fx.Node
    backward_total: fx.Node | None

    @property
    def calls(self) -> list[fx.Node]:
        dropped = [] if self.dropout is None else [self.dropout]
        return [*self.scores.calls, self.softmax, *dropped, self.total]


@dataclass(frozen=True)
class _Backward:
    """The backward's calls; each may be missing where nothing needs a gradient.

    Attributes:
        total: sums up the gradients by source, the gradient of the features.
        product: the gradient of the weights.
        ends: gradients of what logits are made of, by the result of the fused op that takes their place.
        on_edges: all calls of forward and backward that give tensors on edges.
    """

    total: fx.Node | None
    product: fx.Node | None
    ends: dict[int, fx.Node]
    on_edges: set[fx.Node]

    @property
    def calls(self) -> list[fx.Node]:
        ends = [*([] if self.total is None else [self.total]), *self.ends.values()]
        return sorted([n for n in self.on_edges if half(n) == BACKWARD and n.target in _NAMED] + ends)

    @property
    def first(self) -> tuple[fx.Node, _Features] | None:
        """The first call that reads the gradient of the layer's output, and the gradient as it reads it."""
        readers = [(n, _operand(n, x)) for n, x in ((self.total, "u"), (self.product, "rhs")) if n is not None]
        return min(readers, key=lambda reader: reader[0], default=None)


@dataclass(frozen=True)
class _Features:
    """An operand of a sum or a dot product, int8 where it has a scale."""

    node: fx.Node
    scale: fx.Node | None

    def holds(self, other: _Features) -> bool:
        """Whether both have the same values in the same order."""
        return _values(self.node) is _values(other.node) and self.scale is other.scale


def _forward(softmax: fx.Node) -> _Forward:
    scores = scores_of(softmax)
    relation, heads = scores.relation, softmax.meta["val"].shape[1]
    dropout = next((n for n in readers(softmax) if n.target is ops.dropout.default), None)
    weights = softmax if dropout is None else pick(dropout, 0)
    returned = any(n.op == "output" for n in (*softmax.users, *weights.users))
    need(not returned, "its weights are returned")
    if any(n.target is aten.native_dropout.default for n in readers(weights)):
        raise NotFused("torch draws the mask of its dropout")
    totals = [n for n in readers(weights) if n.target in _TOTALS and half(n) == FORWARD]
    packed = any(n.target is ops.qspmm_int4.default for n in readers(weights))
    need(not packed, "the features that it weights are packed, which the fused op does not read")
    need(len(totals) == 1, f"{_count(totals, 'sum')} of features with its weights in the forward")
    backward_totals = [n for n in readers(weights) if n.target in _TOTALS and half(n) == BACKWARD]
    need(len(backward_totals) <= 1, f"{_count(backward_totals, 'sum')} of features with its weights in the backward")
    for total, along in ((totals[0], relation), *((n, reverse(relation)) for n in backward_totals)):
        given = by_name(total)
        plain = given.get("e_scale") is None and given["rows"] is None
        fits = plain and given["op"] == "mul" and given["e"] is weights
        need(fits and given["g"] == along, f"{total.name} is no sum of weighted features along the same edges")
        shape = given["u"].meta["val"].shape
        need(len(shape) == 3 and is_same(shape[1], heads), shape_of(given["u"]))
        need(total.target is ops.qspmm.default or given["u"].meta["val"].dtype in FLOATS, "its features are float64")
    backward_total = backward_totals[0] if backward_totals else None
    return _Forward(relation, scores, softmax, dropout, weights, totals[0], backward_total)


def _backward(forward: _Forward) -> _Backward:
    softmax, total = forward.softmax, forward.backward_total
    expected = {softmax, *forward.calls, forward.weights} | ({total} if total is not None else set())
    product, ends = None, {}
    bwd = only(n for n in readers(softmax) if n.target is ops.edge_softmax_bwd.default)
    if bwd is not None:
        need(bwd.args[:2] == (forward.relation, softmax), "its backward is that of other edges")
        calls, product = _gradient_of_weights(forward, bwd.args[2])
        expected.update((bwd, *calls))
        gradients = forward.scores.gradients(bwd)
        ends = gradients.ends
        expected.update((*gradients.on_edges, *ends.values()))
    if total is not None and product is not None:
        same = _operand(total, "u").holds(_operand(product, "rhs"))
        need(same, f"{total.name} and {product.name} read two copies of the gradient")
    if product is not None:
        same = _operand(forward.total, "u").holds(_operand(product, "lhs"))
        need(same, f"{forward.total.name} and {product.name} read two copies of the features")
    on_edges = expected - {forward.total, total, *ends.values()}
    for node in on_edges:
        for reader in readers(node):
            need(
                reader in expected,
                f"{node.name} is {'returned' if reader.op == 'output' else f'read by {reader.name}'}",
            )
    return _Backward(total, product, ends, on_edges)


def _gradient_of_weights(forward: _Forward, node: fx.Node) -> tuple[list[fx.Node], fx.Node]:
    """The calls from the product of features and gradients to what the softmax's backward reads."""
    calls = list(back_to_values(node))
    node = calls[-1]
    if forward.dropout is not None:
        undropped = node.target is ops.dropout_backward.default and node.args[1] is pick(forward.dropout, 1)
        need(undropped, "the backward does not pass its dropout")
        calls += [pick(forward.dropout, 1), *back_to_values(node.args[0])]
        node = calls[-1]
    dot = node.target in (ops.sddmm.default, ops.qsddmm.default)
    given = by_name(node) if dot else {}
    dot = dot and (given["g"], given["op"]) == (forward.relation, "dot")
    need(dot and (given["lhs_target"], given["rhs_target"]) == ("u", "v"), f"{node.name} is no gradient of its weights")
    return calls, node


def _fuse(forward: _Forward, backward: _Backward) -> Iterator[Decision]:
    for node in backward.on_edges:
        _free_sizes(node, forward.relation)
    graph, features, scores = forward.total.graph, _operand(forward.total, "u"), forward.scores
    drawn: tuple[Any, ...] = (0.0, None, 0)
    if forward.dropout is not None:
        drawn = forward.dropout.args[1:]
    with graph.inserting_before(forward.total):
        logits, slope = scores.arguments(), scores.last_arguments()
        fused = call(
            scores.op,
            (forward.relation, *logits, features.node, features.scale, *slope, *drawn, _dtype(forward.total)),
            forward.total,
            f"{forward.softmax.name}_{_name(scores.op)}",
        )
    _mark(fused, forward.total)
    largest, total = (pick(fused, i, f"{fused.name}_{name}") for i, name in ((2, "max"), (3, "sum")))
    _replace(forward.total, fused)
    names = ", ".join(n.name for n in forward.calls)
    yield Decision(fused.name, origin(fused).module, ATTENTION, FORWARD, REPLACED, f"one kernel for {names}")

    if backward.first is None:
        return
    first, gradient = backward.first
    with graph.inserting_before(first):
        result = call(
            scores.backward_op,
            (
                *(forward.relation, *logits, largest, total, features.node, features.scale),
                *(_like(gradient.node, features.node), gradient.scale, *slope, *drawn, _dtype(first)),
            ),
            first,
            f"{forward.softmax.name}_{_name(scores.backward_op)}",
        )
    _mark(result, first)
    if backward.total is not None:
        _replace(backward.total, result)
    for index, end in sorted(backward.ends.items()):
        gradient_of = pick(result, index, f"{result.name}_{scores.results[index - 2]}")
        with graph.inserting_before(end):
            end.replace_all_uses_with(scores.result(gradient_of, end))
    names = ", ".join(n.name for n in backward.calls)
    yield Decision(result.name, origin(result).module, ATTENTION, BACKWARD, REPLACED, f"one kernel for {names}")


_TOTALS = (ops.spmm.default, ops.qspmm.default)
_NAMED = (
    *(ops.sddmm.default, ops.qsddmm.default, ops.dropout_backward.default),
    *(ops.edge_softmax_bwd.default, aten.leaky_relu_backward.default, aten.where.self),
)


def _count(nodes: Sequence[fx.Node], what: str) -> str:
    return f"there {'is 1' if len(nodes) == 1 else f'are {len(nodes)}'} {what}{'' if len(nodes) == 1 else 's'}"


def _values(node: fx.Node) -> fx.Node:
    return list(back_to_values(node))[-1]


def _operand(node: fx.Node, name: str) -> _Features:
    given = by_name(node)
    return _Features(given[name], given.get(f"{name}_scale"))


def _dtype(node: fx.Node) -> torch.dtype:
    value = node.meta["val"]
    return (value[0] if isinstance(value, tuple | list) else value).dtype


def _like(x: fx.Node, features: fx.Node) -> fx.Node:
    """A gradient with the axes of features."""
    if x.meta["val"].dim() == 3:
        return x
    _, heads, width = features.meta["val"].shape
    return call(aten.reshape.default, (x, [-1, heads, width]), x, f"{x.name}_by_head")


def _name(op: Any) -> str:
    return op._schema.name.split("::")[1]  # type: ignore[no-any-return]


def _mark(fused: fx.Node, like: fx.Node) -> None:
    primitive = mark(like)
    if primitive is not None:
        fused.meta["gqc"] = replace(primitive, kind=ATTENTION, op=_name(fused.target))


def _replace(total: fx.Node, fused: fx.Node) -> None:
    """Give the readers of a sum the results of the fused op."""
    if total.target is ops.spmm.default:
        total.replace_all_uses_with(pick(fused, 0, f"{fused.name}_out"))
        return
    for index, name in ((0, "out"), (1, "absmax")):
        result: Callable[..., fx.Node] | fx.Node = pick(total, index)
        if result.users:  # type: ignore[union-attr]
            result.replace_all_uses_with(pick(fused, index, f"{fused.name}_{name}"))  # type: ignore[union-attr]


def _free_sizes(node: fx.Node, relation: Sequence[fx.Node]) -> None:
    """Take the number of edges from the relation where it is taken from a tensor on edges."""
    for user in list(node.users):
        if user.target is aten.sym_size.int and user.args[1] == 0:
            with node.graph.inserting_before(user):
                edges = call(aten.sym_size.int, (relation[SRC], 0), user, f"{user.name}_edges")
            user.replace_all_uses_with(edges)
