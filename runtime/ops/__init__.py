"""Importing this package registers every ``torch.ops.gqc`` operator, one family a module."""

from gqc.runtime.ops import quantize

__all__ = ["quantize"]
