"""Join the gather, the product by type and the sum over edges, in which relational layers compute, into one op."""

from __future__ import annotations

from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from gqc.joint import JointGraph
from gqc.passes.nodes import aten, call, drop_unused, is_tensor
from gqc.passes.primitive import ops
from gqc.runtime.relation import DST, SRC

GATHER_MM, GATHER_MM_BWD_B = ops.gather_mm.default, ops.gather_mm_bwd_b.default
SPMM, SDDMM = ops.spmm.default, ops.sddmm.default


def join_typed_sums(joint: JointGraph) -> None:
    """Replace products of gathered rows by ``typed_spmm`` and ``typed_spmm_bwd_b``, which keep no message in memory.

    - ``spmm(g, copy_rhs, gather_mm(rows of x at the sources of g, W, types))``, in the forward and, on the reversed
      graph, in the backward;
    - ``gather_mm_bwd_b(rows of x at the sources, rows of grad at the destinations, types)``;
    - both also with a weight ``[E, 1]`` for each edge, which multiplies the products or the rows.

    The new op is of the recorded call of the product by type, so that backward and forward stay linked, and of the
    module that runs the layer.
    """
    for node in joint.graph.find_nodes(op="call_function", target=SPMM, sort=True):
        _join_sum(node)
    for node in joint.graph.find_nodes(op="call_function", target=GATHER_MM_BWD_B, sort=True):
        _join_gradient(node)
    drop_unused(joint.graph)


def _join_sum(spmm: fx.Node) -> None:
    relation, op, _, messages = spmm.args
    if op != "copy_rhs" or set(messages.users) != {spmm}:  # type: ignore[union-attr]
        return
    product, weights = _unweighted(messages)  # type: ignore[arg-type]
    if product.target is not GATHER_MM or len(product.users) != 1:
        return
    gather, matrices, types = product.args
    rows, weights_of_rows = _unweighted(gather)  # type: ignore[arg-type]
    gathered = _gathered(rows)
    if gathered is None or gathered[1] is not relation[SRC] or None not in (weights, weights_of_rows):  # type: ignore[index]
        return
    weights = weights_of_rows if weights is None else weights
    _replace(spmm, ops.typed_spmm.default, (relation, gathered[0], matrices, types, weights), product, spmm)


def _join_gradient(product: fx.Node) -> None:
    left, right, types, num = product.args
    rows, weights_of_rows = _unweighted(left)  # type: ignore[arg-type]
    gradients, weights = _unweighted(right)  # type: ignore[arg-type]
    source, target = _gathered(rows), _gathered(gradients)
    if source is None or target is None or None not in (weights, weights_of_rows):
        return
    relation = rows.args[0]
    if source[1] is relation[SRC] and target[1] is relation[DST]:  # type: ignore[index]
        arguments = (relation, source[0], target[0], types, num, weights_of_rows if weights is None else weights)
        _replace(product, ops.typed_spmm_bwd_b.default, arguments, product, rows)


def _unweighted(node: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """What a node multiplies with a weight an edge, and the weights ``[E, 1]``; the node and ``None`` if it is none."""
    if node.target is aten.mul.Tensor:
        for rows, weights in (node.args[:2], node.args[1::-1]):
            if is_tensor(rows) and is_tensor(weights) and rows.target in (GATHER_MM, SDDMM):  # type: ignore[union-attr]
                shape, column = rows.meta["val"].shape, weights.meta["val"].shape  # type: ignore[union-attr]
                same = rows.meta["val"].dtype == weights.meta["val"].dtype  # type: ignore[union-attr]
                is_column = len(shape) == len(column) == 2 and statically_known_true(column[1] == 1)
                if same and is_column and statically_known_true(shape[0] == column[0]):
                    return rows, weights  # type: ignore[return-value]
    return node, None


def _gathered(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Matrix and row numbers, if a node gathers the rows of a matrix at the ends of edges."""
    if node.target is not SDDMM:
        return None
    relation, op, left, right, left_target, right_target = node.args
    if op not in ("copy_lhs", "copy_rhs"):
        return None
    matrix, target = (left, left_target) if op == "copy_lhs" else (right, right_target)
    if target not in ("u", "v") or matrix.meta["val"].dim() != 2:  # type: ignore[union-attr]
        return None
    return matrix, relation[SRC if target == "u" else DST]  # type: ignore[index,return-value]


def _replace(node: fx.Node, target: object, arguments: tuple[object, ...], product: fx.Node, layer: fx.Node) -> None:
    """Put a call in the place of a node: of the recorded call of ``product``, in the module that made ``layer``."""
    with node.graph.inserting_before(node):
        joined = call(target, arguments, product, f"{product.name}_joined")  # type: ignore[arg-type]
    recorded = [n.meta.get("custom", {}).get("gqc") for n in (product, layer)]
    if all(recorded):
        joined.meta["custom"] = {**product.meta["custom"], "gqc": {**recorded[1], "id": recorded[0]["id"]}}
    node.replace_all_uses_with(joined)
