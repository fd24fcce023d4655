"""The command of benchmarks that compare ways to save activations: options, a table a model, numbers in JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import malloc
from benchmarks.peak import peak_bytes
from benchmarks.saving import Contest, Record

_PEAK_STEPS = 3


def parser(description: str | None, models: Collection[str], contestants: Collection[str]) -> argparse.ArgumentParser:
    """The options that all have.

    Args:
        description: of the command.
        models: that can be chosen.
        contestants: of every model; the first is the base.
    """
    out = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--model", nargs="+", choices=models, default=list(models))
    out.add_argument("--data-root", type=Path, help="folder of the public data sets")
    out.add_argument("--contestant", nargs="+", choices=contestants, help="only these and the base")
    out.add_argument("--rounds", type=int, default=10)
    out.add_argument("--threads", type=int, default=torch.get_num_threads())
    clock = "times of the processors, which other load on the machine changes less than those of the wall's clock"
    out.add_argument("--of-processor", action=argparse.BooleanOptionalAction, default=False, help=clock)
    peak = "peak of each contestant, in a process of its own"
    out.add_argument("--memory", action=argparse.BooleanOptionalAction, default=False, help=peak)
    out.add_argument("--peak-of", choices=contestants, help="measure only the peak of this contestant, in this process")
    out.add_argument("--json", type=Path, help="write the numbers to this file too")
    return out


def run(module: str, args: argparse.Namespace, contests: Iterable[Contest]) -> None:
    """Measure, print a table a contest and write the records.

    Args:
        module: what ``python -m`` runs for one contestant's peak.
        args: as :func:`parser` reads them; beside them what is the module's own.
        contests: one a model.
    """
    console = Console(width=None if sys.stdout.isatty() else 160)
    records: list[Record] = []
    for contest in contests:
        if args.peak_of:
            before, most = peak_bytes(lambda c=contest: _repeat(c.make(args.peak_of)[0]))
            records.append({"before_bytes": before, "peak_bytes": most})
            continue
        measured = contest.measure(args.rounds, console, args.of_processor)
        if args.memory:
            for record in measured:
                record |= _peak(module, args, record)
        console.print(table(contest.title, measured))
        records += measured
    if args.json:
        args.json.write_text(json.dumps(records, indent=2) + "\n")


def _peak(module: str, args: argparse.Namespace, record: Record) -> Record:
    """Resident memory of a process that takes a few steps of one contestant."""
    one = {"model": [record["model"]], "peak_of": record["contestant"], "memory": False, "json": None}
    return malloc.run_for_json(module, malloc.command_line({**vars(args), **one}), malloc.current())[0]


def _repeat(step: Callable[[], object]) -> None:
    for _ in range(_PEAK_STEPS):
        step()


def table(title: str, records: list[Record]) -> Table:
    """One row a contestant: saved bytes, how many times less than the base, the most that tensors took in a step, times
    and, where measured, the growth of resident memory with all compilation."""
    base = records[0]
    name = base["contestant"]
    out = Table(title=title, title_justify="left")
    out.add_column("contestant")
    headings = ["saved, MB", f"less than {name}", "most tensors, MB", "step, ms", "middle half", f"of {name}"]
    for heading in [*headings, "of bits=32", "peak, MB"]:
        out.add_column(heading, justify="right")
    for r in records:
        low, high = r["quartiles_ms"]
        out.add_row(
            r["contestant"],
            f"{r['saved_bytes'] / 1e6:.1f}",
            f"{base['saved_bytes'] / r['saved_bytes']:.1f}x",
            f"{r['most_allocated'] / 1e6:.1f}",
            f"{r['median_ms']:.1f}",
            f"{low:.1f} - {high:.1f}",
            f"{r['time_ratio']:.2f}",
            f"{r['time_of_exact']:.2f}" if "time_of_exact" in r else "",
            f"{(r['peak_bytes'] - r['before_bytes']) / 1e6:.0f}" if "peak_bytes" in r else "",
        )
    return out
