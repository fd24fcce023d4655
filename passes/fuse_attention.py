"""Run GAT's edge phase as one op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from gqc.joint import JointGraph
from gqc.passes.nodes import (
    BACKWARD,
    FORWARD,
    IDENTITIES,
    aten,
    by_name,
    call,
    drop_unused,
    half,
    is_size,
    origin,
    pick,
)
from gqc.passes.primitive import ATTENTION, mark, ops
from gqc.passes.report import KEPT, REPLACED, Decision, Report
from gqc.policy import Policy
from gqc.runtime.relation import SRC, reverse

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_IN_ORDER = IDENTITIES | {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
}
"""Ops whose result holds the values of their operand in the same row-major order."""


def fuse_attention(joint: JointGraph, policy: Policy) -> Report:
    """Replace the chain of ops on edges that a graph attention layer runs, and its backward, by one op each.

    Requires: :func:`draw_masks` and :func:`save_masks` before it (order only): torch's own dropout is not fused, and
        both forms of the leaky ReLU's backward are known.
    Does: finds ``sddmm add``, leaky ReLU, edge softmax, ``gqc.dropout`` and ``spmm mul`` of one relation, with all that
        the backward derives from them, where nothing else reads the tensors on edges. ``gat`` and ``gat_bwd`` take
        their place, on int8 features where the sums are int8 and on floats where they are kept.
    Ensures: the same values up to float rounding, with the same dropout mask. No value an edge is written, and only two
        numbers a destination and head are saved for the backward.
    """
    report = Report("fuse_attention")
    for softmax in joint.graph.find_nodes(op="call_function", target=ops.edge_softmax.default, sort=True):
        try:
            forward = _forward(softmax)
            backward = _backward(forward)
        except _NotFused as why:
            decision = Decision(softmax.name, origin(softmax).module, "edge_softmax", FORWARD, KEPT, str(why))
            report.decisions.append(decision)
            continue
        report.decisions += _fuse(forward, backward)
    drop_unused(joint.graph)
    return report


class _NotFused(Exception):
    """Why a chain stays as it is."""


@dataclass(frozen=True)
class _Forward:
    """The calls of one layer's attention; ``total`` sums up the features."""

    relation: list[fx.Node]
    logits: fx.Node
    el: fx.Node
    er: fx.Node
    activation: fx.Node
    slope: float
    softmax: fx.Node
    dropout: fx.Node | None
    weights: fx.Node
    total: fx.Node
    backward_total: fx.Node | None

    @property
    def calls(self) -> list[fx.Node]:
        dropped = [] if self.dropout is None else [self.dropout]
        return [self.logits, self.activation, self.softmax, *dropped, self.total]


