"""A second product whose values a pointwise program reads beside those of the product that it follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime.kernels import pointer
from gqc.runtime.ops.gemm import check_product, contiguous_operands
from gqc.runtime.ops.graph_arguments import address
from gqc.runtime.ops.library import refuse_gradient

ops = torch.ops.gqc

SCHEMA = (
    "Tensor? a2=None, Tensor? a2_scale=None, Tensor? b2=None, Tensor? b2_scale=None, bool trans_b2=False, "
    "Tensor? bias2=None"
)
MOST_CONTRACTED = 131_072
"""Contracted indices up to which a sum of products fits into the kernel's 32 bits."""


class SecondProduct(NamedTuple):
    """The arguments of :data:`SCHEMA`: what ``gqc.qgemm`` gets, but for ``trans_a``. Without ``a`` there is none."""

    a: Tensor | None = None
    a_scale: Tensor | None = None
    b: Tensor | None = None
    b_scale: Tensor | None = None
    trans_b: bool = False
    bias: Tensor | None = None

    def values(self, dtype: torch.dtype) -> list[Tensor]:
        """The product as a tensor, if there is one."""
        return [] if self.a is None else [ops.qgemm(*self[:4], False, self.trans_b, self.bias, dtype)[0]]

    @property
    def exists(self) -> bool:
        return self.a is not None

    @property
    def fits(self) -> bool:
        """Whether the kernel of the first product can compute it too."""
        return self.a is None or self.a.shape[1] <= MOST_CONTRACTED

    def arguments(self, name: str, shape: Sequence[int]) -> tuple[tuple[object, ...], list[Tensor]]:
        """Arguments of the kernel ``name``, whose own product has this shape, and what they point to.

        Raises:
            KernelError: if an operand is missing or does not fit.
        """
        if self.a is None:
            return (None, None, None, None, None, 0, False), []
        if self.a_scale is None or self.b is None or self.b_scale is None:
            raise KernelError(f"gqc.{name}: a2 comes without a2_scale, b2 or b2_scale")
        refuse_gradient(name, self.a_scale, self.b_scale, self.bias)
        *own, k = check_product(name, self.a, self.b, False, self.trans_b, self.bias)
        if tuple(own) != tuple(shape):
            raise KernelError(f"gqc.{name}: the second product is {tuple(own)} and the first {tuple(shape)}")
        a, b, _, trans_b = contiguous_operands(self.a.contiguous(), self.b, False, self.trans_b)
        bias = None if self.bias is None else self.bias.float().contiguous()
        first = pointer(a, torch.int8), pointer(self.a_scale, torch.float32)
        second = pointer(b, torch.int8), pointer(self.b_scale, torch.float32)
        return (*first, *second, address(bias), k, trans_b), [a, b, *([] if bias is None else [bias])]
