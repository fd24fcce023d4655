"""The upper three bytes of float32: a sign, 8 bits of exponent and 15 of fraction (as in OpenEXR's PXR24)."""

from __future__ import annotations

import torch
from torch import Tensor

ERROR = 2.0**-16
"""The largest part of a value that rounding to float24 changes, but for values below 2^-126."""


def pack(x: Tensor) -> Tensor:
    """Float32 values ``[*, W]`` rounded to nearest, ties away from zero: uint8 ``[*, 3 W]``, the lowest byte first.

    What rounds beyond the largest number becomes infinite; a NaN stays one.
    """
    bits = x.contiguous().view(torch.int32)
    rounded = torch.where(x.isnan(), bits | 0x400000, bits + 0x80)
    return rounded[..., None].view(torch.uint8)[..., 1:].flatten(-2)


def unpack(x: Tensor) -> Tensor:
    """The float32 values ``[*, W]`` of uint8 ``[*, 3 W]``."""
    of_each = x.reshape(*x.shape[:-1], x.shape[-1] // 3, 3)
    return torch.nn.functional.pad(of_each, (1, 0)).contiguous().view(torch.float32).flatten(-2)
