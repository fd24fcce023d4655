"""Time and memory of a training step, backward and optimizer included, beside DGL, PyG, bf16 and torch.compile.

python -m benchmarks.step --data arxiv --model gcn gat sage
python -m benchmarks.step --data products --scale 0.25 --model gcn --hidden 256 --memory
python -m benchmarks.step --data pubmed --data-root DIR --model gin --no-dropout --json result.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from benchmarks import malloc
from benchmarks.graphs import LAWS, node_data
from benchmarks.models import ARCHITECTURES
from benchmarks.peak import peak_bytes
from benchmarks.peers import EAGER, Phases, Setting, Step, contestants, first_call
from benchmarks.timer import paired
from examples.datasets import DATASETS, NodeData, load

Record = dict[str, Any]
_QUANTIZE = ("gqc::quantize", "gqc::quantize_int4", "gqc::absmax")
_PEAK_STEPS = 3


def settings(args: argparse.Namespace) -> Iterator[Setting]:
    """One benchmark a model."""
    data = _data(args)
    for name in args.model:
        yield Setting(name, data, args.hidden, args.layers, 0.5 if args.dropout else 0.0)


def _data(args: argparse.Namespace) -> NodeData:
    return (
        node_data(args.data, args.scale, args.edge_scale)
        if args.data in LAWS
        else load(args.data, args.data_root, args.nodes)
    )


def timed(setting: Setting, rounds: int, names: list[str] | None, console: Console) -> list[Record]:
    """Time contestants in turns; one record each.

    Args:
        names: which contestants, ``None`` for all; the base is always among them.
        console: is told which peers cannot run.
    """
    steps: dict[str, Step] = {}
    first: dict[str, float] = {}
    for name, make in contestants(setting).items():
        if names is not None and name not in (EAGER, *names):
            continue
        try:
            steps[name] = make()
            first[name] = first_call(steps[name])
        except Exception as error:
            if "gqc" in name:
                raise
            # As DGL's GATConv under autocast, which mixes bf16 and fp32.
            steps.pop(name, None)
            console.print(f"{name} cannot run {setting.name}: {type(error).__name__}: {str(error).splitlines()[0]}")
    phases: dict[str, list[Phases]] = {name: [] for name in steps}
    timings = paired({name: lambda n=name: phases[n].append(steps[n]()) for name in steps}, rounds)
    return [
        {
            **_describe(setting),
            "contestant": name,
            "median_ms": 1e3 * timing.median,
            "quartiles_ms": [1e3 * bound for bound in timing.quartiles],
            "speedup": timing.speedup_over(timings[EAGER]),
            "phases_ms": _medians(phases[name][-rounds:]),
            "quantize_ms": 1e3 * _quantize_seconds(steps[name]) if "gqc" in name else 0.0,
            "first_call_s": first[name],
        }
        for name, timing in timings.items()
    ]


def peak(setting: Setting, name: str) -> Record:
    """Resident memory of this process before and while a contestant takes a few steps."""
    make = contestants(setting)[name]
    before, most = peak_bytes(lambda: _repeat(make(), _PEAK_STEPS))
    return {**_describe(setting), "contestant": name, "before_bytes": before, "peak_bytes": most}


def _repeat(step: Step, times: int) -> None:
    for _ in range(times):
        step()


def _describe(setting: Setting) -> Record:
    return {
        "model": setting.name,
        "data": setting.data.name,
        "hidden": setting.hidden,
        "layers": setting.layers,
        "dropout": setting.dropout,
        "malloc": malloc.current(),
        "threads": torch.get_num_threads(),
    }


def _medians(phases: list[Phases]) -> dict[str, float]:
    columns = zip(*phases, strict=True)
    return {name: 1e3 * statistics.median(column) for name, column in zip(Phases._fields, columns, strict=True)}


def _quantize_seconds(step: Step) -> float:
    """Seconds in which one step quantizes, inside fused kernels apart."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        step()
    return sum(event.cpu_time_total for event in profiled.key_averages() if event.key in _QUANTIZE) / 1e6


