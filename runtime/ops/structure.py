"""Relations made from other tensors. They hold integers only, so none of these ops has a gradient."""

from __future__ import annotations

import torch
from torch import SymInt, Tensor

from gqc.runtime.ops.library import define
from gqc.runtime.relation import DST, SRC, from_edges, num_dst, num_edges, num_src
from gqc.runtime.structure import remembered


def _relation(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> list[Tensor]:
    # The results of an op must not share memory with its arguments, and contiguous ends would be passed through.
    return from_edges(src.clone(), dst.clone(), num_src, num_dst)


def _relation_fake(src: Tensor, dst: Tensor, num_src: int | SymInt, num_dst: int | SymInt) -> list[Tensor]:
    return _empty(src, num_src, num_dst, src.shape[0])


def _add_self_loops(g: list[Tensor]) -> list[Tensor]:
    def compute() -> list[Tensor]:
        nodes = torch.arange(num_dst(g), dtype=g[SRC].dtype, device=g[SRC].device)
        ends = torch.cat([g[SRC], nodes]), torch.cat([g[DST], nodes])
        return from_edges(*ends, num_src(g), num_dst(g))

    return remembered("self loops added", g, compute)


def _add_self_loops_fake(g: list[Tensor]) -> list[Tensor]:
    return _empty(g[SRC], num_src(g), num_dst(g), num_edges(g) + num_dst(g))


def _empty(like: Tensor, num_src: int | SymInt, num_dst: int | SymInt, num_edges: int | SymInt) -> list[Tensor]:
    sizes = (num_dst + 1, num_edges, num_edges, num_src + 1, num_edges, num_edges, num_edges, num_edges)
    return [like.new_empty((size,)) for size in sizes]


define(
    "relation(Tensor src, Tensor dst, SymInt num_src, SymInt num_dst) -> Tensor[]", cpu=_relation, fake=_relation_fake
)
define("add_self_loops(Tensor[] g) -> Tensor[]", cpu=_add_self_loops, fake=_add_self_loops_fake)
