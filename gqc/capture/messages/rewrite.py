"""Put graph ops in the place of gathers, softmaxes and scatters of the same edges."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.fx as fx
from torch._dispatch.python import enable_python_dispatcher

from gqc.capture.example import storage_key
from gqc.capture.messages.calls import (
    MAX,
    MEAN,
    MIN,
    Scatter,
    arguments,
    is_float,
    is_unchanged,
    name_of,
    operands,
    readers,
    repeats,
    same,
    same_shape,
    value,
)
from gqc.capture.messages.edges import Edges
from gqc.capture.tracer import Tracer
from gqc.passes.nodes import FORWARD, origin
from gqc.passes.report import LEFT, REPLACED, Decision
from gqc.runtime.relation import CSC_INDPTR

ops = torch.ops.gqc

_BINARY = ("add", "sub", "mul", "div")
_ELEMENTWISE = ("dropout", "leaky_relu", "relu", "elu", "tanh")


class Rewrite:
    """Rewrites what runs along some edges.

    Args:
        tracer: holds the graph.
        edges: what runs along them.
        scatters: all scatters of the graph, whose writes into zeros nobody else sees.
    """

    def __init__(self, tracer: Tracer, edges: Edges, scatters: Mapping[fx.Node, Scatter]) -> None:
        self._tracer, self._graph = tracer, tracer.graph
        self._edges = edges
        self._scatters = scatters
        self._relation: list[fx.Node] = []
        self._erased: list[fx.Node] = []
        self._gone: set[fx.Node] = set()

    def run(self) -> list[Decision]:
        """Rewrite them; what was put in the place of what."""
        edges = self._edges
        sums = [s.node for s in edges.sums]
        first = min([*edges.gathers, *edges.softmaxes, *sums])
        with self._graph.inserting_before(first):
            self._relation = self._make_relation(first)
        if not self._is_known_before(first):
            return [left_alone(s, "what its edges are computed from changes between its gathers") for s in edges.sums]
        done: list[fx.Node | None] = []
        for softmax in edges.softmaxes.values():
            done.append(self._replace(softmax.node, ops.edge_softmax, (self._relation, softmax.logits)))
        for gather, _ in list(edges.gathers.values()):
            for user in list(gather.node.users):
                done.append(self._pair(user))
        for scatter in edges.sums:
            done.append(self._sum(scatter))
        for gather, end in edges.gathers.values():
            if gather.node.users:
                arguments = (self._relation, "copy_lhs", gather.rows, None, end, "v")
                done.append(self._replace(gather.node, ops.sddmm, arguments))
        return [_decision(node) for node in done if node is not None]

    # ---- the parts

    def _make_relation(self, first: fx.Node) -> list[fx.Node]:
        edges = self._edges
        sizes = [self._tracer.sizes.new_node(size) for size in (edges.num_src, edges.num_dst)]
        relation = self._call(ops.relation.default, (edges.src, edges.dst, *sizes, True), first)
        parts = []
        for i, part in enumerate(relation.meta["val"]):
            node = self._graph.call_function(operator.getitem, (relation, i))
            node.meta.update(val=part, custom=first.meta["custom"])
            parts.append(node)
        return parts

    def _is_known_before(self, first: fx.Node) -> bool:
        """Move what the relation is computed from before its first reader, if nothing there changes in place."""
        relation = self._relation[0].args[0]
        example = self._tracer.example
        late = sorted(n for n in example.ancestors([relation]) if n > first)  # type: ignore[list-item]
        if any(n.meta.get("writes") or (value(n) is not None and example.is_written(n)) for n in late):
            return False
        for node in late:
            relation.prepend(node)  # type: ignore[union-attr]
        return True

    def _pair(self, node: fx.Node) -> fx.Node | None:
        """Compute with what is gathered at both ends of edges without writing either."""
        both = operands(node) if name_of(node) in _BINARY else None
        if both is None or not all(isinstance(x, fx.Node) and x in self._edges.gathers for x in both):
            return None
        (left, left_end), (right, right_end) = (self._edges.gathers[x] for x in both)
        values = value(left.node), value(right.node)
        if left_end == right_end or values[0].dim() != values[1].dim() or values[0].dtype != values[1].dtype:  # type: ignore[union-attr]
            return None
        ends = (left.rows, right.rows, left_end, right_end)
        if self._tracer.example.is_written(node):
            return None
        total = _sum_over_features(node) if name_of(node) == "mul" else None
        plain = same_shape(values[0].shape, values[1].shape)  # type: ignore[union-attr]
        if total is None or not plain or value(total).dtype is not values[0].dtype:  # type: ignore[union-attr]
            return self._replace(node, ops.sddmm, (self._relation, name_of(node), *ends))
        with self._graph.inserting_before(total):
            product = self._call(ops.sddmm, (self._relation, "dot", *ends), total, "sddmm")
            scalar = self._call(torch.squeeze, (product, -1), total)
        self._put(total, scalar)
        product.meta["replaced"] = scalar.meta.pop("replaced")
        return product

    def _sum(self, scatter: Scatter) -> fx.Node:
        """Sum up messages, or what they are computed from."""
        layer = _layer(scatter)
        op, rows, weights = self._message(scatter)
        node = scatter.node
        if scatter.reduce in (MAX, MIN):
            with self._graph.inserting_before(node):
                arguments = (self._relation, op, scatter.reduce[1:], rows, weights)
                both = self._call(ops.spmm_cmp, arguments, node, "spmm_cmp")
                found = self._graph.call_function(operator.getitem, (both, 0))
            both.meta["custom"] = layer
            found.meta.update(val=both.meta["val"][0], custom=layer)
            self._put(node, found)
            both.meta["replaced"] = found.meta.pop("replaced")
            return both
        with self._graph.inserting_before(node):
            total = self._call(ops.spmm, (self._relation, op, rows, weights), node, "spmm")
            result = self._mean(total, node) if scatter.reduce == MEAN else total
        total.meta["custom"] = layer
        self._put(node, result)
        total.meta["replaced"] = result.meta.pop("replaced")
        self._narrow_divisors(result)
        return total

    def _message(self, scatter: Scatter) -> tuple[str, fx.Node | None, fx.Node | None]:
        """The operation of the sum and its operands at sources and on edges."""
        messages = scatter.messages
        if self._end(messages) == "u":
            return "copy_lhs", self._edges.gathers[messages][0].rows, None
        product = operands(messages) if name_of(messages) == "mul" and scatter.reduce not in (MAX, MIN) else None
        example = self._tracer.example
        if product is not None and readers(messages) == {scatter.node} and not example.is_written(messages):
            for gathered, weights in (product, product[::-1]):
                weighted = self._end(gathered) == "u" and self._end(weights) is None and _weighs(weights, gathered)
                if weighted and is_unchanged(weights, messages, example):
                    return "mul", self._edges.gathers[gathered][0].rows, self._by_feature(weights)
        return "copy_rhs", None, messages

    def _mean(self, total: fx.Node, like: fx.Node) -> fx.Node:
        """Divide sums by the numbers of messages, where there are any."""
        ends = self._relation[CSC_INDPTR]
        degrees = self._call(torch.diff, (ends,), like)
        degrees = self._call(torch.clamp, (degrees, 1), like)
        column = [-1] + [1] * (value(total).dim() - 1)  # type: ignore[union-attr]
        degrees = self._call(torch.reshape, (degrees, column), like)
        return self._call(torch.div, (total, degrees), like)

    def _narrow_divisors(self, total: fx.Node) -> None:
        """Divide or multiply rows by a factor each, not by one that is repeated for every feature."""
        for user in list(total.users):
            both = operands(user) if name_of(user) in ("mul", "div") else None
            wide = both[1] if both is not None and both[0] is total else None
            if value(wide) is None or name_of(wide) != "expand_as" or wide.args[0] is total:  # type: ignore[arg-type,union-attr]
                continue
            narrow = wide.args[0]  # type: ignore[union-attr]
            if value(narrow).dim() == value(total).dim() and same_shape(value(wide).shape, value(total).shape):  # type: ignore[union-attr]
                user.replace_input_with(wide, narrow)  # type: ignore[arg-type]
                self._erase(wide)  # type: ignore[arg-type]

    def _by_feature(self, weights: fx.Node) -> fx.Node:
        """Attention weights ``[E, H, 1]``: let the softmax itself have the last axis, not add it afterwards."""
        narrow = weights.args[0] if repeats(weights) else None
        shape = value(narrow).shape if value(narrow) is not None else None  # type: ignore[union-attr]
        if shape is None or len(shape) < 2 or not same_shape((*shape, 1), value(weights).shape):  # type: ignore[union-attr]
            return weights
        chain = list(_softmax_and_around(narrow, weights))
        if not any(_is(node, ops.edge_softmax) for node in chain):
            return weights
        above = self._with_axis(_operand(chain[-1]), chain[-1])
        for node in reversed(chain):
            node.replace_input_with(_operand(node), above)
            node.meta["val"] = self._value(node)
            above = node
        return above

    def _with_axis(self, node: fx.Node, reader: fx.Node) -> fx.Node:
        """Logits with one more axis of size 1."""
        if readers(node) == {reader}:
            if _is(node, torch.squeeze) and _is(node.args[0], ops.sddmm):
                return node.args[0]  # type: ignore[return-value]
            if _is(node, ops.sddmm) and node.args[1] in _BINARY:
                relation, op, left, right, *ends = node.args
                with self._graph.inserting_before(node):
                    columns = [self._call(torch.unsqueeze, (x, -1), node) for x in (left, right)]
                node.args = (relation, op, *columns, *ends)
                node.meta["val"] = self._value(node)
                return node
        with self._graph.inserting_before(reader):
            return self._call(torch.unsqueeze, (node, -1), node)

    # ---- the graph

    def _end(self, node: object) -> str | None:
        return self._edges.gathers[node][1] if node in self._edges.gathers else None  # type: ignore[index]

    def _replace(self, node: fx.Node, target: Callable[..., Any], args: tuple[Any, ...]) -> fx.Node:
        with self._graph.inserting_before(node):
            new = self._call(target, args, node, target.__name__)
        self._put(node, new)
        return new

    def _put(self, old: fx.Node, new: fx.Node) -> None:
        """Give the readers of ``old`` the node ``new``, and erase what is not needed any more."""
        old.replace_all_uses_with(new)
        self._erased = []
        self._erase(old)
        new.meta["replaced"] = [name_of(n) for n in self._erased]

    def _erase(self, node: fx.Node) -> None:
        computed = node.op in ("call_function", "call_method")
        effect = node.meta.get("writes") or node.meta.get("random")
        if node.users or node in self._gone or not computed or (effect and node not in self._scatters):
            return
        inputs = node.all_input_nodes
        found = value(node)
        if found is not None:
            writers = self._tracer.example.writers
            left = [n for n in writers.pop(storage_key(found), []) if n is not node]
            if left:
                writers[storage_key(found)] = left
        self._graph.erase_node(node)
        self._gone.add(node)
        if is_float(node):
            self._erased.append(node)
        for operand in inputs:
            if not isinstance(operand.meta.get("val"), int | torch.SymInt):  # a size may be read by what comes later
                self._erase(operand)

    def _call(
        self, target: Callable[..., Any], args: tuple[Any, ...], like: fx.Node, name: str | None = None
    ) -> fx.Node:
        """Add a call at the graph's insertion point, as part of the recorded call of ``like``."""
        node = self._graph.create_node("call_function", target, args, {}, name or None)
        node.meta.update(val=self._value(node), custom=like.meta["custom"])
        return node

    def _value(self, node: fx.Node) -> Any:
        args = fx.map_arg(node.args, lambda n: n.meta["val"])
        kwargs = fx.map_arg(node.kwargs, lambda n: n.meta["val"])
        with torch._C.DisableTorchFunction(), self._tracer.fake_mode, enable_python_dispatcher():
            if isinstance(node.target, str):
                return getattr(args[0], node.target)(*args[1:], **kwargs)
            return node.target(*args, **kwargs)  # type: ignore[operator]


