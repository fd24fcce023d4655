"""What the device can do at best: copies, gathers from tables that fit its cache or do not, matrix products."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tools.gpu_check.place import Place
from tools.gpu_check.record import Found, attempt

_ROW_BYTES = 128


def ceilings(place: Place, until: float) -> Found:
    """One row a ceiling."""
    found, device = Found(), place.device
    shift = 16 if place.dry else 0
    side = 64 if place.dry else 8192

    def rate(what: str, unit: str, amount: float, run: Callable[[], object]) -> None:
        timing = attempt(found, what, lambda: place.paired({what: run}, 5, until)[what])
        if timing is not None:
            found.rows.append({"ceiling": what, "rate": f"{amount / timing.median / 1e12:.4g} {unit}"})

    x = torch.ones(2**31 >> shift, dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    rate("copy, read and written", "TB/s", 2.0 * x.numel(), lambda: y.copy_(x))
    count = 2**22 >> shift
    for megabytes in (16, 32, 48, 64, 256):
        rows = (megabytes * 2**20 // _ROW_BYTES) >> shift
        table = torch.ones(rows, _ROW_BYTES // 4, dtype=torch.int32, device=device)
        index = torch.randint(rows, (count,), device=device)
        out = torch.empty(count, _ROW_BYTES // 4, dtype=torch.int32, device=device)
        what = f"gather of {_ROW_BYTES}-byte rows from {megabytes} MiB, read"
        rate(what, "TB/s", count * _ROW_BYTES, lambda t=table, i=index, o=out: torch.index_select(t, 0, i, out=o))
    a = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    rate("bf16 matmul", "Tflop/s", 2.0 * side**3, lambda: a @ a)
    q = torch.randint(-127, 128, (side, side), dtype=torch.int8, device=device)
    rate("int8 matmul (torch._int_mm)", "Top/s", 2.0 * side**3, lambda: torch._int_mm(q, q.t()))
    return found
