"""How many bits does training need? Tango's rule beside the accuracy at each width (Tango, SC'23, Figure 2).

    python -m examples.bits --data cora --data-root DIR --seeds 3

Error_X is measured on the first GNN layer's output in the first step, as ``gqc.compile(model, bits="auto")`` does it;
the rule picks the smallest width of 2 to 8 bits with Error_X <= 0.3. The accuracies of a data set are kept in
``--results`` and not trained again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import nn

import gqc
from examples.datasets import DATASETS, NodeData, load
from examples.models import RECIPES, recipe
from examples.node_classification import Variants, compare
from gqc.passes.choose_bits import BitRule

WIDTHS = range(2, 9)


def bit_rule(data: NodeData, model: str) -> BitRule:
    """What ``bits="auto"`` measures and picks in the first step from the weights of seed 0."""
    how = recipe(model, data.name.lower())
    data = how.prepare(data)
    torch.manual_seed(0)
    compiled = gqc.compile(how.model(data), bits="auto", min_size=0)
    compiled(data.graph, data.features)
    with contextlib.redirect_stdout(io.StringIO()):
        (variant,) = gqc.explain(compiled).variants
    assert variant.bit_rule is not None
    return variant.bit_rule


def variants(output_layer: bool) -> Variants:
    """Training in full precision and at each width, by the name of the width."""

    def at(bits: int) -> Callable[[nn.Module], nn.Module]:
        return lambda model: gqc.compile(model, bits=bits, keep_output_layer=not output_layer, min_size=0)

    return {"fp32": lambda model: model} | {str(bits): at(bits) for bits in WIDTHS}


def accuracies(data: NodeData, args: argparse.Namespace, console: Console) -> dict[str, list[float]]:
    """Test accuracies in percent, one a seed, by width; trained unless ``args.results`` holds them."""
    what = "all-layers" if args.output_layer else "default"
    file = args.results / f"{args.model}-{args.data}-{what}-{args.seeds}x{args.epochs}.json"
    if not file.exists():
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        trained = variants(args.output_layer)
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=args.seeds * args.epochs * len(trained))

            def each(name: str) -> None:
                progress.update(task, advance=1, description=name if name == "fp32" else f"{name} bits")

            result = compare(data, args.model, trained, args.seeds, args.epochs, None, each)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result, indent=2) + "\n")
    return json.loads(file.read_text())


def table(title: str, rule: BitRule, by_width: dict[str, list[float]]) -> Table:
    """One row a width: Error_X, whether the rule picks it, mean accuracy, distance to full precision, every seed."""
    out = Table(title=title, title_justify="left")
    out.add_column("bits")
    for heading in ("Error_X", "rule", "test accuracy %", "to fp32", "by seed"):
        out.add_column(heading, justify="right")
    exact = statistics.mean(by_width["fp32"])
    for name, values in by_width.items():
        mean = statistics.mean(values)
        error = rule.errors.get(int(name)) if name != "fp32" else None
        out.add_row(
            name,
            "" if error is None else f"{error:.3f}",
            "picked" if name == str(rule.bits) else "",
            f"{mean:.2f}",
            f"{mean - exact:+.2f}",
            " ".join(f"{value:.1f}" for value in values),
        )
    return out


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--model", choices=RECIPES, default="gcn")
    out.add_argument("--data", choices=DATASETS, default="blocks")
    out.add_argument("--data-root", type=Path, help="folder of the public data sets")
    out.add_argument("--nodes", type=int, default=20_000, help="size of the generated graph (--data blocks)")
    out.add_argument("--seeds", type=int, default=3)
    out.add_argument("--epochs", type=int, default=200)
    out.add_argument("--output-layer", action="store_true", help="quantize the output layer too")
    out.add_argument("--results", type=Path, default=Path("build/bits"))
    return out


def main() -> None:
    args = parser().parse_args()
    console = Console()
    data = load(args.data, args.data_root, args.nodes)
    rule = bit_rule(data, args.model)
    console.print(f"[bold]{args.model}[/] on {data.summary()}; {args.seeds} seeds, {args.epochs} epochs")
    console.print(str(rule), highlight=False)
    console.print(table(f"{args.model} on {data.name}", rule, accuracies(data, args, console)))


if __name__ == "__main__":
    main()
