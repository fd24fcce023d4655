"""Compute the products that stay in full precision with a kernel that can run programs."""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from gqc.cost import CostModel, FloatProduct, machine
from gqc.joint import JointGraph
from gqc.layer_bits import EXACT
from gqc.passes.choose_bits import width
from gqc.passes.nodes import aten, call, drop_unused, example, half, is_size, is_tensor, origin
from gqc.passes.pointwise_steps import FLAT_VIEWS, step_of
from gqc.passes.primitive import GEMM, Factor, factors, mark, ops
from gqc.passes.report import REPLACED, UNFUSED, Decision, Report
from gqc.policy import Policy
from gqc.runtime import native

MM, ADDMM, MUL = aten.mm.default, aten.addmm.default, aten.mul.Tensor

FEWEST_ROWS = 1024
"""With fewer rows a product is small beside what a call costs."""
MOST_WEIGHTS = 1536 * 64
"""Of a matrix that all rows are multiplied by. For larger ones torch cuts the contracted index too."""
MOST_SUMS = 64 * 128
"""Of a product over many rows, as a gradient of weights is, likewise."""
LONG, NARROW = 1024, 64
"""Contracted indices from which a product of at most so many columns waits for its rows, which gqc's asks for early."""
MOST_CACHED = 64 << 20
"""Bytes of operands and result that caches hold. With more, either product waits for memory, and programs spare it."""


def multiply_floats(joint: JointGraph, policy: Policy) -> Report:
    """Replace float32 matrix products on the CPU by ``gqc.mm``, whose tiles run the programs that read the result.

    Requires: :func:`keep_full_precision`, :func:`quantize_operands` (order only): what they left.
    Does: ``mm`` and ``addmm`` of many rows with a small matrix, or over many rows with a small result, unless they fit
        into the caches and torch's are estimated to take less time (:meth:`gqc.cost.CostModel.float_products`); the
        bias becomes an ``add`` of its own, transposes of the operands flags, and factors of the contracted rows an
        operand.
    Ensures: float32 sums of float32 products, in another order than torch's; of three products of bfloat16, which miss
        at most 2^-15 of each product, where ``Policy.float_products`` asks for them, the layer is not one of 32 bits
        and the processor multiplies bfloat16 in tiles (AMX).
    """
    report = Report("multiply_floats")
    if joint.device.type != "cpu":
        return report
    costs = policy.costs or machine.costs()
    for target in (MM, ADDMM):
        for node in joint.graph.find_nodes(op="call_function", target=target, sort=True):
            chosen = precision(policy, node)
            why = refusal(node) or _loses(node, chosen, costs)
            if why is None:
                report.decisions.append(_replace(node, chosen))
            else:
                report.decisions.append(_decision(node, UNFUSED, f"runs torch's product: {why}"))
    drop_unused(joint.graph)
    return report


def refusal(node: fx.Node) -> str | None:
    """Why a product stays torch's."""
    tensors = [n for n in node.all_input_nodes if is_tensor(n)]
    if any(n.meta["val"].dtype is not torch.float32 for n in (node, *tensors)):
        return f"it is {str(node.meta['val'].dtype).removeprefix('torch.')}"
    if any(node.kwargs.get(name, 1) != 1 for name in ("alpha", "beta")):
        return "its terms have factors"
    left, right = factors(node)
    m, n = map(example, node.meta["val"].shape)
    k = example(left.node.meta["val"].shape[0 if left.transposed else 1])
    if left.transposed and right.transposed:
        return "both operands are transposed"
    rows, small, most = (k, m * n, MOST_SUMS) if left.transposed else (m, k * n, MOST_WEIGHTS)
    if rows < FEWEST_ROWS:
        return f"{rows} rows are few"
    if small > most:
        return f"{small} {'sums' if left.transposed else 'weights'} are more than {most}"
    if native.isa() == "portable":
        return "gqc's kernels for any processor are slower"
    return None


