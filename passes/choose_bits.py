"""Choose how many bits the operands of each primitive have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from gqc.joint import JointGraph
from gqc.layer_bits import AUTO, DEFAULT, EXACT, WIDTHS, Bits, LayerBits
from gqc.passes.nodes import origin
from gqc.passes.primitive import marked, ops
from gqc.passes.report import KEPT, Decision, Report
from gqc.policy import Policy

THRESHOLD, EPSILON = 0.3, 0.0005


def error_x(x: Tensor, bits: int) -> float:
    """How much of a tensor gets lost in ``bits`` bits: ``mean(|X - Xq| / (|X + Xq| + 0.0005))`` (Tango, equation 4).

    Args:
        x: any shape, floating-point; NaN if it has no elements or holds NaN or Inf.
        bits: 2 to 8. ``Xq`` is ``x`` rounded to the nearest level, so measuring draws no random numbers.
    """
    x = x.detach().float()
    q, scale = ops.quantize(x, None, None, 0, bits, False)
    rounded = ops.dequantize(q, scale, x.dtype)
    return ((x - rounded).abs() / ((x + rounded).abs() + EPSILON)).mean().item()


@dataclass(frozen=True)
class BitRule:
    """What ``Policy.bits="auto"`` decided.

    Attributes:
        bits: the smallest of 2 to 8 whose error is at most 0.3, else 8.
        errors: :func:`error_x` by width; empty where nothing was measured.
        reason: what was measured, or why nothing was.
    """

    bits: int
    reason: str
    errors: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, x: Tensor, name: str) -> BitRule:
        """Apply the rule to a tensor, called ``name`` for people."""
        errors = {bits: error_x(x, bits) for bits in WIDTHS}
        enough = [bits for bits, error in errors.items() if error <= THRESHOLD]
        last = "" if enough else f", which no width keeps to {THRESHOLD}"
        return cls(min(enough, default=DEFAULT), f"Error_X of {name}{last}", errors)

    def __str__(self) -> str:
        errors = "".join(f", {bits} bits {error:.3f}" for bits, error in self.errors.items())
        return f"{self.bits} bits: {self.reason}{errors}"


def width(policy: Policy, module: str) -> tuple[str | None, Bits]:
    """The width of a module's primitives, and the entry of ``Policy.bits`` that says so if modules have their own."""
    return policy.bits.find(module) if isinstance(policy.bits, LayerBits) else (None, policy.bits)  # type: ignore[return-value]


def choose_bits(joint: JointGraph, policy: Policy) -> Report:
    """Give every primitive that is not kept the width of its module.

    Requires: :func:`find_primitives`; after :func:`keep_full_precision`, so that only what is quantized gets a width.
    Does: sets :attr:`Primitive.bits` from ``Policy.bits``; a layer of 32 bits is kept in full precision. A backward
        primitive has the module, and so the width, of its forward. ``"auto"`` is :attr:`JointGraph.bit_rule`, which
        the compiler measures on the first call (Tango, section 3.2: the first GNN layer's output in the first step);
        a graph without one gets 8 bits.
    Ensures: operands of one primitive have one width.
    """
    report = Report("choose_bits")
    for node, primitive in marked(joint.graph):
        if primitive.kept is not None:
            continue
        entry, bits = width(policy, origin(node).module)
        if bits == AUTO:
            bits = DEFAULT if joint.bit_rule is None else joint.bit_rule.bits
            report.numbers["bits chosen"] = bits
        if bits == EXACT:
            kept = "Policy.bits=32" if entry is None else f"Policy.bits[{entry!r}]=32"
            node.meta["gqc"] = replace(primitive, kept=kept)
            decision = Decision(node.name, origin(node).module, primitive.kind, primitive.half, KEPT, kept)
            report.decisions.append(decision)
        else:
            node.meta["gqc"] = replace(primitive, bits=bits)
    return report
