"""Save float tensors for the backward in few bits."""

from __future__ import annotations

from functools import partial

import torch
from torch import fx

from gqc.joint import JointGraph
from gqc.passes.backward_reading import Reading
from gqc.passes.compressed_rows import Rows
from gqc.passes.held_rows import gather_again, gathers_held_rows
from gqc.passes.kept_as_is import EXACT_STATISTIC, KeptAsIs
from gqc.passes.loss_operands import FEWEST_BITS_OF_LOSS, loss_operands
from gqc.passes.nodes import (
    FOR_BACKWARD,
    FORWARD,
    RESHAPES,
    drop_unused,
    example_numel,
    is_tensor,
    mutates,
    needed_for,
    source,
)
from gqc.passes.report import COMPRESSED, Decision, Report
from gqc.passes.rounded_reads import fewest_bits, fixed_in_forward, let_read_linearly
from gqc.passes.row_statistics import row_statistics, sums_and_scalings
from gqc.passes.saved_plan import AS_IS, PLAN, WIDTHS, SavedPlan, compressed_to, recomputed
from gqc.passes.saved_values import choose_saved, tangent_dependent
from gqc.passes.saving_modules import asked_bits
from gqc.policy import Policy
from gqc.save_bits import SAVED_WIDTHS, SaveBits

FIRST_STREAM = 1 << 17
"""Number of the first compressed tensor's stream of random bits, behind those of ``quantize`` and of dropout."""


def compress_saved(joint: JointGraph, policy: Policy) -> Report:
    """Save the float tensors that the backward reads in 1, 2, 4 or 8 bits a value and the range of each row.

    Requires: :func:`save_masks`, :func:`fuse_attention` and :func:`recompute_products` before it (order only), after
        which what the backward reads is known.
    Does: with ``Policy.save_bits``, chooses what the forward saves by the bytes that it takes in few bits, and gives
        the backward the decompressed tensor from its first reader on. Masks, derivatives of activations and whatever
        else is not linear in a compressed tensor are computed in the forward, from the exact one. Rows of an embedding
        or another table that the caller holds are gathered again instead. What the caller holds, results of the model,
        integers, what is made of graph structure alone, and small tensors stay as they are. What a loss in the model
        reads has 8 bits at least.
    Ensures: the forward, bit for bit; with stochastic rounding the expectation of gradients, but for what
        normalizations and softmaxes multiply a rounded value with itself.
    """
    report = Report("compress_saved")
    if policy.saves is None or not joint.training:
        return report
    late = tangent_dependent(joint)
    for node in list(joint.graph.nodes):
        if node in late:
            let_read_linearly(node, late)
    drop_unused(joint.graph)
    _Compression(joint, policy.saves, report).run()
    drop_unused(joint.graph)
    return report


