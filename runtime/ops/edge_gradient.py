"""Sums of products over edges, from which the gradients of SPMM and SDDMM are made."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from gqc.runtime.features import Size, num_trailing_ones, out_features, pad_features, pad_left, reduce_features
from gqc.runtime.relation import reverse


def sum_of_products(
    g: Sequence[Tensor], lhs: Tensor, rhs: Tensor, lhs_target: str, rhs_target: str, features: Sequence[Size]
) -> Tensor:
    """``[E, *features]``: ``lhs * rhs`` on each edge, summed over the axes along which ``features`` was broadcast.

    Where those axes are the last ones, as for one weight an edge or a head, the sum is a dot product and
    the products are never stored.
    """
    rank = max(lhs.dim(), rhs.dim()) - 1
    lhs, rhs = pad_features(lhs, rank), pad_features(rhs, rank)
    wanted = pad_left(features, rank)
    summed = num_trailing_ones(wanted)
    if summed:
        last = out_features("mul", lhs, rhs)[-summed:]
        lhs, rhs = _flat_last(lhs, last), _flat_last(rhs, last)
        out = torch.ops.gqc.sddmm(g, "dot", lhs, rhs, lhs_target, rhs_target)
        out = reduce_features(out, wanted[: rank - summed + 1])
        return out.reshape([out.shape[0], *features])
    return reduce_features(torch.ops.gqc.sddmm(g, "mul", lhs, rhs, lhs_target, rhs_target), features)


def sum_at(g: Sequence[Tensor], x: Tensor, target: str) -> Tensor:
    """``[E, *F]`` summed at the ``target`` end of its edges; unchanged for ``"e"``."""
    if target == "e":
        return x
    return torch.ops.gqc.spmm(_towards(g, target), "copy_rhs", None, x)


def sum_of_products_at(
    g: Sequence[Tensor], factor: Tensor, factor_target: str, x: Tensor, target: str, features: Sequence[Size]
) -> Tensor:
    """``factor * x`` for edge values ``x``, summed at ``target`` and over broadcast axes: ``[rows, *features]``.

    Args:
        factor: on the nodes or edges ``factor_target``.
        x: ``[E, *F]``.
        target: ``"u"``, ``"v"`` or ``"e"``.
    """
    if target == "e":
        return sum_of_products(g, factor, x, factor_target, "e", features)
    if factor_target == "e":
        return sum_at(g, sum_of_products(g, factor, x, "e", "e", features), target)
    if factor_target == target:
        rank = max(factor.dim(), x.dim()) - 1
        total = pad_features(sum_at(g, x, target), rank)
        return reduce_features(pad_features(factor, rank) * total, features)
    return reduce_features(torch.ops.gqc.spmm(_towards(g, target), "mul", factor, x), features)


def _towards(g: Sequence[Tensor], target: str) -> Sequence[Tensor]:
    """The relation whose destinations are the ``target`` end of ``g``."""
    return reverse(g) if target == "u" else g


def _flat_last(x: Tensor, sizes: Sequence[Size]) -> Tensor:
    """Join the last axes, broadcast to ``sizes``."""
    if len(sizes) == 1:
        return x
    lead = x.shape[: -len(sizes)]
    return x.expand([*lead, *sizes]).reshape([*lead, prod(sizes)])
