"""A relation made from the ends of its edges. It holds integers only, so the op has no gradient."""

from __future__ import annotations

import torch
from torch import SymInt, Tensor

from gqc.errors import KernelError
from gqc.runtime.ops.library import define
from gqc.runtime.relation import from_edges

_MOST = 2**31 - 1


def _relation(src: Tensor, dst: Tensor, num_src: int, num_dst: int, narrow: bool = False) -> list[Tensor]:
    for ends, count in ((src, num_src), (dst, num_dst)):
        if ends.numel():
            least, largest = (int(x) for x in ends.aminmax())
            if least < 0 or largest >= count:
                raise IndexError(f"gqc.relation: ends of edges are {least} to {largest}, and there are {count} nodes")
    if narrow and max(src.numel(), num_src, num_dst) > _MOST:
        raise KernelError(f"gqc.relation: more than {_MOST} nodes or edges do not fit into int32: leave out narrow")
    # The results of an op must not share memory with its arguments, and contiguous ends would be passed through.
    dtype = torch.int32 if narrow else src.dtype
    return from_edges(src.to(dtype, copy=True), dst.to(dtype, copy=True), num_src, num_dst)


def _fake(src: Tensor, dst: Tensor, num_src: int | SymInt, num_dst: int | SymInt, narrow: bool = False) -> list[Tensor]:
    edges = src.shape[0]
    sizes = (num_dst + 1, edges, edges, num_src + 1, edges, edges, edges, edges)
    return [src.new_empty((size,), dtype=torch.int32 if narrow else src.dtype) for size in sizes]


define(
    "relation(Tensor src, Tensor dst, SymInt num_src, SymInt num_dst, bool narrow=False) -> Tensor[]",
    kernel=_relation,
    fake=_fake,
)
