"""Rows of a table, in memory that a step uses again: a fresh result costs several times what its rows take to copy."""

from __future__ import annotations

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.ops.library import define, refuse_gradient


def _check(table: Tensor, index: Tensor) -> None:
    refuse_gradient("gather_rows", table)
    if table.dim() == 0 or index.dtype not in (torch.int32, torch.int64):
        raise KernelError(
            f"gqc.gather_rows takes a table [N, ...] and int32 or int64 numbers of its rows, and got "
            f"{table.dtype} {list(table.shape)} and {index.dtype} {list(index.shape)}"
        )


def _gather_rows(table: Tensor, index: Tensor) -> Tensor:
    _check(table, index)
    out = kernels.empty(table, (*index.shape, *table.shape[1:]))
    torch.index_select(table, 0, index.reshape(-1), out=out.view(index.numel(), *table.shape[1:]))
    return out


def _gather_rows_fake(table: Tensor, index: Tensor) -> Tensor:
    _check(table, index)
    return table.new_empty((*index.shape, *table.shape[1:]))


define("gather_rows(Tensor table, Tensor index) -> Tensor", kernel=_gather_rows, fake=_gather_rows_fake)
