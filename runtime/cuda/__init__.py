"""The CUDA back end: for each kernel of :data:`gqc.runtime.native.SIGNATURES` a function that launches its CUDA form.

One family a file, as in csrc/cuda. A function has the kernel's name, takes the target and then the arguments of the CPU
kernel, except that a layout is the :class:`~gqc.runtime.ops.feature_layout.FeatureLayout` itself. Numbers that the CPU
kernels return through an address (scale, absmax) stay on the device; an absmax is 0 on entry.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from gqc.errors import KernelError
from gqc.runtime.cuda import (
    compress_rows,
    dropout,
    edge_softmax,
    gat,
    gemm,
    pack_bits,
    quantize,
    relu,
    sddmm,
    segment_mm,
    spmm,
    spmm_cmp,
)
from gqc.runtime.cuda.device import gpu
from gqc.runtime.cuda.target import Argument, Target

FAMILIES = (
    compress_rows,
    dropout,
    edge_softmax,
    gat,
    gemm,
    pack_bits,
    quantize,
    relu,
    sddmm,
    segment_mm,
    spmm,
    spmm_cmp,
)
LAUNCHERS: dict[str, Callable[..., None]] = {
    function.__name__: function for family in FAMILIES for function in family.LAUNCHERS
}


def run(target: Target | None, device: torch.device, name: str, *arguments: Argument) -> None:
    """Launch what ``name`` stands for on a target, by default the current stream of a CUDA device.

    Raises:
        KernelError: if there is no such kernel, the device is none that gqc knows, or its kernels cannot be loaded.
    """
    launcher = LAUNCHERS.get(name)
    if launcher is None:
        raise KernelError(f"gqc has no CUDA kernel {name!r} yet: move the tensors to the CPU")
    launcher(target_of(target, device), *arguments)


def target_of(target: Target | None, device: torch.device) -> Target:
    """A target that is given, by default a CUDA device.

    Raises:
        KernelError: if the device is none that gqc knows, or its kernels cannot be loaded.
    """
    if target is not None:
        return target
    if device.type != "cuda":
        raise KernelError(f"gqc has no kernels for {device}: move the tensors to the CPU or a CUDA device")
    return gpu(device)
