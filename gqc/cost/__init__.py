"""What primitives cost on a machine, by which :func:`gqc.passes.keep_full_precision` leaves small ones alone."""

from gqc.cost.model import BUILT_IN, CostModel, Estimate, FloatProduct, FloatProducts, Look, Storage, Work

__all__ = ["BUILT_IN", "CostModel", "Estimate", "FloatProduct", "FloatProducts", "Look", "Storage", "Work"]
