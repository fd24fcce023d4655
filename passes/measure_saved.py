"""Measure what training in full precision would save."""

from __future__ import annotations

from gqc.joint import JointGraph
from gqc.passes.report import Report
from gqc.passes.saved_values import choose_saved, describe
from gqc.policy import Policy

SAVED_BYTES = "bytes saved for the backward in full precision"


def measure_saved(joint: JointGraph, policy: Policy) -> Report:
    """Count the bytes that the forward of the unquantized graph would save, to compare with.

    Requires: the graph as captured.
    Does: chooses the saved values as :func:`gqc.passes.partition.partition` does, which is at most what eager saves.
    Ensures: nothing changes.
    """
    nbytes = sum(describe(node).nbytes() for node in choose_saved(joint))
    return Report("measure_saved", numbers={SAVED_BYTES: nbytes})
