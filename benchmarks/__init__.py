"""Timings beside the peers: ``python -m benchmarks.step``, ``python -m benchmarks.overhead``."""

import gqc  # noqa: F401  before DGL: it makes DGL importable on a current torch
