"""Importing this package registers every ``torch.ops.gqc`` operator, one family a module."""

from gqc.runtime.ops import (
    dropout,
    edge_softmax,
    fused_gemm,
    gat,
    gemm,
    int4,
    pack_bits,
    pointwise,
    qsddmm,
    qspmm,
    quantize,
    sddmm,
    segment_mm,
    spmm,
    spmm_cmp,
    structure,
)

__all__ = [
    "dropout",
    "edge_softmax",
    "fused_gemm",
    "gat",
    "gemm",
    "int4",
    "pack_bits",
    "pointwise",
    "qsddmm",
    "qspmm",
    "quantize",
    "sddmm",
    "segment_mm",
    "spmm",
    "spmm_cmp",
    "structure",
]
