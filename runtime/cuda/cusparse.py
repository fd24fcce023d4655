"""SPMM in full precision as products of cuSPARSE, one a head, and the choice between them and gqc's one kernel.

cuSPARSE knows a weight for each entry of a matrix and no heads: weights of H heads are H matrices. gqc's kernel reads
the structure once for all heads. Which is faster depends on the graph, H and the width (Tango, SC'23, section 3.3).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from gqc.runtime.cuda.fastest import Clock, Fastest
from gqc.runtime.memory import ByIdentity
from gqc.runtime.relation import CSC_EIDS, CSC_INDICES, CSC_INDPTR, num_dst, num_edges, num_src

ONE_KERNEL, CUSPARSE = "one kernel", "cuSPARSE"
_LEAST_EDGES = 1 << 15  # below, launches take longer than what they launch

choice = Fastest()
"""What was measured in this process."""


def fastest_spmm(
    g: list[Tensor],
    op: str,
    u: Tensor | None,
    e: Tensor | None,
    one_kernel: Callable[[], Tensor],
    finish: Callable[[Tensor], Tensor],
    clock: Clock,
) -> Tensor:
    """A float32 SPMM by gqc's kernel or by cuSPARSE, whichever is the faster for graphs of about this size.

    Args:
        g: the relation.
        op, u, e: as ``torch.ops.gqc.spmm`` takes them, in float32.
        one_kernel: computes it with gqc's kernel, which also does what ``finish`` does.
        finish: what becomes of cuSPARSE's float32 sums.
        clock: measures on the device.

    Returns:
        Sums that are equal up to the order of additions. While ``torch.use_deterministic_algorithms`` is on, those of
        gqc's kernel, which does not depend on what was measured.
    """
    heads = _heads(op, u, e)
    if heads is None or num_edges(g) < _LEAST_EDGES or torch.are_deterministic_algorithms_enabled():
        return one_kernel()
    assert u is not None

    def products() -> Tensor:
        return finish(by_cusparse(g, u, e, heads))

    sizes = (u.device, g[0].dtype, num_dst(g).bit_length(), num_edges(g).bit_length(), tuple(u.shape[1:]), heads)
    ways = {ONE_KERNEL: one_kernel, CUSPARSE: products}
    return ways[choice.choose(sizes, ways, clock)]()


def by_cusparse(g: list[Tensor], u: Tensor, e: Tensor | None, heads: int) -> Tensor:
    """Sum the neighbours' rows, weighted by edge and head, with one sparse product a head.

    Args:
        g: the relation.
        u: features of the sources, ``[Ns, *F]``, whose first axis is ``heads`` long if there are several.
        e: weights, ``E * heads`` numbers in the order of edges, or ``None`` for 1.
    """
    weights = _ones(g[CSC_INDICES]) if e is None else e.reshape(-1, heads).t().index_select(1, g[CSC_EIDS])
    columns = u.reshape(len(u), heads, -1)
    shape = (num_dst(g), num_src(g))
    sums = [
        torch.sparse_csr_tensor(g[CSC_INDPTR], g[CSC_INDICES], weights[h], shape, check_invariants=False)
        @ columns[:, h]
        for h in range(heads)
    ]
    return torch.stack(sums, 1).reshape(shape[0], *u.shape[1:]) if heads > 1 else sums[0].reshape(-1, *u.shape[1:])


with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)
    torch.zeros(1, 1).to_sparse_csr()  # says once that CSR tensors are in beta state


def _ones(indices: Tensor) -> Tensor:
    """A weight of 1 for each entry of a matrix."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return _new_ones(indices)  # a graph would go on reading what is forgotten
    return _remembered_ones(indices)


def _new_ones(indices: Tensor) -> Tensor:
    return torch.ones(1, len(indices), device=indices.device)


_remembered_ones = ByIdentity(_new_ones)


def _heads(op: str, u: Tensor | None, e: Tensor | None) -> int | None:
    """Matrices that cuSPARSE multiplies for an SPMM, ``None`` where it cannot."""
    if u is None or op not in ("copy_lhs", "mul"):
        return None
    if e is None:
        return 1
    if e.numel() == len(e) and u.dim() >= e.dim():
        return 1
    features = e.shape[1:]
    is_by_head = u.dim() == e.dim() > 2 and features[0] == u.shape[1] and features[1:].numel() == 1
    return features[0] if is_by_head else None
