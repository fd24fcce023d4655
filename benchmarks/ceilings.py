"""A table of calls beside the ceilings that memory sets them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.table import Table

from benchmarks.timer import paired


@dataclass(frozen=True)
class Contestant:
    """A call, the bytes that it must move, and how the name of its ceiling starts."""

    call: Callable[[], object]
    nbytes: int
    ceiling: str = ""


def table(title: str, group: dict[str, Contestant], rounds: int) -> Table:
    """One row a contestant; of the ceilings that differ in how far they look ahead, the fastest counts."""
    timings = paired({name: contestant.call for name, contestant in group.items()}, rounds)
    rates = {name: contestant.nbytes / min(timings[name].seconds) / 1e9 for name, contestant in group.items()}
    out = Table(title=title, title_justify="left")
    for heading in ("", "ms\nfastest / median", "GB/s", "of its ceiling"):
        out.add_column(heading, justify="right" if heading else "left")
    for name, contestant in group.items():
        fastest, median = 1e3 * min(timings[name].seconds), 1e3 * timings[name].median
        best = max((r for n, r in rates.items() if contestant.ceiling and n.startswith(contestant.ceiling)), default=0)
        share = f"{100 * rates[name] / best:.0f} %" if best else ""
        out.add_row(name, f"{fastest:.2f} / {median:.2f}", f"{rates[name]:.1f}", share)
    return out
