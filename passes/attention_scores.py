"""How the logits of an attention are computed: which ops on edges, and which of the backward derive from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import fx

from gqc.passes.attention_chain import (
    FLOATS,
    NotFused,
    back_to_values,
    need,
    on_to_reader,
    only,
    readers,
    shape_of,
)
from gqc.passes.nodes import aten, by_name, call
from gqc.passes.pointwise_steps import is_same, is_same_size
from gqc.passes.primitive import ops
from gqc.runtime.relation import reverse


@dataclass(frozen=True)
class Gradients:
    """The backward of logits.

    Attributes:
        on_edges: its calls on edges.
        ends: what it gives for nodes and parameters, by the result of the fused backward that takes its place.
    """

    on_edges: list[fx.Node]
    ends: dict[int, fx.Node]


@dataclass(frozen=True)
class Scores:
    """Logits, ``[E, H, 1]``, of what stands on sources and destinations.

    Attributes:
        op, backward_op: the fused ops for an attention with such logits.
        results: what results 2 and on of ``backward_op`` are called.
        relation: the edges.
        calls: the ops on edges, from the one that reads nodes to the one that the softmax reads.
        source, destination: what the first of them reads.
    """

    op: ClassVar[Any]
    backward_op: ClassVar[Any]
    results: ClassVar[tuple[str, ...]] = ("d_k", "d_q")
    relation: list[fx.Node]
    calls: list[fx.Node]
    source: fx.Node
    destination: fx.Node

    def arguments(self) -> tuple[Any, ...]:
        """Those of the fused ops behind the relation, which may add calls at the graph's insertion point."""
        raise NotImplementedError

    def last_arguments(self) -> tuple[Any, ...]:
        """Those before the ones of dropout."""
        return ()

    def gradients(self, softmax_backward: fx.Node) -> Gradients:
        """The backward that starts with that of the softmax.

        Raises:
            NotFused: it is another one.
        """
        raise NotImplementedError

    def result(self, gradient: fx.Node, replaced: fx.Node) -> fx.Node:
        """A result of the fused backward as the node whose place it takes, at the graph's insertion point."""
        like = replaced.meta["val"]
        if gradient.meta["val"].dim() != like.dim():
            gradient = call(aten.view.default, (gradient, list(like.shape)), replaced, f"{replaced.name}_shaped")
        return _cast(gradient, replaced)

    def _activated_gradients(self, chosen_from: fx.Node, logits: fx.Node, slope: float) -> list[fx.Node]:
        """The backward of a leaky ReLU in either form, from the gradient of its result on; the last is its own."""
        found = readers(chosen_from)
        whole = only(n for n in found if n.target is aten.leaky_relu_backward.default)
        if whole is not None:
            fits = whole.args[:3] == (chosen_from, logits, slope)
            need(fits, f"{whole.name} is no backward of its leaky ReLU")
            return [whole]
        scaled = only(n for n in found if n.target is aten.mul.Tensor and n.args == (chosen_from, slope))
        chosen = only(n for n in found if n.target is aten.where.self and n.args[1:] == (chosen_from, scaled))
        masked = scaled is not None and chosen is not None and chosen.args[0] in _masks(logits)
        need(masked, "the backward does not pass its leaky ReLU")
        return [*_masks(logits), scaled, chosen]  # type: ignore[list-item]

    def _sums(self, gradient: fx.Node) -> dict[int, fx.Node]:
        """The sums of a gradient on edges at sources and destinations."""
        sums = [n for n in readers(gradient) if n.target is ops.spmm.default]
        sums = [n for n in sums if n.args[1:] == ("copy_rhs", None, gradient)]
        return _found(*(only(n for n in sums if n.args[0] == g) for g in (reverse(self.relation), self.relation)))


@dataclass(frozen=True)
class SumScores(Scores):
    """GAT: a leaky ReLU of a source's plus a destination's number."""

    op = ops.gat.default
    backward_op = ops.gat_bwd.default
    results = ("d_el", "d_er")

    @property
    def slope(self) -> float:
        return by_name(self.calls[1])["negative_slope"]  # type: ignore[no-any-return]

    @classmethod
    def of(cls, relation: list[fx.Node], activation: fx.Node) -> SumScores | None:
        if activation.target is not aten.leaky_relu.default:
            return None
        logits = activation.args[0]
        source, destination = _sum_of_ends(relation, logits)  # type: ignore[arg-type]
        for x in (source, destination, logits):
            shape = x.meta["val"].shape  # type: ignore[union-attr]
            fits = len(shape) == 3 and is_same(shape[2], 1) and is_same(shape[1], activation.meta["val"].shape[1])
            need(fits, shape_of(x))  # type: ignore[arg-type]
        return cls(relation, [logits, activation], source, destination)  # type: ignore[list-item]

    def arguments(self) -> tuple[Any, ...]:
        return tuple(_by_head(x) for x in (self.source, self.destination))

    def last_arguments(self) -> tuple[Any, ...]:
        return (self.slope,)

    def gradients(self, softmax_backward: fx.Node) -> Gradients:
        calls = self._activated_gradients(softmax_backward, self.calls[0], self.slope)
        return Gradients(calls, self._sums(calls[-1]))

    def result(self, gradient: fx.Node, replaced: fx.Node) -> fx.Node:
        return _cast(call(aten.unsqueeze.default, (gradient, -1), replaced, f"{replaced.name}_gat"), replaced)


