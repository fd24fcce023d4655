"""Importing this package registers every ``torch.ops.gqc`` operator, one family a module."""

from gqc.runtime.ops import dropout, gemm, quantize, sddmm, segment_mm, spmm

__all__ = ["dropout", "gemm", "quantize", "sddmm", "segment_mm", "spmm"]
