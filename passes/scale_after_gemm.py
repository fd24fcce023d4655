"""Scale the rows of a GEMM's result instead of its operand."""

from __future__ import annotations

from torch import fx

from gqc.joint import JointGraph
from gqc.passes.nodes import aten, call, drop_unused, example, half, is_size, is_tensor, origin
from gqc.passes.report import REPLACED, Decision, Report
from gqc.policy import Policy

MM, MUL, TRANSPOSE = aten.mm.default, aten.mul.Tensor, aten.t.default


def scale_after_gemm(joint: JointGraph, policy: Policy) -> Report:
    """Turn ``(r * X) W`` into ``r * (X W)`` and ``(r * X)' G`` into ``X' (r * G)``, for a factor ``r`` a row.

    Message passing normalises by degree before it multiplies by the weights; on wide features that reads and writes
    the largest tensor of the model once more and keeps the scaled copy for the backward.

    Requires: :func:`simplify`, before primitives are marked.
    Does: where all that reads ``r * X`` is matrix products whose other side is narrower than ``X``.
    Ensures: the same values up to the rounding of reordered products.
    """
    report = Report("scale_after_gemm")
    for node in joint.graph.find_nodes(op="call_function", target=MUL, sort=True):
        operands = _split(node)
        products = _products(node)
        if operands is None or not products or max(_width(mm, t) for mm, t in products) >= _columns(node):
            continue
        for product, transpose in products:
            _move(product, transpose, *operands)
        names = ", ".join(mm.name for mm, _ in products)
        reason = f"its row factors scale the narrower side of {names}"
        report.decisions.append(Decision(node.name, origin(node).module, "row scaling", half(node), REPLACED, reason))
    drop_unused(joint.graph)
    return report


def _split(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The matrix and the factors ``[N, 1]`` of a scaling of rows."""
    for matrix, factors in (node.args[:2], node.args[1::-1]):
        if not (is_tensor(matrix) and is_tensor(factors)):
            return None
        shape, column = matrix.meta["val"].shape, factors.meta["val"].shape
        if len(shape) == 2 and len(column) == 2 and column[1] == 1 and shape[1] != 1 and shape[0] == column[0]:
            same = matrix.meta["val"].dtype == factors.meta["val"].dtype
            return (matrix, factors) if same else None
    return None


def _products(node: fx.Node) -> list[tuple[fx.Node, fx.Node | None]]:
    """The products that read a matrix as ``matrix @ W`` or ``matrix.t() @ G``; none if anything else reads it."""
    products: list[tuple[fx.Node, fx.Node | None]] = []
    for user in node.users:
        if is_size(user):
            continue
        if user.target is MM and user.args[0] is node and user.args[1] is not node:
            products.append((user, None))
        elif user.target is TRANSPOSE:
            for reader in user.users:
                if reader.target is not MM or reader.args[0] is not user:
                    return []
                products.append((reader, user))
        else:
            return []
    return products


def _columns(node: fx.Node) -> int:
    return example(node.meta["val"].shape[1])


def _width(product: fx.Node, transpose: fx.Node | None) -> int:
    """Columns of the tensor that is scaled in place of the operand."""
    return _columns(product if transpose is None else product.args[1])  # type: ignore[arg-type]


def _move(product: fx.Node, transpose: fx.Node | None, matrix: fx.Node, factors: fx.Node) -> None:
    graph, other = product.graph, product.args[1]
    with graph.inserting_before(product):
        if transpose is None:
            unscaled = call(MM, (matrix, other), product, f"{product.name}_unscaled")
            moved = call(MUL, (unscaled, factors), product, f"{product.name}_scaled")
        else:
            scaled = call(MUL, (other, factors), product, f"{product.name}_operand_scaled")
            flipped = call(TRANSPOSE, (matrix,), transpose, f"{product.name}_operand")
            moved = call(MM, (flipped, scaled), product, f"{product.name}_moved")
    product.replace_all_uses_with(moved)
    graph.erase_node(product)
