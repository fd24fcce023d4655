"""Test accuracy of INT8 training beside FP32, seed by seed, on Planetoid or generated graphs.

    python -m examples.node_classification --model gcn --data cora --data-root DIR --seeds 10
    python -m examples.node_classification --model gat --policy attention_logits=int8 --policy bits=4,rounding=nearest

For each seed the variants start from the same weights. A variant's result is its test accuracy at the epoch with the
best validation accuracy.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:  # run by path: python examples/node_classification.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import nn

import gqc
from examples.datasets import DATASETS, NodeData, load
from examples.models import RECIPES, recipe
from examples.training import best, epochs

Variants = dict[str, Callable[[nn.Module], nn.Module]]


def everything(**options: Any) -> Callable[[nn.Module], nn.Module]:
    """Compiles with all primitives in INT8, also those that are small enough to be faster in full precision."""
    return lambda model: gqc.compile(model, **{"min_size": 0, **options})


BASE: Variants = {"fp32": lambda model: model, "int8": everything()}
VARIANTS: Variants = BASE | {
    "int8 nearest": everything(rounding="nearest"),
    "int8 output layer too": everything(keep_output_layer=False),
}


def variant(options: str) -> Callable[[nn.Module], nn.Module]:
    """The compiled form under fields of :class:`gqc.Policy` written as ``"bits=4,rounding=nearest"``.

    Raises:
        ValueError: a part has no ``=``, or the policy refuses a name or value.
    """
    fields: dict[str, Any] = {}
    for part in options.split(","):
        name, given, value = part.partition("=")
        if not given:
            raise ValueError(f"{part!r} is not FIELD=VALUE")
        try:
            fields[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            fields[name] = value  # a word without quotes
    policy = gqc.Policy.of(None, {"min_size": 0, **fields})
    return lambda model: gqc.compile(model, policy)


def compare(
    data: NodeData,
    model: str,
    variants: Variants,
    seeds: int,
    count: int,
    hidden: int | None,
    each: Callable[[str], None],
) -> dict[str, list[float]]:
    """Train every variant with every seed; ``each`` is called with the variant's name after each epoch.

    Returns:
        Test accuracies in percent, one a seed, by variant.
    """
    how = recipe(model, data.name.lower())
    data = how.prepare(data)
    result: dict[str, list[float]] = {name: [] for name in variants}
    models = {name: prepare(how.model(data, hidden)) for name, prepare in variants.items()}  # each compiles once
    for seed in range(seeds):
        torch.manual_seed(seed)
        initial = how.model(data, hidden).state_dict()
        for name, trained in models.items():
            torch.manual_seed(seed)
            trained.load_state_dict(initial)
            history = []
            for epoch in epochs(trained, how.optimizer(trained), data, count):
                history.append(epoch)
                each(name)
            result[name].append(100 * best(history))
    return result


def table(title: str, accuracies: dict[str, list[float]]) -> Table:
    """One row a variant: mean and spread, difference to fp32, every seed."""
    out = Table(title=title, title_justify="left")
    out.add_column("variant")
    for heading in ("test accuracy %", "to fp32", "by seed"):
        out.add_column(heading, justify="right")
    base = statistics.mean(accuracies["fp32"])
    for name, values in accuracies.items():
        mean = statistics.mean(values)
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        out.add_row(name, f"{mean:.2f} ± {spread:.2f}", f"{mean - base:+.2f}", " ".join(f"{v:.1f}" for v in values))
    return out


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Train what the command line asks for, with a progress bar; returns what ``--json`` writes."""
    data = load(args.data, args.data_root, args.nodes)
    variants = BASE | {options: variant(options) for options in args.policy} if args.policy else VARIANTS
    console.print(f"[bold]{args.model}[/] on {data.summary()}; {args.seeds} seeds, {args.epochs} epochs")
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=args.seeds * args.epochs * len(variants))
        accuracies = compare(
            data,
            args.model,
            variants,
            args.seeds,
            args.epochs,
            args.hidden,
            lambda name: progress.update(task, advance=1, description=name),
        )
    console.print(table(f"{args.model} on {data.name}", accuracies))
    keys = ("model", "data", "seeds", "epochs", "hidden")
    return {key: getattr(args, key) for key in keys} | {"test_accuracy": accuracies}


def _checked(options: str) -> str:
    try:
        variant(options)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return options


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--model", choices=RECIPES, default="gcn")
    out.add_argument("--data", choices=DATASETS, default="blocks")
    out.add_argument("--data-root", type=Path, help="folder of the public data sets")
    out.add_argument("--nodes", type=int, default=20_000, help="size of the generated graph (--data blocks)")
    out.add_argument("--seeds", type=int, default=10)
    out.add_argument("--epochs", type=int, default=200)
    out.add_argument("--hidden", type=int, help="width of the hidden layer (a head's width for gat)")
    out.add_argument(
        "--policy",
        action="append",
        type=_checked,
        metavar="FIELD=VALUE[,...]",
        help="compare fp32 and int8 with this policy instead of with the usual ones; may be repeated",
    )
    out.add_argument("--threads", type=int, default=torch.get_num_threads())
    out.add_argument("--json", type=Path, help="write the numbers to this file too")
    return out


def main() -> None:
    args = parser().parse_args()
    torch.set_num_threads(args.threads)
    result = run(args, Console())
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
