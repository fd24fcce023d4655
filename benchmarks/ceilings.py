"""A table of calls beside the ceilings that memory sets them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.random_rows import readers
from benchmarks.timer import Timing, paired
from gqc.runtime.relation import DST, SRC


@dataclass(frozen=True)
class Contestant:
    """A call and what it must do.

    Attributes:
        moved: bytes that cross memory; where they are compared with ceilings, those of each, by its name.
        operations: multiplications and additions.
        ceiling: name of the ceiling that this call is. Of several the one with most GB/s counts.
    """

    call: Callable[[], object]
    moved: int | Mapping[str, int]
    operations: int = 0
    ceiling: str = ""

    @property
    def nbytes(self) -> int:
        return self.moved if isinstance(self.moved, int) else sum(self.moved.values())


Group = dict[str, Contestant]

_CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def add_timer_options(parser: argparse.ArgumentParser, rounds: int = 15) -> None:
    """The options that :func:`show` reads; ``rounds`` is a default."""
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument(
        "--clock", choices=_CLOCKS, default="wall", help="cpu, the time of all threads, tells less of other load"
    )


def show(title: str, group: Group, args: argparse.Namespace) -> None:
    """Time the contestants in turns and print the table."""
    timings = paired({name: c.call for name, c in group.items()}, args.rounds, clock=_CLOCKS[args.clock])
    threads = torch.get_num_threads()
    conditions = f"{threads} thread{'s' * (threads > 1)}" + ("" if args.clock == "wall" else f", {args.clock} time")
    Console().print(table(f"{title}, {conditions}", group, timings))


def row_readings(ceiling: str, table: Tensor, rows: Tensor) -> Group:
    """The bare reading of ``table[rows]`` and of ``rows``, once for each distance of prefetching."""
    nbytes = bytes_of_rows(table, rows)
    calls = readers(table, rows).items()
    return {f"{ceiling}, {ahead} ahead": Contestant(call, nbytes, ceiling=ceiling) for ahead, call in calls}


def bytes_of_rows(table: Tensor, rows: Tensor) -> int:
    """What is read where each of ``rows`` names a row of ``table``."""
    return len(rows) * (table[0].nbytes + rows.element_size())


def end_readings(name: str, table: Tensor, g: Sequence[Tensor]) -> Group:
    """The readings of the rows at both ends of each edge of a relation: ceilings ``NAME at u`` and ``NAME at v``."""
    return row_readings(f"{name} at u", table, g[SRC]) | row_readings(f"{name} at v", table, g[DST])


def bytes_of_ends(name: str, table: Tensor, g: Sequence[Tensor]) -> dict[str, int]:
    """What those read, by ceiling."""
    return {f"{name} at u": bytes_of_rows(table, g[SRC]), f"{name} at v": bytes_of_rows(table, g[DST])}


def copying(table: Tensor) -> Group:
    """The ceiling ``copy``: a copy to memory that is there."""
    target = table.clone()
    return {"copy": Contestant(lambda: target.copy_(table), 2 * table.nbytes, ceiling="copy")}


def table(title: str, group: Group, timings: Mapping[str, Timing]) -> Table:
    """One row a contestant, and one for the fastest of those that are the same ceiling."""
    best = _ceilings(group, timings)
    counts = any(contestant.operations for contestant in group.values())
    out = Table(title=title, title_justify="left")
    for heading in ("", "ms\nfastest / median", "GB/s", *["GOPS"] * counts, "of its ceiling"):
        out.add_column(heading, justify="right" if heading else "left")
    for name, contestant in group.items():
        if contestant.ceiling and best[contestant.ceiling] != name:
            continue
        fastest = min(timings[name].seconds)
        cells = [f"{1e3 * fastest:.2f} / {1e3 * timings[name].median:.2f}", f"{contestant.nbytes / fastest / 1e9:.1f}"]
        if counts:
            cells.append(f"{contestant.operations / fastest / 1e9:.0f}" if contestant.operations else "")
        out.add_row(name, *cells, _share(contestant, fastest, group, timings, best))
    return out


def _ceilings(group: Group, timings: Mapping[str, Timing]) -> dict[str, str]:
    """Of each ceiling, the contestant with most GB/s."""
    best: dict[str, str] = {}
    for name, contestant in group.items():
        other = best.get(contestant.ceiling)
        if contestant.ceiling and (other is None or _rate(group, timings, name) > _rate(group, timings, other)):
            best[contestant.ceiling] = name
    return best


def _rate(group: Group, timings: Mapping[str, Timing], name: str) -> float:
    return group[name].nbytes / min(timings[name].seconds)


def _share(
    contestant: Contestant, fastest: float, group: Group, timings: Mapping[str, Timing], best: Mapping[str, str]
) -> str:
    if isinstance(contestant.moved, int):
        return ""
    needed = sum(nbytes / _rate(group, timings, best[ceiling]) for ceiling, nbytes in contestant.moved.items())
    return f"{100 * needed / fastest:.0f} %"
