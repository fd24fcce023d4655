"""A relation made from the ends of its edges. It holds integers only, so the op has no gradient."""

from __future__ import annotations

from torch import SymInt, Tensor

from gqc.runtime.ops.library import define
from gqc.runtime.relation import from_edges


def _relation(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> list[Tensor]:
    # The results of an op must not share memory with its arguments, and contiguous ends would be passed through.
    return from_edges(src.clone(), dst.clone(), num_src, num_dst)


def _fake(src: Tensor, dst: Tensor, num_src: int | SymInt, num_dst: int | SymInt) -> list[Tensor]:
    edges = src.shape[0]
    sizes = (num_dst + 1, edges, edges, num_src + 1, edges, edges, edges, edges)
    return [src.new_empty((size,)) for size in sizes]


define("relation(Tensor src, Tensor dst, SymInt num_src, SymInt num_dst) -> Tensor[]", kernel=_relation, fake=_fake)