class _Compression:
    def __init__(self, joint: JointGraph, saves: SaveBits, report: Report) -> None:
        self.joint, self.saves, self.report = joint, saves, report
        self.late = tangent_dependent(joint)
        self.of_loss = loss_operands(joint)
        self.kept, self.repeats = KeptAsIs(joint, saves), set[fx.Node]()
        self._found: dict[fx.Node, Rows] = {}
        self._again: set[fx.Node] = set()

    def run(self) -> None:
        saved = self._choose()
        gathered = [node for node in saved if gathers_held_rows(node)]
        chosen = [node for node in saved if self.kept.reason(node) is None and node not in gathered]
        if not (chosen or gathered):
            return
        reading = Reading(self.joint, saved, self.repeats)
        reading.restored.update((node, partial(gather_again, node)) for node in gathered)
        stochastic = self.saves.rounding == "stochastic"
        seed = self.joint.seed() if chosen and (stochastic or self.saves.project is not None) else None
        for number, node in enumerate(chosen):
            decided = self.joint.saved_widths.get(node.name)
            rows = self._rows(node) if decided is None else self._rows_of(node, decided[0])
            compressed = rows.compress(node, seed, FIRST_STREAM + number, stochastic)
            reading.restored[node] = compressed.decompress
            nbytes = rows.nbytes(node.meta["val"])
            why = self._why(node, rows) if decided is None else decided[1]
            plan = SavedPlan.of(node, nbytes, compressed_to(rows.bits), why + _projected(rows), self.late)
            compressed.results[0].meta.update({PLAN: plan, WIDTHS: self._widths(node)})
            told = f"{plan.how}: {plan.reason}"
            self.report.decisions.append(Decision(node.name, plan.module, "activation", FORWARD, COMPRESSED, told))
        for node in saved:
            if self.kept.reason(node) == EXACT_STATISTIC:
                node.meta[PLAN] = SavedPlan.of(node, self._nbytes(node), AS_IS, EXACT_STATISTIC, self.late)
        reading.rewire()
        self.report.plans = [recomputed(node, self.late) for node in (*gathered, *reading.again())]

    def _choose(self) -> list[fx.Node]:
        """What is saved: the least of what statistics of rows that stay exact, and what is repeated then, leave."""
        statistics = row_statistics(self.joint) - self.late
        repeats = sums_and_scalings(self.joint, statistics) - self.late
        least, best = None, None
        for choice in [(set(), set()), (statistics, set()), (statistics, repeats)]:
            nbytes = sum(map(self._nbytes, self._cheapest(*choice)))
            if least is None or nbytes <= least:
                least, best = nbytes, choice
        return self._cheapest(*best)

    def _cheapest(self, exact: set[fx.Node], repeats: set[fx.Node]) -> list[fx.Node]:
        early = [n for n in self.joint.graph.nodes if n not in self.late and n.op != "output"]
        updates = [n for n in self.joint.graph.nodes if mutates(n) and n not in self.late]
        needed = needed_for([*self.joint.forward_outputs, *updates])
        self.kept, self.repeats, self._found = KeptAsIs(self.joint, self.saves, exact), repeats, {}
        fixed = fixed_in_forward(early, needed, repeats, lambda n: self.kept.reason(n) is None)
        extra = [n for n in early if n not in needed and n.op == "call_function"]
        for node in extra:
            node.meta[FOR_BACKWARD] = True
        self._again = repeats.union(extra) - fixed
        return choose_saved(self.joint, self._cost, fixed, repeats)

    def _nbytes(self, node: fx.Node) -> int:
        if node.op == "placeholder" or not is_tensor(node):
            return 0
        value, cost = node.meta["val"], self._cost(node)
        return example_numel(value) * value.dtype.itemsize if cost is None else cost

    def _cost(self, node: fx.Node) -> int | None:
        if node.target in RESHAPES:
            node, _ = source(node)
        value = node.meta["val"]
        if gathers_held_rows(node):
            return 1
        if value.dtype is torch.bool:
            return max(1, example_numel(value) // 8)
        if self.kept.reason(node) is not None:
            return None
        return self._rows(node).nbytes(value)

    def _rows(self, node: fx.Node) -> Rows:
        if node not in self._found:
            bits = max(asked_bits(node, self.saves, self.late)[1], self._fewest(node)[0])
            self._found[node] = self._rows_of(node, bits)
        return self._found[node]

    def _rows_of(self, node: fx.Node, bits: int) -> Rows:
        fewest, _ = self._fewest(node)
        return Rows.of(bits, self.saves, node.meta["val"], project=fewest == 1)

    def _fewest(self, node: fx.Node) -> tuple[int, str]:
        if node in self.of_loss:
            return FEWEST_BITS_OF_LOSS, "the loss reads it"
        return fewest_bits(node, self.late, self._again)

    def _widths(self, node: fx.Node) -> dict[int, int]:
        """Bytes of a tensor by bits."""
        fewest, value = self._fewest(node)[0], node.meta["val"]
        return {bits: self._rows_of(node, bits).nbytes(value) for bits in SAVED_WIDTHS if bits >= fewest}

    def _why(self, node: fx.Node, rows: Rows) -> str:
        entry, width = asked_bits(node, self.saves, self.late)
        asked = f"save_bits={width}" if entry is None else f"save_bits[{entry!r}]={width}"
        return asked if width == rows.bits else f"{asked}, but {self._fewest(node)[1]}"


def _projected(rows: Rows) -> str:
    return f", projected to {rows.kept} values a row" if rows.kept else ""