def _decision(node: fx.Node) -> Decision:
    op = next((a for a in node.args if isinstance(a, str)), "")
    replaced = ", ".join(reversed(node.meta.pop("replaced")))
    kind = str(node.target.__name__)  # type: ignore[union-attr]
    what = f"{kind} {op}".rstrip()
    return Decision(node.name, origin(node).module, kind, FORWARD, REPLACED, f"{what} for {replaced}")


def left_alone(scatter: Scatter, why: str) -> Decision:
    """The decision that a scatter stays one."""
    return Decision(scatter.node.name, origin(scatter.node).module, name_of(scatter.node), FORWARD, LEFT, why)


def _layer(scatter: Scatter) -> dict[str, Any]:
    """Where a scatter comes from: the module that made the messages, if the one that sums them up is a part of it."""
    made, summed = (n.meta["custom"]["gqc"] for n in (scatter.messages, scatter.node))
    inside = summed["module"].startswith(f"{made['module']}." if made["module"] else "")
    return {"gqc": {**(made if inside else summed), "id": summed["id"]}}


def _is(node: object, target: object) -> bool:
    return isinstance(node, fx.Node) and node.target is target


def _weighs(weights: object, rows: fx.Node) -> bool:
    """Whether a node holds weights of edges, with the axes of gathered rows."""
    found, gathered = value(weights), value(rows)
    if found is None or found.dim() != gathered.dim() or found.dtype is not gathered.dtype:  # type: ignore[union-attr]
        return False
    return same(found.shape[0], gathered.shape[0])  # type: ignore[union-attr]


