"""Check what the passes promise one another."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

import torch
from torch import fx, nn

from gqc.errors import PassError
from gqc.joint import PARAMETER, TANGENT, JointGraph
from gqc.layer_bits import WIDTHS
from gqc.passes.int8_copies import QUANTIZE, copied, is_copy
from gqc.passes.interface import Interface
from gqc.passes.nodes import by_name, mutates, source
from gqc.passes.primitive import KINDS, MOST_PACKED_BITS, mark, ops

_INT4_FORMS = (ops.qgemm_int4.default, ops.qspmm_int4.default, ops.qsddmm_int4.default)
_ATTENTION = (ops.gat.default, ops.gat_bwd.default, ops.attend.default, ops.attend_bwd.default)
_FUSED_GEMM = (ops.qgemm_epilogue.default, ops.quantize_qgemm.default, ops.qgemm_int8.default)
_GEMM_PROGRAMS = (ops.qgemm_pointwise.default, ops.quantize_qgemm_pointwise.default)
_FLOAT_FORMS = (ops.mm.default, ops.mm_pointwise.default, ops.spmm_pointwise.default)
_INT8_GEMM = (ops.qgemm.default, *_FUSED_GEMM, *_GEMM_PROGRAMS)
_INT8_TYPED = (ops.qtyped_spmm.default, ops.qtyped_spmm_bwd_b.default)
_INT8_SPMM = (ops.qspmm.default, ops.qspmm_cmp.default, ops.qspmm_pointwise.default)
_INT8_FORMS = (*_INT8_GEMM, *_INT8_SPMM, ops.qsddmm.default, *_INT8_TYPED, *_INT4_FORMS)
_QUANTIZE = {
    ops.quantize.default: WIDTHS,
    ops.quantize_qgemm.default: WIDTHS,
    ops.quantize_qgemm_pointwise.default: WIDTHS,
    ops.qgemm_int8.default: WIDTHS,
    ops.quantize_int4.default: range(WIDTHS.start, MOST_PACKED_BITS + 1),
}


def verify(joint: JointGraph, after: str, found: bool = True, before: Interface | None = None) -> None:
    """Check a joint graph after a pass.

    - The graph is well-formed, every node is used after it is defined and has a fake value.
    - The step takes the arguments and gives the results that it did before the pass.
    - If they have been found, every primitive is marked. An int8 form reads int8 operands, each with a float32
      scale of no dimensions. A ``quantize`` has a width that there is, and a seed if it rounds stochastically.
    - No int8 copy of a parameter leaves the step as a result or through an in-place update.
    - Nothing that the forward returns depends on a gradient.

    Args:
        joint: the graph.
        after: name of the pass that ran last, for the message.
        found: whether :func:`find_primitives` has run.
        before: arguments and results before the pass; by default they are not compared.

    Raises:
        PassError: naming the pass, the node and what is wrong.
    """

    def fail(node: fx.Node, wrong: str) -> None:
        raise PassError(f"pass {after} left node {node.name} ({node.target}): {wrong}")

    try:
        joint.graph.lint()
    except RuntimeError as error:
        raise PassError(f"pass {after} left a malformed graph: {error}") from error
    for node in joint.graph.nodes:
        if node.op == "output":
            continue
        if node.op != "get_attr" and "val" not in node.meta and not mutates(node):
            fail(node, "it has no fake value")
        if found and node.target in (*KINDS, *_FLOAT_FORMS, *_INT8_FORMS, *_ATTENTION) and mark(node) is None:
            fail(node, "a primitive without a mark")
        for wrong in (*_wrong_operands(node), *_wrong_rounding(node)):
            fail(node, wrong)
    for wrong in before.wrong_in(joint) if before is not None else ():
        raise PassError(f"pass {after} changed what the step takes or gives: {wrong}")
    for node in results_and_updates(joint):
        parameter = _quantized_parameter(joint, node)
        if parameter is not None:
            fail(node, f"an int8 copy of parameter {parameter.name} would outlive the step")
    for node in _depend_on(p.node for p in joint.placeholders if p.kind == TANGENT):
        if node in joint.forward_outputs:
            fail(node, "an output of the forward depends on a gradient")


def verify_decided(joint: JointGraph, after: str) -> None:
    """Check what :func:`quantize_operands` ensures: every primitive is either kept with a reason or in its int8 form.

    Raises:
        PassError: naming the pass ``after`` and the node.
    """
    for node in joint.graph.nodes:
        primitive = mark(node)
        if primitive is not None and (primitive.kept is None) != _is_int8(node):
            wrong = f"{primitive.kind} is neither kept with a reason nor in int8"
            raise PassError(f"pass {after} left node {node.name} ({node.target}): {wrong}")


def _is_int8(node: fx.Node) -> bool:
    """Whether a primitive computes on int8 operands; a fused one takes both int8 and floats."""
    return node.target in _INT8_FORMS or (node.target in _ATTENTION and by_name(node)["u_scale"] is not None)


def _wrong_operands(node: fx.Node) -> Iterator[str]:
    if node.target not in (*_INT8_FORMS, *_ATTENTION):
        return
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    for position, argument in enumerate(node.args):
        of, _, suffix = names[position].rpartition("_")
        if suffix == "scale" and of == names[position - 1] and isinstance(argument, fx.Node):
            values, scale = node.args[position - 1].meta["val"], argument.meta["val"]  # type: ignore[union-attr]
            if values.dtype is not (torch.uint8 if node.target in _INT4_FORMS else torch.int8):
                yield f"operand {node.args[position - 1]} has a scale but is {values.dtype}"
            if scale.dtype is not torch.float32 or scale.dim() != 0:
                yield f"scale {argument} is not a float32 number"


def _wrong_rounding(node: fx.Node) -> Iterator[str]:
    if node.target not in _QUANTIZE:
        return
    given, widths = by_name(node), _QUANTIZE[node.target]  # type: ignore[index]
    if type(given["bits"]) is not int or given["bits"] not in widths:
        yield f"its bits are {given['bits']!r}, and {widths.start} to {widths.stop - 1} are possible"
    if given["stochastic"] and given["seed"] is None:
        yield "it rounds stochastically without a seed"


def results_and_updates(joint: JointGraph) -> Iterator[fx.Node]:
    """What leaves a step: results of the graph, and what its in-place updates read."""
    yield from joint.output.all_input_nodes
    for node in joint.graph.nodes:
        if mutates(node):
            yield from node.all_input_nodes


def _quantized_parameter(joint: JointGraph, node: fx.Node) -> fx.Node | None:
    parameters = {p.node for p in joint.placeholders if p.kind == PARAMETER}
    picked, _ = source(node)
    if picked.target is ops.unpack_int4.default:
        picked, _ = source(picked.args[0])  # type: ignore[arg-type]
    maker = picked.args[0] if picked.args else None
    copy = maker if isinstance(maker, fx.Node) and maker.target in QUANTIZE and picked.args[1] == 0 else picked
    if is_copy(copy):
        values, _ = source(copied(copy))
        return values if values in parameters or names_parameter(joint, values) else None
    return None


def names_parameter(joint: JointGraph, node: fx.Node) -> bool:
    """Whether a node is a parameter that the graph holds as an attribute."""
    return node.op == "get_attr" and isinstance(attrgetter(node.target)(joint.module), nn.Parameter)  # type: ignore[arg-type]


def _depend_on(nodes: Iterator[fx.Node]) -> set[fx.Node]:
    reached: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in reached:
            reached.add(node)
            stack.extend(node.users)
    return reached