def _loses(node: fx.Node, precision: str, costs: CostModel) -> str | None:
    """Whether torch's product takes less time than gqc's, with the times."""
    left, right = factors(node)
    m, n = map(example, node.meta["val"].shape)
    k = example(left.node.meta["val"].shape[0 if left.transposed else 1])
    waits_for_rows = not left.transposed and k >= LONG and n <= NARROW
    if waits_for_rows or 4 * (m * k + k * n + m * n) > MOST_CACHED:
        return None
    # A tile of bfloat16 holds columns of both operands, which are few where rows are contracted.
    in_tiles = precision == "bf16x3" and not left.transposed and native.multiplies_bf16x3()
    scaled = k * n if _row_factors(left, right) is not None else 0
    program = 0 if left.transposed or not _runs_program(node) else m * n
    product = FloatProduct("bf16x3" if in_tiles else "fp32", 2 * m * n * k, 4 * (m * k + k * n), program, scaled)
    time = costs.float_products(product)
    if time.torch >= time.gqc:
        return None
    return f"it takes {time.torch:.3g} us with what it leaves to others, gqc's {time.gqc:.3g} us"


def _runs_program(node: fx.Node) -> bool:
    """Whether elementwise steps, or a ``quantize``, read a product: they can run with it."""
    return any(
        _runs_program(user) if user.target in FLAT_VIEWS else user.target is ops.quantize.default or step_of(user)
        for user in node.users
    )


def precision(policy: Policy, node: fx.Node) -> str:
    """In which of :data:`gqc.policy.FLOAT_PRODUCTS` a product is computed: exact layers stay exact."""
    return "fp32" if width(policy, origin(node).module)[1] == EXACT else policy.float_products


def _decision(node: fx.Node, action: str, reason: str) -> Decision:
    return Decision(node.name, origin(node).module, GEMM, half(node), action, reason)


def _replace(node: fx.Node, precision: str) -> Decision:
    graph, (left, right) = node.graph, factors(node)
    told = ["computes it in tiles that can run programs"]
    with graph.inserting_before(node):
        rows, scale = _row_factors(left, right), None
        if rows is not None:
            scale = call(aten.squeeze.dim, (rows[1], 1), rows[1], f"{rows[1].name}_row")
            told.append(f"multiplies rows by {rows[1].name}")
        if precision != "fp32":
            told.append(_how(precision))
        operands = (left.node, right.node if rows is None else rows[0], left.transposed, right.transposed)
        product = result = call(ops.mm.default, (*operands, scale, precision), node, f"{node.name}_gqc")
        product.meta |= {"gqc": node.meta["gqc"]} if mark(node) is not None else {}
        if node.target is ADDMM:
            result = call(aten.add.Tensor, (product, node.args[0]), node, f"{node.name}_biased")
    if "desc" in node.meta:
        result.meta["desc"] = node.meta["desc"]
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    return _decision(product, REPLACED, " and ".join(told))


def _how(precision: str) -> str:
    if native.multiplies_bf16x3():
        return f"multiplies in {precision}, with an error of at most 2^-15 of each product"
    return f"multiplies in fp32, as {precision} needs AMX with bfloat16"


def _row_factors(left: Factor, right: Factor) -> tuple[fx.Node, fx.Node] | None:
    """The matrix and the factors ``[K, 1]`` whose product alone ``left`` is multiplied by, if it contracts rows."""
    scaled = right.node
    readers = [n for n in scaled.users if not is_size(n)]
    if not left.transposed or scaled.target is not MUL or len(readers) != 1:
        return None
    for matrix, column in (scaled.args[:2], scaled.args[1::-1]):
        if not is_tensor(matrix) or not is_tensor(column):
            return None
        shape, given = matrix.meta["val"].shape, column.meta["val"].shape  # type: ignore[union-attr]
        fits = len(shape) == len(given) == 2 and statically_known_true(shape[0] == given[0])
        if fits and statically_known_true(given[1] == 1) and shape[1] == scaled.meta["val"].shape[1]:
            return matrix, column  # type: ignore[return-value]
    return None