def _sum_over_features(product: fx.Node) -> fx.Node | None:
    """The sum over the last axis that alone reads a product."""
    if len(readers(product)) != 1:
        return None
    (total,) = readers(product)
    given = arguments(total, "input", "dim", "keepdim") if name_of(total) == "sum" else None
    if given is None or given.get("keepdim") or value(product).dim() < 2:  # type: ignore[union-attr]
        return None
    last = (-1, value(product).dim() - 1)  # type: ignore[union-attr]
    axis = given.get("dim")
    if isinstance(axis, list | tuple) and len(axis) == 1:
        (axis,) = axis
    return total if axis in last else None


def _operand(node: fx.Node) -> fx.Node:
    return node.args[1 if _is(node, ops.edge_softmax) else 0]  # type: ignore[return-value]


def _softmax_and_around(node: fx.Node, reader: fx.Node) -> Iterator[fx.Node]:
    """A softmax over edges and the elementwise calls before and after it that nothing else reads, from the last."""
    while readers(node) == {reader}:
        both = operands(node) if name_of(node) in ("mul", "div") else None
        scaled = both is not None and isinstance(both[1], int | float)
        if not (scaled or name_of(node) in _ELEMENTWISE or _is(node, ops.edge_softmax)):
            return
        yield node
        reader, node = node, _operand(node)
