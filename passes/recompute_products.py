"""Compute an int8 product again in the backward instead of saving its float result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import fx

from gqc.joint import JointGraph
from gqc.passes.nodes import (
    BACKWARD,
    IDENTITIES,
    RESHAPES,
    by_name,
    call,
    drop_unused,
    example,
    example_numel,
    origin,
    pick,
    replay,
    source,
)
from gqc.passes.pointwise_steps import step_of
from gqc.passes.primitive import mark, ops
from gqc.passes.product_fusion import MOST_CONTRACTED
from gqc.passes.report import REPLACED, Decision, Report
from gqc.passes.saved_values import REPEATED, choose_saved, tangent_dependent
from gqc.policy import Policy

GEMM = ops.qgemm.default


def recompute_products(joint: JointGraph, policy: Policy) -> Report:
    """Let the backward multiply two int8 matrices again where the forward would save their float product.

    On the CPU, where :func:`fuse_products` lets the product run what reads it: the float matrix is then neither written
    nor read, and an int8 product takes less time than either.

    Requires: :func:`share_quantized` and :func:`save_masks` before it (order only), after which what the backward reads
        is known.
    Does: gives the backward a GEMM of its own, if all that reads the result there are elementwise nodes, the left
        operand is saved anyway for the gradient of the right one, the right one is smaller, and the contraction short.
    Ensures: the same values, bit for bit, and fewer bytes saved.
    """
    report = Report("recompute_products")
    if joint.device.type != "cpu" or not joint.training:
        return report
    late, saved = tangent_dependent(joint), set(choose_saved(joint))
    saved_values = {source(node)[0] for node in saved}
    for product in list(joint.graph.find_nodes(op="call_function", target=GEMM, sort=True)):
        value = pick(product, 0)
        if value not in saved_values or not _is_cheap(product, saved_values):
            continue
        # Through other views than reshapes, as an expand, the backward would still read what is saved.
        readers = [node for node in _readers(value) if node in late or node.target in REPEATED]
        if readers and all(step_of(node) is not None for node in readers):
            again = _again(product, min(readers))
            for reader in readers:
                _let_read(reader, value, again)
            report.decisions.append(_decision(product, value, again))
    drop_unused(joint.graph)
    return report


def _readers(value: fx.Node) -> Iterator[fx.Node]:
    """What reads a tensor, directly or in another shape."""
    for user in value.users:
        if user.target in RESHAPES or user.target in IDENTITIES:
            yield from _readers(user)
        else:
            yield user


def _is_cheap(product: fx.Node, saved: set[fx.Node]) -> bool:
    """Whether multiplying again takes less time than a float matrix takes on its way to memory and back."""
    given = by_name(product)
    left, right = given["a"].meta["val"], given["b"].meta["val"]
    if given["trans_a"] or source(given["a"])[0] not in saved:
        return False
    return example(left.shape[1]) <= MOST_CONTRACTED and example_numel(right) < example_numel(left)


def _again(product: fx.Node, reader: fx.Node) -> fx.Node:
    """The product once more, in the backward, before the first of its readers there."""
    with product.graph.inserting_before(reader):
        again = call(GEMM, product.args, product, f"{product.name}_again", **product.kwargs)
    again.meta["partitioner_tag"] = "is_backward"
    primitive = mark(product)
    assert primitive is not None
    again.meta["gqc"] = replace(primitive, half=BACKWARD)
    return again


def _let_read(reader: fx.Node, value: fx.Node, again: fx.Node) -> None:
    for operand in reader.all_input_nodes:
        held, views = source(operand)
        if held is value:
            read = pick(again, 0)
            with reader.graph.inserting_before(reader):
                for view in views:
                    read = replay(view, read, f"{view.name}_again")
                    read.meta["partitioner_tag"] = "is_backward"
            reader.replace_input_with(operand, read)


def _decision(product: fx.Node, value: fx.Node, again: fx.Node) -> Decision:
    nbytes = example_numel(value.meta["val"]) * value.meta["val"].dtype.itemsize
    reason = f"multiplies saved int8 copies again, so that {nbytes:,} bytes of {value.name} are not saved"
    return Decision(again.name, origin(product).module, "gemm", BACKWARD, REPLACED, reason)