@dataclass(frozen=True)
class _Backward:
    """The backward's calls; each may be missing where nothing needs a gradient.

    Attributes:
        total: sums up the gradients by source, the gradient of the features.
        product: the gradient of the weights.
        to_src, to_dst: sums of the gradients of the logits at either end.
        on_edges: all calls of forward and backward that give tensors on edges.
    """

    total: fx.Node | None
    product: fx.Node | None
    to_src: fx.Node | None
    to_dst: fx.Node | None
    on_edges: set[fx.Node]

    @property
    def calls(self) -> list[fx.Node]:
        ends = [n for n in (self.total, self.to_src, self.to_dst) if n is not None]
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
    relation, activation = softmax.args
    _need(activation.target is aten.leaky_relu.default, "what it reads is no leaky ReLU")
    logits = activation.args[0]
    summed = logits.target is ops.sddmm.default and logits.args[1] == "add" and logits.args[0] == relation
    _need(summed, "what the leaky ReLU reads is no sum of a source's and a destination's numbers")
    _, _, left, right, *targets = logits.args
    _need(sorted(targets) == ["u", "v"], "its logits are no sums of a source's and a destination's numbers")
    el, er = (left, right) if targets == ["u", "v"] else (right, left)
    for x in (el, er, logits):
        shape, dtype = x.meta["val"].shape, x.meta["val"].dtype
        _need(len(shape) == 3 and _is(shape[2], 1) and _is(shape[1], logits.meta["val"].shape[1]), _shape_of(x))
        _need(dtype in _DTYPES, f"its logits are {str(dtype).removeprefix('torch.')}")
    slope = by_name(activation)["negative_slope"]

    dropout = next((n for n in _readers(softmax) if n.target is ops.dropout.default), None)
    weights = softmax if dropout is None else pick(dropout, 0)
    returned = any(n.op == "output" for n in (*softmax.users, *weights.users))
    _need(not returned, "its weights are returned")
    if any(n.target is aten.native_dropout.default for n in _readers(weights)):
        raise _NotFused("torch draws the mask of its dropout")
    totals = [n for n in _readers(weights) if n.target in _TOTALS and half(n) == FORWARD]
    packed = any(n.target is ops.qspmm_int4.default for n in _readers(weights))
    _need(not packed, "the features that it weights are packed, which the fused op does not read")
    _need(len(totals) == 1, f"{_count(totals, 'sum')} of features with its weights in the forward")
    backward_totals = [n for n in _readers(weights) if n.target in _TOTALS and half(n) == BACKWARD]
    _need(len(backward_totals) <= 1, f"{_count(backward_totals, 'sum')} of features with its weights in the backward")
    for total, along in ((totals[0], relation), *((n, reverse(relation)) for n in backward_totals)):
        given = by_name(total)
        plain = given.get("e_scale") is None and given["rows"] is None
        fits = plain and given["op"] == "mul" and given["e"] is weights
        _need(fits and given["g"] == along, f"{total.name} is no sum of weighted features along the same edges")
        shape = given["u"].meta["val"].shape
        _need(len(shape) == 3 and _is(shape[1], logits.meta["val"].shape[1]), _shape_of(given["u"]))
        _need(total.target is ops.qspmm.default or given["u"].meta["val"].dtype in _DTYPES, "its features are float64")
    backward_total = backward_totals[0] if backward_totals else None
    return _Forward(
        *(relation, logits, el, er, activation, slope, softmax, dropout, weights, totals[0], backward_total)
    )


def _backward(forward: _Forward) -> _Backward:
    softmax, logits, total = forward.softmax, forward.logits, forward.backward_total
    expected = {softmax, *forward.calls, forward.weights} | ({total} if total is not None else set())
    masks = [n for n in _readers(logits) if n.target is aten.gt.Scalar and n.args[1] == 0]
    expected.update(masks)
    product = to_src = to_dst = None
    bwd = _only(n for n in _readers(softmax) if n.target is ops.edge_softmax_bwd.default)
    if bwd is not None:
        _need(bwd.args[:2] == (forward.relation, softmax), "its backward is that of other edges")
        calls, product = _gradient_of_weights(forward, bwd.args[2])
        expected.update((bwd, *calls))
        calls, gradient = _gradient_of_logits(forward, bwd, masks)
        expected.update((*calls, gradient))
        sums = [
            n for n in _readers(gradient) if n.target is ops.spmm.default and n.args[1:] == ("copy_rhs", None, gradient)
        ]
        to_src = _only(n for n in sums if n.args[0] == reverse(forward.relation))
        to_dst = _only(n for n in sums if n.args[0] == forward.relation)
        expected.update(n for n in (to_src, to_dst) if n is not None)
    if total is not None and product is not None:
        same = _operand(total, "u").holds(_operand(product, "rhs"))
        _need(same, f"{total.name} and {product.name} read two copies of the gradient")
    if product is not None:
        same = _operand(forward.total, "u").holds(_operand(product, "lhs"))
        _need(same, f"{forward.total.name} and {product.name} read two copies of the features")
    on_edges = expected - {forward.total, total, to_src, to_dst}
    for node in on_edges:
        for reader in _readers(node):
            _need(
                reader in expected,
                f"{node.name} is {'returned' if reader.op == 'output' else f'read by {reader.name}'}",
            )
    return _Backward(total, product, to_src, to_dst, on_edges)


