"""What compiled and rewritten models run on: ops, their kernels and references, structure and memory."""

from gqc.runtime.buffers import empty_cache

__all__ = ["empty_cache"]