@dataclass(frozen=True)
class KeyScores(Scores):
    """Logits of keys of sources and queries of destinations."""

    op = ops.attend.default
    backward_op = ops.attend_bwd.default

    def check(self) -> None:
        for x in (self.source, self.destination):
            need(x.meta["val"].dim() == 3, shape_of(x))
        need(self.source.meta["val"].device.type == "cpu", "only the CPU has a kernel for its logits")


@dataclass(frozen=True)
class AdditiveScores(KeyScores):
    """GATv2: the dot product of a vector and the leaky ReLU of a source's plus a destination's features."""

    results = ("d_k", "d_q", "d_a")
    vector: fx.Node = field(kw_only=True)

    @property
    def activation(self) -> fx.Node:
        return self.calls[1]

    @property
    def slope(self) -> float:
        return by_name(self.activation)["negative_slope"]  # type: ignore[no-any-return]

    @classmethod
    def of(cls, relation: list[fx.Node], logits: fx.Node) -> AdditiveScores | None:
        reshapes = list(back_to_values(logits))
        total = reshapes[-1]
        if total.target is not aten.sum.dim_IntList:
            return None
        product = total.args[0]
        if product.target is not aten.mul.Tensor:  # type: ignore[union-attr]
            return None
        factors = [n for n in product.args if isinstance(n, fx.Node)]  # type: ignore[union-attr]
        activation = only(n for n in factors if n.target is aten.leaky_relu.default)
        if activation is None or len(factors) != 2 or list(total.args[1]) not in ([-1], [2]):  # type: ignore[arg-type]
            return None
        vector = factors[1] if factors[0] is activation else factors[0]
        summed = activation.args[0]
        source, destination = _sum_of_ends(relation, summed)  # type: ignore[arg-type]
        shape = [1, *source.meta["val"].shape[1:]]
        of_vector = [1] * (3 - vector.meta["val"].dim()) + list(vector.meta["val"].shape)
        fits = len(of_vector) == 3 and is_same_size(tuple(shape), tuple(of_vector))
        need(fits, shape_of(vector))
        need(source.meta["val"].shape[1:] == destination.meta["val"].shape[1:], shape_of(destination))
        calls = [summed, activation, product, total, *reshapes[-2::-1]]
        scores = cls(relation, calls, source, destination, vector=vector)  # type: ignore[arg-type]
        scores.check()
        return scores

    def arguments(self) -> tuple[Any, ...]:
        shape = list(self.source.meta["val"].shape[1:])
        vector = call(aten.view.default, (self.vector, shape), self.vector, f"{self.vector.name}_by_head")
        return self.source, self.destination, vector, self.slope

    def gradients(self, softmax_backward: fx.Node) -> Gradients:
        path = list(on_to_reader(softmax_backward))
        expanded = only(n for n in readers(path[-1]) if n.target is aten.expand.default)
        of_logits = path[-1] if expanded is None else expanded
        products = [n for n in readers(of_logits) if n.target is aten.mul.Tensor]
        to_vector = only(n for n in products if _other(n, of_logits) is self.activation)
        to_ends = only(n for n in products if _other(n, of_logits) is self.vector)
        calls, ends = [*path[1:], *([] if expanded is None else [expanded])], {}
        if to_ends is not None:
            activated = self._activated_gradients(to_ends, self.calls[0], self.slope)
            calls += [to_ends, *activated]
            ends = self._sums(activated[-1])
        if to_vector is not None:
            total = only(n for n in readers(to_vector) if n.target is aten.sum.dim_IntList)
            need(total is not None and list(total.args[1]) == [0], f"{to_vector.name} is no gradient of its vector")  # type: ignore[arg-type,union-attr]
            calls.append(to_vector)
            ends[4] = total  # type: ignore[assignment]
        return Gradients(calls, ends)


