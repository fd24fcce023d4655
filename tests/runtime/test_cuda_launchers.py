"""Each CPU kernel has a CUDA form."""

from __future__ import annotations

from gqc.runtime import native
from gqc.runtime.cuda import LAUNCHERS


def test_every_cpu_kernel_has_a_launcher() -> None:
    typed = {"typed_spmm", "typed_spmm_bwd_b", "qtyped_spmm", "qtyped_spmm_bwd_b"}
    programs = {f"{product}_pointwise" for product in ("mm", "spmm", "qspmm", "qgemm", "quantize_qgemm")}
    attention = {"attend", "attend_bwd"}
    losses = {"cross_entropy", "cross_entropy_backward"}
    sums = {"weighted_sum", "weighted_sum_bwd_weights", "add_rows"}
    # Run as torch's or gqc's other ops on a GPU.
    without = {"mm", "pointwise", "quantize_by_guess", *programs, *typed, *attention, *losses, *sums}
    assert set(native.SIGNATURES) - set(LAUNCHERS) == without
