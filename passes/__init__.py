"""The passes over the joint forward and backward graph; :data:`PIPELINE` lists them in running order.

A pass is a function ``(JointGraph, Policy) -> Report`` that rewrites or marks the graph. Its docstring says what it
requires, does and ensures; :mod:`gqc.passes.verify` checks that after each. :func:`gqc.passes.partition.partition`
then splits the graph into the two halves that run.
"""

from gqc.passes.apply import apply
from gqc.passes.choose_bits import choose_bits
from gqc.passes.compress_saved import compress_saved
from gqc.passes.copy_updated import copy_updated
from gqc.passes.draw_masks import draw_masks
from gqc.passes.find_primitives import find_primitives
from gqc.passes.fuse_kernels import fuse_kernels
from gqc.passes.fuse_pointwise import fuse_pointwise
from gqc.passes.fuse_products import fuse_products
from gqc.passes.keep_full_precision import keep_full_precision
from gqc.passes.measure_saved import measure_saved
from gqc.passes.multiply_floats import multiply_floats
from gqc.passes.pack_integers import pack_integers
from gqc.passes.pair_products import pair_products
from gqc.passes.partition import partition
from gqc.passes.pipeline import PIPELINE, Watch, run, select
from gqc.passes.quantize_operands import quantize_operands
from gqc.passes.recompute_products import recompute_products
from gqc.passes.report import Decision, Report
from gqc.passes.save_masks import save_masks
from gqc.passes.scale_after_gemm import scale_after_gemm
from gqc.passes.schedule import schedule
from gqc.passes.share_quantized import share_quantized
from gqc.passes.simplify import simplify
from gqc.passes.store_float24 import store_float24
from gqc.passes.verify import verify
from gqc.policy import Insert

__all__ = [
    "PIPELINE",
    "Decision",
    "Insert",
    "Report",
    "Watch",
    "apply",
    "choose_bits",
    "compress_saved",
    "copy_updated",
    "draw_masks",
    "find_primitives",
    "fuse_kernels",
    "fuse_pointwise",
    "fuse_products",
    "keep_full_precision",
    "measure_saved",
    "multiply_floats",
    "pack_integers",
    "pair_products",
    "partition",
    "quantize_operands",
    "recompute_products",
    "run",
    "save_masks",
    "scale_after_gemm",
    "schedule",
    "select",
    "share_quantized",
    "simplify",
    "store_float24",
    "verify",
]
