"""Measures the constants of :class:`gqc.cost.CostModel` on this machine, in a few seconds.

On sizes near those from which int8 is faster, whose tensors lie in the caches; memory alone on large tensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import gqc.runtime.ops  # noqa: F401  registers torch.ops.gqc
from gqc.cost.model import CostModel
from gqc.runtime.relation import from_edges

_SECONDS = 0.15  # for each measurement
_NARROW, _WIDE = 16, 128
_FEW, _MANY = 1, 9  # instructions of a program
_LARGE = 1 << 24  # floats


def measure() -> CostModel:
    """Measure with torch's current number of threads. The least of many times is taken, in two digits."""
    ops, float32 = torch.ops.gqc, torch.float32
    generator = torch.Generator().manual_seed(0)
    seed = torch.tensor([1, 2])

    def floats(*shape: int, dtype: torch.dtype = float32) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    def quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ops.quantize(x, None, seed, 0, 8, True)

    def int8_product(a: torch.Tensor, b: torch.Tensor) -> Callable[[], object]:
        left, right = quantized(a), quantized(b)
        return lambda: ops.qgemm(*left, *right, False, False, None, float32)

    tiny, x = floats(4, 4), floats(2000, 128)
    torch_call = _microseconds(lambda: tiny @ tiny)
    call = _microseconds(int8_product(tiny, tiny))
    quantize_call = _microseconds(lambda: quantized(tiny))

    a, b = floats(1024, 128), floats(128, 128)
    low = a.bfloat16(), b.bfloat16()
    operations = 2 * a.numel() * b.shape[1]

    def rate(work: float, run: Callable[[], object], overhead: float) -> float:
        """Thousands a microsecond, which is 10^9 a second."""
        return work / max(_microseconds(run) - overhead, 0.1) / 1e3

    nodes, edges = 4000, 20_000
    ends = torch.randint(nodes, (2, edges), generator=generator)
    g = from_edges(ends[0], ends[1], nodes, nodes)

    def spmm(width: int) -> float:
        u = floats(nodes, width)
        return _microseconds(lambda: ops.spmm(g, "copy_lhs", u, None)) - call

    def qspmm(width: int) -> float:
        u = quantized(floats(nodes, width))
        return _microseconds(lambda: ops.qspmm(g, "copy_lhs", *u, None, None, float32)) - call

    def of_rows(run: Callable[[int], float], size: int) -> tuple[float, float]:
        """GB a second, and nanoseconds an edge: a line through the times of narrow and of wide rows."""
        narrow, wide = run(_NARROW), run(_WIDE)
        slope = max((wide - narrow) / (_WIDE - _NARROW), 1e-3 * wide / _WIDE)
        return edges * size / slope / 1e3, max(narrow - _NARROW * slope, 0.01 * narrow) / edges * 1e3

    factors, mask = floats(len(x), 1), torch.zeros(x.numel() // 8, dtype=torch.uint8)

    def program(instructions: int) -> Callable[[], object]:
        """As behind a product: factors of rows, and a mask."""
        steps = [("where(x2, 0.0, {})", "mul({}, x1)")[i % 2] for i in range(instructions)]
        lines = [f"v{i} = {step.format(f'v{i - 1}' if i else 'x0')}" for i, step in enumerate(steps)]
        text = "; ".join([*lines, f"return absmax(v{instructions - 1})"])
        return lambda: ops.pointwise([x, factors, mask], None, text)

    large = torch.ones(_LARGE)
    float_rows, float_edge = of_rows(spmm, 4)
    int8_rows, int8_edge = of_rows(qspmm, 1)
    found = CostModel(
        torch_call=torch_call,
        call=call,
        quantize_call=quantize_call,
        float32_gemm=rate(operations, lambda: a @ b, torch_call),
        bfloat16_gemm=rate(operations, lambda: low[0] @ low[1], torch_call),
        int8_gemm=rate(operations, int8_product(a, b), call),
        quantize=rate(4 * x.numel(), lambda: quantized(x), quantize_call),
        float_rows=float_rows,
        int8_rows=int8_rows,
        float_edge=float_edge,
        int8_edge=int8_edge,
        steps=rate((_MANY - _FEW) * x.numel(), program(_MANY), _microseconds(program(_FEW))),
        float32_mm=rate(operations, lambda: ops.mm(a, b, False, False), call),
        memory=rate(2 * 4 * _LARGE, lambda: ops.pointwise([large], None, "return float32(x0)"), call),
    )
    return CostModel(**{name: float(f"{value:.2g}") for name, value in vars(found).items()})


def _microseconds(run: Callable[[], object]) -> float:
    """The least time of a call."""
    for _ in range(3):
        run()
    best, end = float("inf"), time.perf_counter() + _SECONDS
    while (start := time.perf_counter()) < end:
        run()
        best = min(best, time.perf_counter() - start)
    return 1e6 * best
