"""Time of a training step, backward and optimizer included, beside eager DGL, bf16 autocast and PyG.

python -m benchmarks.step --data pubmed --data-root DIR --model gcn gat sage
python -m benchmarks.step --data blocks --nodes 100000 --hidden 128
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import dgl
import torch
from rich.console import Console
from rich.table import Table

from benchmarks import malloc
from benchmarks.peers import EAGER, first_call, training_steps
from benchmarks.timer import Timing, paired
from examples.datasets import DATASETS, load
from examples.models import RECIPES, recipe


def measure(args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Time all contestants on each model with the malloc of this process; one record a contestant."""
    data = load(args.data, args.data_root, args.nodes)
    records = []
    for name in args.model:
        torch.manual_seed(0)
        how = recipe(name, args.data)
        steps = training_steps(how, how.prepare(data), args.hidden, args.dropout)
        first = {}
        for contestant in list(steps):
            try:
                first[contestant] = first_call(steps[contestant])
            except dgl.DGLError as error:  # GATConv under autocast mixes bf16 and fp32, which DGL 2.1 refuses
                console.print(f"{contestant} cannot run {name}: {error}")
                del steps[contestant]
        timings = paired(steps, args.rounds)
        setting = (
            f"malloc {malloc.current()}, {torch.get_num_threads()} threads, dropout {'on' if args.dropout else 'off'}"
        )
        console.print(table(f"{name} on {data.summary()}; {setting}", timings, first))
        records += [
            {
                "model": name,
                "data": args.data,
                "malloc": malloc.current(),
                "dropout": args.dropout,
                "contestant": contestant,
                "median_ms": 1e3 * timing.median,
                "quartiles_ms": [1e3 * bound for bound in timing.quartiles],
                "speedup": timing.speedup_over(timings[EAGER]),
                "first_call_s": first[contestant],
            }
            for contestant, timing in timings.items()
        ]
    return records


def table(title: str, timings: dict[str, Timing], first: dict[str, float]) -> Table:
    """One row a contestant: median, middle half, speed-up over eager DGL, first call."""
    out = Table(title=title, title_justify="left")
    out.add_column("contestant")
    for heading in ("step, median", "middle half", "speed-up", "first step"):
        out.add_column(heading, justify="right")
    for name, timing in timings.items():
        low, high = timing.quartiles
        out.add_row(
            name,
            f"{1e3 * timing.median:.2f} ms",
            f"{1e3 * low:.2f} - {1e3 * high:.2f}",
            f"{timing.speedup_over(timings[EAGER]):.2f}x",
            f"{first[name]:.2f} s",
        )
    return out


def in_child(args: argparse.Namespace, setting: str) -> list[dict[str, Any]]:
    """:func:`measure` in a process with another malloc."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        arguments = ["--data", args.data, "--nodes", args.nodes, "--rounds", args.rounds, "--threads", args.threads]
        arguments += ["--malloc", setting, "--json", result, "--model", *args.model]
        arguments += ["--data-root", args.data_root] if args.data_root else []
        arguments += ["--hidden", args.hidden] if args.hidden else []
        arguments += [] if args.dropout else ["--no-dropout"]
        malloc.run_module("benchmarks.step", list(map(str, arguments)), setting)
        return json.loads(result.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=RECIPES, default=["gcn", "gat", "sage"])
    parser.add_argument("--data", choices=DATASETS, default="blocks")
    parser.add_argument("--data-root", type=Path, help="folder of the public data sets")
    parser.add_argument("--nodes", type=int, default=20_000, help="size of the generated graph")
    parser.add_argument("--hidden", type=int, help="width of the hidden layer (a head's width for gat)")
    parser.add_argument("--dropout", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--malloc", nargs="+", choices=malloc.SETTINGS, default=list(malloc.SETTINGS))
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    records = []
    for setting in args.malloc:
        records += measure(args, Console()) if setting == malloc.current() else in_child(args, setting)
    if args.json:
        args.json.write_text(json.dumps(records, indent=2) + "\n")


if __name__ == "__main__":
    main()