def _gradient_of_weights(forward: _Forward, node: fx.Node) -> tuple[list[fx.Node], fx.Node]:
    """The calls from the product of features and gradients to what the softmax's backward reads."""
    calls = list(_back_to_values(node))
    node = calls[-1]
    if forward.dropout is not None:
        undropped = node.target is ops.dropout_backward.default and node.args[1] is pick(forward.dropout, 1)
        _need(undropped, "the backward does not pass its dropout")
        calls += [pick(forward.dropout, 1), *_back_to_values(node.args[0])]
        node = calls[-1]
    dot = node.target in (ops.sddmm.default, ops.qsddmm.default)
    given = by_name(node) if dot else {}
    dot = dot and (given["g"], given["op"]) == (forward.relation, "dot")
    _need(
        dot and (given["lhs_target"], given["rhs_target"]) == ("u", "v"), f"{node.name} is no gradient of its weights"
    )
    return calls, node


def _gradient_of_logits(forward: _Forward, bwd: fx.Node, masks: Sequence[fx.Node]) -> tuple[list[fx.Node], fx.Node]:
    """The calls from the softmax's backward to the gradient of the logits, which is the last."""
    readers = _readers(bwd)
    whole = _only(n for n in readers if n.target is aten.leaky_relu_backward.default)
    if whole is not None:
        fits = whole.args[:3] == (bwd, forward.logits, forward.slope)
        _need(fits, f"{whole.name} is no backward of its leaky ReLU")
        return [], whole
    scaled = _only(n for n in readers if n.target is aten.mul.Tensor and n.args == (bwd, forward.slope))
    chosen = _only(n for n in readers if n.target is aten.where.self and n.args[1:] == (bwd, scaled))
    _need(chosen is not None and chosen.args[0] in masks, "the backward does not pass its leaky ReLU")
    return [scaled], chosen  # type: ignore[list-item,return-value]


def _fuse(forward: _Forward, backward: _Backward) -> Iterator[Decision]:
    for node in backward.on_edges:
        _free_sizes(node, forward.relation)
    graph, features = forward.total.graph, _operand(forward.total, "u")
    drawn: tuple[Any, ...] = (0.0, None, 0)
    if forward.dropout is not None:
        drawn = forward.dropout.args[1:]
    with graph.inserting_before(forward.total):
        logits = [_by_head(x) for x in (forward.el, forward.er)]
        fused = call(
            ops.gat.default,
            (forward.relation, *logits, features.node, features.scale, forward.slope, *drawn, _dtype(forward.total)),
            forward.total,
            f"{forward.softmax.name}_gat",
        )
    _mark(fused, forward.total, "gat")
    largest, total = (pick(fused, i, f"{fused.name}_{name}") for i, name in ((2, "max"), (3, "sum")))
    _replace(forward.total, fused)
    names = ", ".join(n.name for n in forward.calls)
    yield Decision(fused.name, origin(fused).module, ATTENTION, FORWARD, REPLACED, f"one kernel for {names}")

    if backward.first is None:
        return
    first, gradient = backward.first
    with graph.inserting_before(first):
        result = call(
            ops.gat_bwd.default,
            (
                *(forward.relation, *logits, largest, total, features.node, features.scale),
                *(_like(gradient.node, features.node), gradient.scale, forward.slope, *drawn, _dtype(first)),
            ),
            first,
            f"{forward.softmax.name}_gat_bwd",
        )
    _mark(result, first, "gat_bwd")
    if backward.total is not None:
        _replace(backward.total, result)
    for index, name, end in ((2, "d_el", backward.to_src), (3, "d_er", backward.to_dst)):
        if end is not None:
            end.replace_all_uses_with(_on_nodes(pick(result, index, f"{result.name}_{name}"), end))
    names = ", ".join(n.name for n in backward.calls)
    yield Decision(result.name, origin(result).module, ATTENTION, BACKWARD, REPLACED, f"one kernel for {names}")


