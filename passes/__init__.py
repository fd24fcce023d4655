"""The passes over the joint forward and backward graph, in running order.

A pass is a function ``(JointGraph, Policy) -> Report`` that rewrites or marks the graph. Its docstring says what it
requires, does and ensures; :mod:`gqc.passes.verify` checks that after each. :func:`gqc.passes.partition.partition`
then splits the graph into the two halves that run.
"""

from collections.abc import Callable

from gqc.joint import JointGraph
from gqc.passes.choose_bits import choose_bits
from gqc.passes.copy_updated import copy_updated
from gqc.passes.draw_masks import draw_masks
from gqc.passes.find_primitives import find_primitives
from gqc.passes.keep_full_precision import keep_full_precision
from gqc.passes.measure_saved import measure_saved
from gqc.passes.partition import partition
from gqc.passes.quantize_operands import quantize_operands
from gqc.passes.report import Decision, Report
from gqc.passes.save_masks import save_masks
from gqc.passes.scale_after_gemm import scale_after_gemm
from gqc.passes.share_quantized import share_quantized
from gqc.passes.simplify import simplify
from gqc.passes.verify import verify, verify_decided
from gqc.policy import Policy

PIPELINE = (
    simplify,
    copy_updated,
    scale_after_gemm,
    find_primitives,
    measure_saved,
    keep_full_precision,
    choose_bits,
    quantize_operands,
    share_quantized,
    draw_masks,
    save_masks,
)

__all__ = [
    "PIPELINE",
    "Decision",
    "Report",
    "choose_bits",
    "copy_updated",
    "draw_masks",
    "find_primitives",
    "keep_full_precision",
    "measure_saved",
    "partition",
    "quantize_operands",
    "run",
    "save_masks",
    "scale_after_gemm",
    "share_quantized",
    "simplify",
    "verify",
]


Watch = Callable[[JointGraph, Report], None]
"""Looks at the joint graph after a pass and at what the pass reports; the first call is before any pass."""


def run(joint: JointGraph, policy: Policy, watch: Watch | None = None) -> list[Report]:
    """Run all passes over a joint graph, which is changed in place.

    Args:
        joint: forward and backward of a captured graph.
        policy: how to quantize.
        watch: is called with the graph and an empty report named ``"joint"`` before the first pass, and with the graph
            and the report of each pass after it. It must not change either.

    Raises:
        PassError: a pass broke what it ensures.
    """
    reports: list[Report] = []
    if watch is not None:
        watch(joint, Report("joint"))
    for rewrite in PIPELINE:
        reports.append(rewrite(joint, policy))
        verify(joint, rewrite.__name__)
        if watch is not None:
            watch(joint, reports[-1])
    verify_decided(joint)
    joint.module.recompile()
    return reports