@dataclass(frozen=True)
class DotScores(KeyScores):
    """Dot products of a source's and a destination's features, times a number."""

    factor: float = field(kw_only=True)

    @classmethod
    def of(cls, relation: list[fx.Node], logits: fx.Node) -> DotScores | None:
        calls, factor = [logits], 1.0
        number = _factor(logits)
        if number is not None:
            factor = number
            calls.insert(0, logits.args[0])  # type: ignore[arg-type]
        dot = calls[0]
        if dot.target is not ops.sddmm.default or dot.args[1] != "dot":
            return None
        source, destination = _ends(relation, dot)
        need(source.meta["val"].shape[1:] == destination.meta["val"].shape[1:], shape_of(destination))
        scores = cls(relation, calls, source, destination, factor=factor)
        scores.check()
        return scores

    def arguments(self) -> tuple[Any, ...]:
        return self.source, self.destination, None, self.factor

    def gradients(self, softmax_backward: fx.Node) -> Gradients:
        gradient, calls = softmax_backward, []
        if len(self.calls) == 2:
            scaling = self.calls[1]
            scaled = only(n for n in readers(softmax_backward) if n.target is scaling.target)
            fits = scaled is not None and scaled.args == (softmax_backward, scaling.args[1])
            need(fits, "the backward does not pass the factor of its dot products")
            gradient = scaled  # type: ignore[assignment]
            calls.append(gradient)
        sums = [n for n in readers(gradient) if n.target is ops.spmm.default and n.args[1] == "mul"]

        def total(g: Sequence[fx.Node], of: fx.Node) -> fx.Node | None:
            given = [n for n in sums if n.args[0] == g and n.args[3] is gradient]
            return only(n for n in given if _values(n.args[2]) is _values(of) and by_name(n)["rows"] is None)  # type: ignore[arg-type]

        to_source = total(reverse(self.relation), self.destination)
        return Gradients(calls, _found(to_source, total(self.relation, self.source)))


KINDS = (SumScores, AdditiveScores, DotScores)


def scores_of(softmax: fx.Node) -> Scores:
    """How the logits of an edge softmax are computed.

    Raises:
        NotFused: in a way that no fused op knows.
    """
    relation, logits = softmax.args
    for kind in KINDS:
        scores = kind.of(relation, logits)  # type: ignore[arg-type]
        if scores is not None:
            break
    else:
        raise NotFused("what it reads is no leaky ReLU, none times a vector and no dot product")
    for x in (scores.source, scores.destination, logits):
        dtype = x.meta["val"].dtype  # type: ignore[union-attr]
        need(dtype in FLOATS, f"its logits are {str(dtype).removeprefix('torch.')}")
    shape = logits.meta["val"].shape  # type: ignore[union-attr]
    fits = len(shape) == 3 and is_same(shape[2], 1)
    need(fits and is_same(shape[1], scores.source.meta["val"].shape[1]), shape_of(logits))  # type: ignore[arg-type]
    return scores


def _ends(relation: list[fx.Node], on_edges: fx.Node) -> tuple[fx.Node, fx.Node]:
    """What an op reads on sources and destinations of a relation."""
    g, _, left, right, *targets = on_edges.args
    need(
        g == relation and sorted(targets) == ["u", "v"],
        "its logits are not made of what a source and a destination have",
    )
    return (left, right) if targets == ["u", "v"] else (right, left)  # type: ignore[return-value]


def _sum_of_ends(relation: list[fx.Node], on_edges: fx.Node) -> tuple[fx.Node, fx.Node]:
    summed = on_edges.target is ops.sddmm.default and on_edges.args[1] == "add"
    need(summed, "what the leaky ReLU reads is no sum of what a source and a destination have")
    return _ends(relation, on_edges)


def _masks(logits: fx.Node) -> list[fx.Node]:
    return [n for n in readers(logits) if n.target is aten.gt.Scalar and n.args[1] == 0]


def _factor(node: fx.Node) -> float | None:
    """The number that a node multiplies a tensor with."""
    if node.target not in (aten.div.Tensor, aten.mul.Tensor) or not isinstance(node.args[0], fx.Node):
        return None
    number = node.args[1]
    if not isinstance(number, (int, float)) or isinstance(number, bool):
        return None
    return float(number) if node.target is aten.mul.Tensor else 1.0 / number if number else None


def _other(product: fx.Node, factor: fx.Node) -> object:
    left, right = product.args
    return right if left is factor else left if right is factor else None


def _found(*ends: fx.Node | None) -> dict[int, fx.Node]:
    """Ends by the result of the fused backward, of which the first two are gradients of other things."""
    return {i: end for i, end in enumerate(ends, 2) if end is not None}


def _values(node: fx.Node) -> fx.Node:
    return list(back_to_values(node))[-1]


def _by_head(x: fx.Node) -> fx.Node:
    """``[N, H]`` of ``[N, H, 1]``."""
    if x.target is aten.unsqueeze.default and x.args[1] in (-1, 2):
        return x.args[0]  # type: ignore[return-value]
    return call(aten.squeeze.dim, (x, -1), x, f"{x.name}_by_head")


def _cast(node: fx.Node, like: fx.Node) -> fx.Node:
    dtype = like.meta["val"].dtype
    return node if dtype is torch.float32 else call(aten.to.dtype, (node, dtype), like, f"{like.name}_cast")
