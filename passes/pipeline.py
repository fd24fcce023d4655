"""Which passes run over a joint graph, in which order."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from gqc.errors import GqcError, PassError, PolicyError
from gqc.joint import JointGraph
from gqc.passes.choose_bits import choose_bits
from gqc.passes.compress_saved import compress_saved
from gqc.passes.copy_updated import copy_updated
from gqc.passes.draw_masks import draw_masks
from gqc.passes.find_primitives import find_primitives
from gqc.passes.fuse_attention import fuse_attention
from gqc.passes.fuse_cross_entropy import fuse_cross_entropy
from gqc.passes.fuse_kernels import fuse_kernels
from gqc.passes.fuse_pointwise import fuse_pointwise
from gqc.passes.fuse_products import fuse_products
from gqc.passes.fuse_weighted_sums import fuse_weighted_sums
from gqc.passes.interface import Interface
from gqc.passes.keep_full_precision import keep_full_precision
from gqc.passes.measure_saved import measure_saved
from gqc.passes.multiply_floats import multiply_floats
from gqc.passes.pack_integers import pack_integers
from gqc.passes.pair_products import pair_products
from gqc.passes.quantize_operands import quantize_operands
from gqc.passes.recompute_products import recompute_products
from gqc.passes.report import Report
from gqc.passes.save_masks import save_masks
from gqc.passes.scale_after_gemm import scale_after_gemm
from gqc.passes.schedule import schedule
from gqc.passes.share_quantized import share_quantized
from gqc.passes.simplify import simplify
from gqc.passes.store_float24 import store_float24
from gqc.passes.verify import verify, verify_decided
from gqc.policy import Insert, Pass, Policy, did_you_mean

Watch = Callable[[JointGraph, Report], None]
"""Looks at the joint graph after a pass and at what the pass reports; the first call is before any pass."""


@dataclass(frozen=True)
class Step:
    """A pass at its place in the pipeline.

    Attributes:
        name: the pass.
        run: its function.
        requires: the passes without which it would be wrong. Without others it may only find less to do.
        enables: what runs behind the pipeline and would be wrong without the pass.
    """

    name: str
    run: Pass
    requires: tuple[str, ...] = ()
    enables: str = ""


PIPELINE = (
    Step("simplify", simplify),
    Step("copy_updated", copy_updated, enables="partition"),
    Step("scale_after_gemm", scale_after_gemm),
    Step("find_primitives", find_primitives),
    Step("measure_saved", measure_saved),
    Step("keep_full_precision", keep_full_precision, requires=("find_primitives",)),
    Step("choose_bits", choose_bits, requires=("find_primitives",)),
    Step("quantize_operands", quantize_operands, requires=("find_primitives", "keep_full_precision", "choose_bits")),
    Step("share_quantized", share_quantized),
    Step("draw_masks", draw_masks),
    Step("save_masks", save_masks),
    Step("fuse_attention", fuse_attention),
    Step("fuse_cross_entropy", fuse_cross_entropy),
    Step("fuse_kernels", fuse_kernels),
    Step("recompute_products", recompute_products),
    Step("fuse_weighted_sums", fuse_weighted_sums),
    Step("compress_saved", compress_saved),
    Step("multiply_floats", multiply_floats),
    Step("fuse_pointwise", fuse_pointwise),
    Step("fuse_products", fuse_products),
    Step("pair_products", pair_products),
    Step("store_float24", store_float24),
    Step("pack_integers", pack_integers),
    Step("schedule", schedule),
)
"""The passes of gqc in running order."""

FIND_MESSAGES = "find_messages"
"""The pass over a captured graph, before it is differentiated (:func:`gqc.capture.messages.find_messages`)."""


def select(policy: Policy) -> tuple[Step, ...]:
    """The passes that run under a policy, in running order: the built-in ones, ``Policy.passes`` among them, without
    ``Policy.skip``.

    Raises:
        PolicyError: a name is unknown or taken, or a pass is to be skipped that a remaining one needs.
    """
    steps = list(PIPELINE)
    for insert in policy.passes:
        names = [step.name for step in steps]
        if insert.name in (FIND_MESSAGES, *names):
            raise PolicyError(f"Policy.passes has a second pass named {insert.name!r}: give one Insert another name")
        _known(insert.anchor, names, f"Policy.passes inserts {insert.name!r} beside")
        steps.insert(_place(insert, steps, policy), Step(insert.name, insert.run))
    for name in policy.skip:
        _known(name, [FIND_MESSAGES, *(step.name for step in steps)], "Policy.skip names")
    left = tuple(step for step in steps if step.name not in policy.skip)
    for step in steps:
        if step.name in policy.skip:
            _dispensable(step, left)
    return left


def run(joint: JointGraph, policy: Policy, watch: Watch | None = None) -> list[Report]:
    """Run the passes of a policy over a joint graph, which is changed in place.

    Args:
        joint: forward and backward of a captured graph.
        policy: how to quantize, and with which passes.
        watch: is called with the graph and an empty report named ``"joint"`` before the first pass, and with the graph
            and the report of each pass after it. It must not change either.

    Raises:
        PassError: a pass failed or broke what it ensures; the message names the pass.
        PolicyError: see :func:`select`.
    """
    steps = select(policy)
    reports: list[Report] = []
    if watch is not None:
        watch(joint, Report("joint"))
    done: set[str] = set()
    for step in steps:
        done.add(step.name)
        reports.append(run_step(step, joint, policy, done))
        if watch is not None:
            watch(joint, reports[-1])
    joint.module.recompile()
    return reports


def run_step(step: Step, joint: JointGraph, policy: Policy, done: Set[str]) -> Report:
    """Run one pass and verify the graph that it leaves.

    Args:
        step: the pass.
        joint: what it rewrites.
        policy: how to quantize.
        done: names of the passes that have run, this one included; what they ensure must hold.

    Raises:
        PassError: the pass failed, gave no report, or broke what a pass ensures; the message names it.
    """
    before = Interface.of(joint)
    try:
        report = step.run(joint, policy)
    except GqcError:
        raise
    except Exception as error:
        raise PassError(f"pass {step.name} failed with {type(error).__name__}: {error}") from error
    if not isinstance(report, Report):
        raise PassError(f"pass {step.name} returned {report!r}: return a gqc.passes.Report")
    report.name = step.name
    verify(joint, step.name, found="find_primitives" in done, before=before)
    if "quantize_operands" in done:
        verify_decided(joint, step.name)
    return report


def _dispensable(step: Step, left: tuple[Step, ...]) -> None:
    if step.enables:
        raise PolicyError(f"Policy.skip names {step.name!r}, which {step.enables} needs, and that always runs")
    dependents = [other.name for other in left if step.name in other.requires]
    if dependents:
        needed = f"which {' and '.join(dependents)} need{'' if len(dependents) > 1 else 's'}"
        raise PolicyError(f"Policy.skip names {step.name!r}, {needed}: skip {' and '.join(dependents)} too")


def _place(insert: Insert, steps: list[Step], policy: Policy) -> int:
    """Where a pass goes; passes inserted at the same place keep the order in which the policy lists them."""
    at = next(i for i, step in enumerate(steps) if step.name == insert.anchor)
    if insert.before is not None:
        return at
    siblings = {other.name for other in policy.passes if other.after == insert.after}
    at += 1
    while at < len(steps) and steps[at].name in siblings:
        at += 1
    return at


def _known(name: str, names: list[str], what: str) -> None:
    if name not in names:
        raise PolicyError(f"{what} {name!r}, which is no pass{did_you_mean(name, names)}")
