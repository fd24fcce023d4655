"""Rows projected to fewer elements, and back (EXACT, ICLR'22, section 3.2).

``y = x R`` is kept for the backward in the place of ``x [*, W]``, and read as ``y R'``. ``R [W, r]`` is a normalised
Rademacher matrix, of entries ``r**-0.5`` and ``-r**-0.5`` with equal probability, so the expectation of ``R R'`` is the
identity and that of what is read ``x``. The variance of a row, summed over its elements, is ``|x|^2 (W - 1) / r``.

``R`` is drawn again for each call and never kept: its ``W r`` entries cost little beside the product, which runs near
the speed of memory for a small ``r``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime.ops.library import define, refuse_gradient
from gqc.runtime.ops.quantize import check_float

_OWN_NODES = 2**31
"""Added to a node's number, whose own random bits round what is projected."""


def _signs(width: int, kept: int, seed: Tensor, node: int) -> Tensor:
    """``R``: dropout with a probability of a half keeps twice an entry, or 0, from which one is taken."""
    entries = torch.full((width, kept), kept**-0.5, device=seed.device)
    doubled, _ = torch.ops.gqc.dropout(entries, 0.5, seed, node + _OWN_NODES)
    return doubled.sub_(entries)


def _check(op: str, x: Tensor, seed: Tensor) -> None:
    refuse_gradient(op, x)
    check_float(op, x.dtype)
    if x.dim() == 0:
        raise KernelError(f"gqc.{op} takes rows [*, W] and got a scalar: keep it as it is")
    if seed.numel() != 2:
        raise KernelError(f"gqc.{op}: seed has {seed.numel()} elements; it holds the step's number and the step")


def _check_widths(op: str, width: int, kept: int) -> None:
    if not 1 <= kept <= width:
        raise KernelError(f"gqc.{op}: {kept} elements cannot be kept of rows of {width}: keep 1 to {width}")


def _product(x: Tensor, signs: Tensor, back: bool) -> Tensor:
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]).float()
    out: Tensor = torch.ops.gqc.mm(rows, signs, False, back)
    return out.to(x.dtype).view(*x.shape[:-1], out.shape[1])


def _project_rows(x: Tensor, width: int, seed: Tensor, node: int) -> Tensor:
    _check("project_rows", x, seed)
    _check_widths("project_rows", x.shape[-1], width)
    return _product(x, _signs(x.shape[-1], width, seed, node), back=False)


def _project_rows_fake(x: Tensor, width: int, seed: Tensor, node: int) -> Tensor:
    _check("project_rows", x, seed)
    return x.new_empty((*x.shape[:-1], width))


def _unproject_rows(y: Tensor, width: int, seed: Tensor, node: int) -> Tensor:
    _check("unproject_rows", y, seed)
    _check_widths("unproject_rows", width, y.shape[-1])
    return _product(y, _signs(width, y.shape[-1], seed, node), back=True)


def _unproject_rows_fake(y: Tensor, width: int, seed: Tensor, node: int) -> Tensor:
    _check("unproject_rows", y, seed)
    return y.new_empty((*y.shape[:-1], width))


define(
    "project_rows(Tensor x, SymInt width, Tensor seed, int node) -> Tensor",
    kernel=_project_rows,
    fake=_project_rows_fake,
)
define(
    "unproject_rows(Tensor y, SymInt width, Tensor seed, int node) -> Tensor",
    kernel=_unproject_rows,
    fake=_unproject_rows_fake,
)
