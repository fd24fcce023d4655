"""How time and memory of a training step grow with nodes, edges and width.

python -m benchmarks.scaling --model gcn --most 64 --json scaling.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import malloc, step
from benchmarks.graphs import LAWS
from benchmarks.models import ARCHITECTURES
from benchmarks.peers import EAGER, INT8

AXES = ("graph", "edges", "hidden")
_SMALLEST = {"scale": 1 / 64, "edge_scale": 1.0, "hidden": 16}


def sizes(axis: str, most: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The factors 1, 2, 4, .. ``most`` along an axis, with the options of :mod:`benchmarks.step` that they mean.

    Args:
        axis: ``"graph"`` scales nodes and edges together, ``"edges"`` edges alone, ``"hidden"`` the width.
    """
    factor = 1
    while factor <= most:
        option = {"graph": "scale", "edges": "edge_scale", "hidden": "hidden"}[axis]
        fixed = {"scale": 1 / 8} if axis == "hidden" else {}
        yield factor, {**_SMALLEST, **fixed, option: _SMALLEST[option] * factor}
        factor *= 2


def measure(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Time and memory of each contestant at each size; a size that does not fit into memory ends its axis."""
    defaults = vars(step.parser().parse_args([]))
    for axis in args.axis:
        for factor, options in sizes(axis, args.most):
            chosen = {**defaults, **options, "model": [args.model], "data": args.data, "rounds": args.rounds}
            chosen |= {"contestant": [EAGER, INT8], "memory": True, "threads": args.threads, "layers": args.layers}
            try:
                records = step.measure(argparse.Namespace(**chosen), args.malloc, Console(quiet=True))
            except subprocess.CalledProcessError as error:
                yield {"axis": axis, "factor": factor, "contestant": "", "failed": f"ended with {error.returncode}"}
                break
            for record in records:
                yield {"axis": axis, "factor": factor, **record}


def table(records: list[dict[str, Any]]) -> Table:
    """One row a size: milliseconds and megabytes of both contestants."""
    out = Table(title="training step", title_justify="left")
    for heading in ("axis", "factor", f"{EAGER}, ms", f"{INT8}, ms", "speed-up", f"{EAGER}, MB", f"{INT8}, MB"):
        out.add_column(heading, justify="right")
    rows: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for record in records:
        rows.setdefault((record["axis"], record["factor"]), {})[record["contestant"]] = record
    for (axis, factor), of in rows.items():
        if EAGER not in of:
            out.add_row(axis, str(factor), of[""]["failed"])
            continue
        times = [f"{of[name]['median_ms']:.1f}" for name in (EAGER, INT8)]
        memory = [f"{(of[name]['peak_bytes'] - of[name]['before_bytes']) / 1e6:.0f}" for name in (EAGER, INT8)]
        out.add_row(axis, str(factor), *times, f"{of[INT8]['speedup']:.2f}x", *memory)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=ARCHITECTURES, default="gcn")
    parser.add_argument("--data", choices=LAWS, default="arxiv", help="the law to draw by")
    parser.add_argument("--axis", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--most", type=int, default=64, help="the largest factor")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--malloc", choices=malloc.SETTINGS, default="tuned")
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    args = parser.parse_args()
    records = list(measure(args))
    Console(width=None if sys.stdout.isatty() else 160).print(table(records))
    if args.json:
        args.json.write_text(json.dumps(records, indent=2) + "\n")


if __name__ == "__main__":
    main()
