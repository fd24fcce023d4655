"""GCN and GAT in FP32 by DGL and in INT8 by gqc, side by side in one run.

python -m examples.demo                                    a generated graph of 20,000 nodes
python -m examples.demo --data pubmed --data-root DIR      a Planetoid graph
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import nn

import gqc
from examples.datasets import DATASETS, NodeData, load
from examples.memory import saved_bytes
from examples.models import Recipe, recipe
from examples.training import Epoch, best, epochs


@dataclass(frozen=True)
class Outcome:
    """What training one model in one precision gave.

    Attributes:
        accuracy: on the test nodes, at the epoch with the best validation accuracy.
        step_ms: median time of a training step (forward, backward, update) without the first, which compiles.
        first_step_ms: time of the first step.
        saved_mb: activations kept for the backward.
        quantized: number of quantized primitives, forward and backward.
        kept: number of primitives in full precision by the reason why.
    """

    accuracy: float
    step_ms: float
    first_step_ms: float
    saved_mb: float
    quantized: int = 0
    kept: dict[str, int] = field(default_factory=dict)


def train_both(how: Recipe, data: NodeData, count: int, each: Callable[[str], None]) -> list[Outcome]:
    """Train the same initial model in FP32 and in INT8, epoch by epoch in turns; ``each`` gets a line a round."""
    data = how.prepare(data)
    eager = how.model(data)
    quantized = gqc.compile(copy.deepcopy(eager), min_size=0)  # by default, small primitives stay in full precision
    runs = [epochs(model, how.optimizer(model), data, count) for model in (eager, quantized)]
    histories: list[list[Epoch]] = [[], []]
    for pair in zip(*runs, strict=True):
        for history, epoch in zip(histories, pair, strict=True):
            history.append(epoch)
        each("loss {:.3f} | {:.3f}".format(*(epoch.loss for epoch in pair)))
    outcomes = [_outcome(m, data, h) for m, h in zip((eager, quantized), histories, strict=True)]
    return [outcomes[0], replace(outcomes[1], **_primitives(quantized))]


def _outcome(model: nn.Module, data: NodeData, history: list[Epoch]) -> Outcome:
    model.train()
    later = history[1:] or history
    return Outcome(
        accuracy=best(history),
        step_ms=1e3 * statistics.median(epoch.seconds for epoch in later),
        first_step_ms=1e3 * history[0].seconds,
        saved_mb=saved_bytes(lambda: model(data.graph, data.features)) / 2**20,
    )


def _primitives(model: nn.Module) -> dict[str, int | dict[str, int]]:
    """Counts of the variant that trains, the first that was compiled."""
    with contextlib.redirect_stdout(io.StringIO()):
        stages = gqc.explain(model).variants[0].stages
    kept = Counter(decision.reason for stage in stages for decision in stage.decisions("kept"))
    return {"quantized": sum(len(stage.decisions("quantized")) for stage in stages), "kept": dict(kept)}


def table(outcomes: dict[str, list[Outcome]]) -> Table:
    """The result of the whole demo, two rows a model."""
    out = Table()
    for heading in ("model", "trained by", "accuracy", "time a step", "saved for backward", "in INT8"):
        out.add_column(heading, justify="left" if heading in ("model", "trained by") else "right")
    for model, (fp32, int8) in outcomes.items():
        primitives = int8.quantized + sum(int8.kept.values())
        out.add_row(
            model.upper(),
            "DGL fp32",
            f"{fp32.accuracy:.1%}",
            f"{fp32.step_ms:.1f} ms",
            f"{fp32.saved_mb:.1f} MB",
            f"0 of {primitives}",
        )
        out.add_row(
            "",
            "gqc int8",
            f"{int8.accuracy:.1%}",
            f"{int8.step_ms:.1f} ms ({fp32.step_ms / int8.step_ms:.1f}x)",
            f"{int8.saved_mb:.1f} MB (1/{fp32.saved_mb / int8.saved_mb:.1f})",
            f"{int8.quantized} of {primitives}",
            end_section=True,
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=DATASETS, default="blocks")
    parser.add_argument("--data-root", type=Path, help="folder of the public data sets")
    parser.add_argument("--nodes", type=int, default=20_000, help="size of the generated graph")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    args = parser.parse_args()

    console = Console()
    data = load(args.data, args.data_root, args.nodes, args.seed)
    console.print(data.summary())
    outcomes: dict[str, list[Outcome]] = {}
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        for name in ("gcn", "gat"):
            torch.manual_seed(args.seed)
            task = progress.add_task(name, total=args.epochs)
            outcomes[name] = train_both(
                recipe(name, args.data),
                data,
                args.epochs,
                lambda losses, name=name, task=task: progress.update(
                    task, advance=1, description=f"{name}  fp32 | int8  {losses}"
                ),
            )
    console.print(table(outcomes))
    for name, (_, int8) in outcomes.items():
        console.print(
            f"{name.upper()} compiled in its first step: {int8.first_step_ms / 1e3:.1f} s. In full precision stay:"
        )
        for reason, number in sorted(int8.kept.items(), key=lambda item: -item[1]):
            console.print(f"  {number} x {reason}", highlight=False)
    if args.json:
        args.json.write_text(
            json.dumps({n: [asdict(o) for o in both] for n, both in outcomes.items()}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
