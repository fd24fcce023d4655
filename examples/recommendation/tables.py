"""The tables of TinyKG (RecSys 2022): metrics, memory and time at each width, and ways of rounding."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from examples.recommendation.comparison import EAGER, EXACT, name_of

Result = dict[str, dict[str, Any]]


def widths(title: str, result: Result) -> Table:
    """Tables 2 and 5: what each width costs and saves, beside plain PyTorch."""
    out = Table(title=title, title_justify="left")
    out.add_column("variant")
    headings = ("Recall@20 %", "NDCG@20 %", "activations MB", "ratio", "ms a step", "overhead", "to FP32 gqc")
    for heading in headings:
        out.add_column(heading, justify="right")
    eager, exact = result[EAGER], result[EXACT]
    for name, found in result.items():
        if not name.endswith("nearest"):
            out.add_row(
                name,
                percent(found["recall"]),
                percent(found["ndcg"]),
                f"{found['saved_bytes'] / 1e6:.2f}",
                f"{eager['saved_bytes'] / found['saved_bytes']:.1f}x",
                f"{found['step_seconds'] * 1e3:.1f}",
                *(f"{found['step_seconds'] / base['step_seconds'] - 1:+.0%}" for base in (eager, exact)),
            )
    return out


def roundings(title: str, result: Result, bits: Sequence[int]) -> Table:
    """Table 6: stochastic rounding and rounding to nearest."""
    out = Table(title=title, title_justify="left")
    out.add_column("rounding")
    for heading in ("width", "Recall@20 %", "NDCG@20 %"):
        out.add_column(heading, justify="right")
    for width in bits:
        for rounding in ("stochastic", "nearest"):
            if found := result.get(name_of(width, rounding)):
                out.add_row(rounding, f"INT{width}", percent(found["recall"]), percent(found["ndcg"]))
    return out


def percent(values: Sequence[float]) -> str:
    """Mean and standard deviation of fractions, in percent."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{100 * statistics.mean(values):.2f} ± {100 * spread:.2f}"