_TOTALS = (ops.spmm.default, ops.qspmm.default)
_NAMED = (
    *(ops.sddmm.default, ops.qsddmm.default, ops.dropout_backward.default),
    *(ops.edge_softmax_bwd.default, aten.leaky_relu_backward.default, aten.where.self),
)


def _need(holds: object, otherwise: str) -> None:
    if not holds:
        raise _NotFused(otherwise)


def _is(size: int | torch.SymInt, other: int | torch.SymInt) -> bool:
    return statically_known_true(size == other)


def _shape_of(x: fx.Node) -> str:
    return f"{x.name} has the shape {list(x.meta['val'].shape)}"


def _count(nodes: Sequence[fx.Node], what: str) -> str:
    return f"there {'is 1' if len(nodes) == 1 else f'are {len(nodes)}'} {what}{'' if len(nodes) == 1 else 's'}"


def _readers(node: fx.Node) -> list[fx.Node]:
    """Who reads the values of a node."""
    return [n for n in node.users if not is_size(n)]


def _only(nodes: Iterable[fx.Node]) -> fx.Node | None:
    """The only one of some nodes, ``None`` of none."""
    found = list(nodes)
    _need(len(found) < 2, f"{' and '.join(n.name for n in found)} compute the same")
    return found[0] if found else None


def _back_to_values(node: fx.Node) -> Iterator[fx.Node]:
    """A node and what it reshapes, up to the node that holds the values first."""
    yield node
    while node.op == "call_function" and (node.target in _IN_ORDER or _expands_nothing(node)):
        node = node.args[0]  # type: ignore[assignment]
        yield node


def _values(node: fx.Node) -> fx.Node:
    return list(_back_to_values(node))[-1]


def _expands_nothing(node: fx.Node) -> bool:
    if node.target is not aten.expand.default:
        return False
    before, after = node.args[0].meta["val"].shape, node.meta["val"].shape  # type: ignore[union-attr]
    return len(before) == len(after) and all(_is(a, b) for a, b in zip(before, after, strict=True))


def _operand(node: fx.Node, name: str) -> _Features:
    given = by_name(node)
    return _Features(given[name], given.get(f"{name}_scale"))


def _dtype(node: fx.Node) -> torch.dtype:
    value = node.meta["val"]
    return (value[0] if isinstance(value, tuple | list) else value).dtype


def _by_head(x: fx.Node) -> fx.Node:
    """``[N, H]`` of ``[N, H, 1]``."""
    if x.target is aten.unsqueeze.default and x.args[1] in (-1, 2):
        return x.args[0]  # type: ignore[return-value]
    return call(aten.squeeze.dim, (x, -1), x, f"{x.name}_by_head")


def _like(x: fx.Node, features: fx.Node) -> fx.Node:
    """A gradient with the axes of features."""
    if x.meta["val"].dim() == 3:
        return x
    _, heads, width = features.meta["val"].shape
    return call(aten.reshape.default, (x, [-1, heads, width]), x, f"{x.name}_by_head")


def _on_nodes(gradient: fx.Node, replaced: fx.Node) -> fx.Node:
    """``[N, H, 1]`` of ``[N, H]`` in the dtype of the node whose place it takes."""
    with replaced.graph.inserting_before(replaced):
        node = call(aten.unsqueeze.default, (gradient, -1), replaced, f"{replaced.name}_gat")
        dtype = _dtype(replaced)
        if dtype is not torch.float32:
            node = call(aten.to.dtype, (node, dtype), replaced, f"{replaced.name}_cast")
    return node


def _mark(fused: fx.Node, like: fx.Node, op: str) -> None:
    primitive = mark(like)
    if primitive is not None:
        fused.meta["gqc"] = replace(primitive, kind=ATTENTION, op=op)


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
