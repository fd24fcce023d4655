"""Compute a cross-entropy loss from the logits in one op, and the gradient of all logits in another."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import fx

from gqc.joint import JointGraph
from gqc.passes.attention_chain import FLOATS, NotFused, need, only, readers, shape_of
from gqc.passes.nodes import FORWARD, aten, call, drop_unused, example, origin, pick, size
from gqc.passes.pointwise_steps import is_same, is_same_size
from gqc.passes.primitive import ops
from gqc.passes.report import FUSED, UNFUSED, Decision, Report
from gqc.policy import Policy
from gqc.runtime.ops.cross_entropy import REDUCTIONS

LOSS, LOSS_BACKWARD = aten.nll_loss_forward.default, aten.nll_loss_backward.default
SOFTMAX, SOFTMAX_BACKWARD = aten._log_softmax.default, aten._log_softmax_backward_data.default
CAST = aten._to_copy.default

_LOSSES = (LOSS, aten.nll_loss2d_forward.default)
_ZEROS = (aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default)


def fuse_cross_entropy(joint: JointGraph, policy: Policy) -> Report:
    """Replace log-softmax, negative log-likelihood and the selection of rows with labels by one op, and what the
    backward derives from them by another. On the CPU.

    Requires: nothing. It runs before :func:`compress_saved`, which must know what the backward reads.
    Does: finds ``nll_loss`` of a ``log_softmax``, as ``F.cross_entropy`` runs them, with the selection of rows by a
        mask or an index before the softmax or behind it, and casts of the logits to float32. Where nothing else reads
        the log-probabilities, ``gqc.cross_entropy`` and ``gqc.cross_entropy_backward`` take their place. Of at most
        half of the rows, or with ``Policy.save_bits``, the logits of these rows are saved for the backward; else all
        logits, which are then not copied. Losses with weights of classes or label smoothing stay torch's.
    Ensures: the same loss and gradients up to float rounding; of logits in half precision computed in float32. The
        order of sums does not depend on the number of threads.
    """
    report = Report("fuse_cross_entropy")
    for node in [n for n in joint.graph.nodes if n.target in _LOSSES]:
        try:
            need(joint.device.type == "cpu", "no kernel for GPUs yet")
            loss = _Loss.of(node)
            ends = loss.gradient()
            action, reason = FUSED, _fuse(loss, ends, policy)
        except NotFused as why:
            action, reason = UNFUSED, str(why)
        report.decisions.append(Decision(node.name, origin(node).module, "loss", FORWARD, action, reason))
    drop_unused(joint.graph)
    return report


@dataclass
class _Loss:
    """The calls from logits to a loss.

    Attributes:
        node: the ``nll_loss_forward``.
        softmax: its ``_log_softmax``.
        logits: of all rows.
        rows: numbers of the selected rows; ``None``: all.
        before, behind: selection and casts between logits and softmax, and a selection between softmax and loss.
    """

    node: fx.Node
    softmax: fx.Node
    logits: fx.Node
    rows: fx.Node | None = None
    before: list[fx.Node] = field(default_factory=list)
    behind: list[fx.Node] = field(default_factory=list)

    @classmethod
    def of(cls, node: fx.Node) -> _Loss:
        need(node.target is LOSS, "its classes are not the last of two axes")
        softmax, labels, weights, *_ = node.args
        need(weights is None, "its classes have weights")
        need(labels.meta["val"].dim() == 1 and labels.meta["val"].dtype is torch.int64, shape_of(labels))  # type: ignore
        behind, rows = [], _selected(softmax)  # type: ignore[arg-type]
        if rows is not None:
            behind.append(softmax)
            softmax = softmax.args[0]  # type: ignore[union-attr]
        need(softmax.target is SOFTMAX, f"{softmax.name} is no log-softmax")  # type: ignore[union-attr]
        loss = cls(node, softmax, softmax.args[0], rows, behind=behind)  # type: ignore[arg-type,union-attr]
        loss._take_in()
        value = loss.logits.meta["val"]
        need(value.dim() == 2 and softmax.args[1] in (1, -1), shape_of(loss.logits))  # type: ignore[union-attr]
        need(value.dtype in FLOATS, f"its logits are {value.dtype}")
        return loss

    def _take_in(self) -> None:
        """Go back over a selection of rows and casts to float32 that only the softmax reads."""
        while len(readers(self.logits)) == 1:
            rows = _selected(self.logits)
            if rows is not None and self.rows is None:
                self.rows = rows
            elif not _is_widened(self.logits):
                return
            self.before.insert(0, self.logits)
            self.logits = self.logits.args[0]  # type: ignore[assignment]

    @property
    def probabilities(self) -> fx.Node:
        """What the loss reads."""
        return self.behind[0] if self.behind else self.softmax

    def gradient(self) -> tuple[fx.Node, fx.Node] | None:
        """The call that reads the gradient of the loss and the one that gives the gradient of all logits."""
        first = only(n for n in readers(self.probabilities) if n.target is LOSS_BACKWARD)
        last = only(n for n in readers(self.softmax) if n.target is SOFTMAX_BACKWARD)
        known = {self.node, first, last, *self.behind}
        others = [n for p in (self.softmax, *self.behind) for n in readers(p) if n not in known]
        need(not others, f"{others[0].name if others else ''} reads its log-probabilities too")
        total = [n for n in readers(pick(self.node, 1)) if n is not first]
        need(not total, "its number of labels is read")
        if first is None or last is None:
            need(first is last, "only a part of its gradient is known")
            return None
        end = first
        for _ in self.behind:
            end = self._scattered(end)
        need(
            _only_reader(end) is last and last.args[0] is end, f"more than {last.name} reads the gradient of {end.name}"
        )
        end = last
        for step in reversed(self.before):
            end = self._scattered(end) if _selected(step) else _cast(end)
        need(is_same_size(end.meta["val"].shape, self.logits.meta["val"].shape), shape_of(end))
        return first, end

    def _scattered(self, gradient: fx.Node) -> fx.Node:
        """The sum of a gradient of selected rows into zeros."""
        node = _only_reader(gradient)
        if node.target is aten.index_put.default:
            zeros, index, values, *accumulate = node.args
            fits = list(index) == [self.rows] and accumulate == [True]  # type: ignore[arg-type]
        else:
            need(node.target is aten.index_add.default, f"{node.name} reads the gradient of {gradient.name}")
            zeros, axis, index, values = node.args
            fits = axis == 0 and index is self.rows and not node.kwargs
        need(fits and values is gradient and zeros.target in _ZEROS, f"{node.name} is no sum into zeros")  # type: ignore
        return node


def _cast(gradient: fx.Node) -> fx.Node:
    node = _only_reader(gradient)
    need(_is_cast(node), f"{node.name} reads the gradient of {gradient.name}")
    return node


def _only_reader(node: fx.Node) -> fx.Node:
    found = [n for n in readers(node) if n.target not in _ZEROS]  # these read its type
    need(len(found) == 1, f"{len(found)} calls read the gradient of {node.name}")
    return found[0]


def _selected(node: fx.Node) -> fx.Node | None:
    """The numbers of the rows of a matrix that a node selects."""
    if node.target is aten.index.Tensor and len(node.args[1]) == 1:  # type: ignore[arg-type]
        rows = node.args[1][0]  # type: ignore[index]
    elif node.target is aten.index_select.default and node.args[1] == 0:
        rows = node.args[2]
    else:
        return None
    value = rows.meta["val"]
    fits = value.dtype is torch.int64 and value.dim() == 1 and node.meta["val"].dim() == 2
    return rows if fits else None


def _is_widened(node: fx.Node) -> bool:
    """Whether a node casts floats of 16 bits to float32, which changes no value."""
    return _is_cast(node) and node.meta["val"].dtype is torch.float32


def _is_cast(node: fx.Node) -> bool:
    """Whether a node casts floats to others and does nothing else."""
    if node.target is not CAST or not set(node.kwargs) <= {"dtype", "layout", "device"}:
        return False
    value, operand = node.meta["val"], node.args[0].meta["val"]  # type: ignore[union-attr]
    return {value.dtype, operand.dtype} <= set(FLOATS) and value.device == operand.device


def _fuse(loss: _Loss, ends: tuple[fx.Node, fx.Node] | None, policy: Policy) -> str:
    node, logits, rows = loss.node, loss.logits, loss.rows
    graph, labels, options = node.graph, node.args[1], (REDUCTIONS[node.args[3]], node.args[4])  # type: ignore[index]
    gathers = rows is not None and ends is not None and _saves_selected(logits, rows, policy)
    with graph.inserting_before(node):
        if gathers:
            read = call(aten.index.Tensor, (logits, [rows]), node, f"{node.name}_logits")
        chosen = (read, labels, None) if gathers else (logits, labels, rows)
        fused = call(ops.cross_entropy.default, (*chosen, *options), node, f"{node.name}_fused")
    value, counted = pick(fused, 0, f"{node.name}_loss"), pick(fused, 1, f"{node.name}_counted")
    if (dtype := pick(node, 0).meta["val"].dtype) is not torch.float32:
        with graph.inserting_after(value):
            value = call(CAST, (value,), node, f"{node.name}_rounded", dtype=dtype)
    if ends is not None:
        first, last = ends
        with graph.inserting_before(last):
            scattered = (size(logits, 0),) if gathers else ()
            of = (chosen[0], labels, rows, counted, *options, *scattered)
            backward = call(ops.cross_entropy_backward.default, (first.args[0], *of), last, f"{last.name}_fused")
        last.replace_all_uses_with(backward)
    pick(node, 0).replace_all_uses_with(value)
    for step in (*loss.before, loss.softmax, *loss.behind):
        every = rows is None or is_same(step.meta["val"].shape[0], logits.meta["val"].shape[0])
        _free_sizes(step, logits if every else rows)
    if rows is None:
        return "computed from the logits, which the backward reads again"
    if gathers:
        return f"computed from a copy of the logits of the rows {rows.name}, which the backward reads again"
    return f"computed from the logits of the rows {rows.name}; the backward reads the logits again"


def _saves_selected(logits: fx.Node, rows: fx.Node, policy: Policy) -> bool:
    """Whether the backward reads a copy of the logits of selected rows instead of all of them."""
    count, selected = (example(n.meta["val"].shape[0]) for n in (logits, rows))
    return 2 * selected <= count or (policy.saves is not None and selected < count)


def _free_sizes(node: fx.Node, other: fx.Node) -> None:
    """Take the number of rows from another tensor where it is taken from one that is no longer computed."""
    for user in list(node.users):
        if user.target is aten.sym_size.int and user.args[1] == 0:
            with node.graph.inserting_before(user):
                count = call(aten.sym_size.int, (other, 0), user, f"{user.name}_rows")
            user.replace_all_uses_with(count)