def table(title: str, records: list[Record]) -> Table:
    """One row a contestant: median, middle half, speed-up, phases, first step and, where measured, memory.

    The peak is what the steps add to libraries and graph.
    """
    out = Table(title=title, title_justify="left")
    out.add_column("contestant")
    headings = ["step, ms", "middle half", "speed-up", "forward", "backward", "optimizer", "quantize", "first step, s"]
    with_memory = any("peak_bytes" in record for record in records)
    for heading in headings + (["peak, MB", "of DGL's"] if with_memory else []):
        out.add_column(heading, justify="right")
    base = next((r["peak_bytes"] - r["before_bytes"] for r in records if r["contestant"] == EAGER and with_memory), 0)
    for record in records:
        low, high = record["quartiles_ms"]
        cells = [f"{record['median_ms']:.1f}", f"{low:.1f} - {high:.1f}", f"{record['speedup']:.2f}x"]
        cells += [f"{value:.1f}" for value in record["phases_ms"].values()]
        cells += [f"{record['quantize_ms']:.1f}", f"{record['first_call_s']:.1f}"]
        if "peak_bytes" in record:
            grown = record["peak_bytes"] - record["before_bytes"]
            cells += [f"{grown / 1e6:.0f}", f"{grown / base:.2f}x" if base else ""]
        out.add_row(record["contestant"], *cells)
    return out


def _in_child(args: argparse.Namespace, setting: str, **options: object) -> list[Record]:
    """What this module measures in a process of its own, with a malloc of its own.

    Args:
        options: of the command line, in place of those that this process got.
    """
    chosen = {**vars(args), "memory": False, "quiet": True, "malloc": [setting], "json": None, **options}
    return malloc.run_for_json("benchmarks.step", malloc.command_line(chosen), setting)


def measure(args: argparse.Namespace, setting: str, console: Console) -> list[Record]:
    """Times under one malloc and, if asked for, the memory of each contestant in a process of its own."""
    if setting != malloc.current():
        records = _in_child(args, setting)
    else:
        records = [r for s in settings(args) for r in timed(s, args.rounds, args.contestant, console)]
    if args.memory:
        for record in records:
            which = {"model": [record["model"]], "peak_of": record["contestant"]}
            record |= _in_child(args, setting, **which)[0]
    return records


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--model", nargs="+", choices=ARCHITECTURES, default=list(ARCHITECTURES))
    out.add_argument("--data", choices=[*LAWS, *DATASETS], default="arxiv", help="a law to draw by, or a data set")
    out.add_argument("--scale", type=float, default=1.0, help="times the nodes and edges of the law")
    out.add_argument("--edge-scale", type=float, default=1.0, help="times the edges alone")
    out.add_argument("--data-root", type=Path, help="folder of the public data sets")
    out.add_argument("--nodes", type=int, default=20_000, help="size of --data blocks")
    out.add_argument("--hidden", type=int, default=128)
    out.add_argument("--layers", type=int, default=3)
    out.add_argument("--dropout", action=argparse.BooleanOptionalAction, default=True)
    out.add_argument("--contestant", nargs="+", help="only these and the base")
    out.add_argument("--rounds", type=int, default=10)
    out.add_argument("--threads", type=int, default=torch.get_num_threads())
    out.add_argument("--malloc", nargs="+", choices=malloc.SETTINGS, default=list(malloc.SETTINGS))
    out.add_argument("--memory", action=argparse.BooleanOptionalAction, default=False, help="peak of each contestant")
    out.add_argument("--peak-of", help="measure only the memory of this contestant, in this process")
    out.add_argument("--quiet", action=argparse.BooleanOptionalAction, default=False)
    out.add_argument("--json", type=Path, help="write the numbers to this file too")
    return out


def main() -> None:
    args = parser().parse_args()
    torch.set_num_threads(args.threads)
    console = Console(quiet=args.quiet, width=None if sys.stdout.isatty() else 160)
    records: list[Record] = []
    if args.peak_of:
        records = [peak(setting, args.peak_of) for setting in settings(args)]
    else:
        for setting in args.malloc:
            measured = measure(args, setting, console)
            for name in args.model:
                of_model = [r for r in measured if r["model"] == name]
                console.print(table(_title(of_model[0]), of_model))
            records += measured
    if args.json:
        args.json.write_text(json.dumps(records, indent=2) + "\n")


def _title(record: Record) -> str:
    what = f"{record['model']}, {record['layers']} layers, hidden {record['hidden']}, on {record['data']}"
    return f"{what}; malloc {record['malloc']}, {record['threads']} threads, dropout {record['dropout']:g}"


if __name__ == "__main__":
    main()
