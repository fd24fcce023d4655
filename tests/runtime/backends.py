"""Where the tests of kernels run: each instruction set of this processor, and the CUDA kernels in the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gqc.runtime import native
from tests.emu import emulator

CUDA = "cuda-emulated"

# Tests, as "file" or "file.function", whose kernels are all there in csrc/cuda.
EMULATED: tuple[str, ...] = (
    "test_edge_softmax",
    "test_qsddmm",
    "test_sddmm",
    "test_qspmm",
    "test_segment_mm",
    "test_spmm",
    "test_spmm_cmp",
    "test_quantize",
    "test_dropout",
    "test_gemm",
    "test_int4.test_quantize_and_unpack_equal_reference",
    "test_int4.test_large_tensors_equal_reference",
    "test_int4.test_a_tensor_may_start_anywhere",
    "test_int4.test_hard_values",
    "test_int4.test_qgemm_equals_reference",
    "test_int4.test_qgemm_equals_reference_where_threads_share_the_work",
    "test_int4.test_qgemm_operands_may_start_anywhere",
    "test_int4.test_a_nan_scale_makes_every_product_nan",
    "test_int4.test_qsddmm_equals_reference_for_every_broadcast",
    "test_int4.test_qsddmm_equals_int8_bit_for_bit",
)


def backends(test: str) -> tuple[str, ...]:
    """Names for :func:`on_backend` on which the test ``file.function`` runs."""
    emulated = any(test == name or test.startswith(f"{name}.") for name in EMULATED)
    return (*native.isas(), *([CUDA] if emulated else []))


@contextmanager
def on_backend(name: str) -> Iterator[None]:
    """Run kernels of one back end inside the context.

    The emulator runs threads and blocks in a random order, another one with each --seed, and finds every new tensor
    filled with NaN or the largest integer, so that what a kernel forgets to write is seen.
    """
    if name != CUDA:
        with native.use_isa(name):
            yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with emulator.Emulator(emulator.library(), "random", torch.initial_seed()).running():
            yield
    finally:
        torch.use_deterministic_algorithms(before)
