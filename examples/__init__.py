"""Runnable examples: ``python -m examples.demo``, ``python -m examples.node_classification``."""

import gqc  # noqa: F401  before DGL: it makes DGL importable on a current torch
