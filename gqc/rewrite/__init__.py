"""Writes a compiled model down as a Python module of its own."""

from gqc.rewrite.entry import rewrite

__all__ = ["rewrite"]
