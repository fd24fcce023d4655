"""Recommenders on knowledge graphs, trained with activations in few bits (TinyKG, RecSys 2022, tables 2, 5 and 6).

    python -m examples.recommendation --data lastfm --data-root DIR --model kgat kgin
    python -m examples.recommendation --data amazon-book --scale 10 --bits 8 2 --rounding stochastic nearest

Each model is trained in plain PyTorch, compiled in full precision, and compiled with what is saved for the backward
compressed; for each seed all start from the same weights. Metrics are those of the last epoch, over all items but
the user's train items. With ``--results`` what is in the file already is not trained again.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from examples.recommendation import tables
from examples.recommendation.comparison import compare, units, variants
from examples.recommendation.datasets import load
from examples.recommendation.models import MODELS, NAMES
from examples.recommendation.options import add_data_and_sizes

SETTINGS = ("data", "scale", "seeds", "epochs", "batch", "width", "layers", "bits", "rounding")


def run(args: argparse.Namespace, console: Console) -> dict[str, tables.Result]:
    """Train what the command line asks for, with a progress bar, and print a model's tables when it is done."""
    data = load(args.data, args.data_root, args.scale)
    chosen = variants(args.bits, args.rounding)
    console.print(f"{data.summary()}; {args.seeds} seeds, {args.epochs} epochs, batches of {args.batch}")
    done = _read(args)
    for model in args.model:
        if model not in done:
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            with Progress(*columns, console=console, transient=True) as progress:
                task = progress.add_task(NAMES[model], total=units(chosen, args.seeds, args.epochs))

                each = partial(_show, progress, task, NAMES[model])
                sizes = {"batch": args.batch, "width": args.width, "layers": args.layers}
                done[model] = compare(model, data, chosen, args.seeds, args.epochs, each, **sizes)
            if args.results:
                args.results.parent.mkdir(parents=True, exist_ok=True)
                args.results.write_text(json.dumps({"settings": _settings(args), "models": done}, indent=2) + "\n")
        console.print(tables.widths(f"{NAMES[model]} on {data.name}", done[model]))
        if "nearest" in args.rounding:
            console.print(tables.roundings(f"{NAMES[model]} on {data.name}: rounding", done[model], args.bits))
    return done


def _show(progress: Progress, task: TaskID, model: str, what: str, count: int) -> None:
    progress.update(task, advance=count, description=f"{model}, {what}")


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name in SETTINGS}


def _read(args: argparse.Namespace) -> dict[str, tables.Result]:
    if not (args.results and args.results.exists()):
        return {}
    found = json.loads(args.results.read_text())
    if found["settings"] != _settings(args):
        raise SystemExit(f"{args.results} holds results of other settings: {found['settings']}; give another --results")
    return found["models"]


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m examples.recommendation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_data_and_sizes(out)
    out.add_argument("--data-root", type=Path, help="folder of the public data sets")
    out.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    out.add_argument("--bits", nargs="*", type=int, choices=(32, 8, 4, 2, 1), default=[32, 8, 4, 2, 1])
    out.add_argument("--rounding", nargs="+", choices=("stochastic", "nearest"), default=["stochastic"])
    out.add_argument("--seeds", type=int, default=3)
    out.add_argument("--epochs", type=int, default=30)
    out.add_argument("--threads", type=int, default=torch.get_num_threads())
    out.add_argument("--results", type=Path, help="write the numbers to this file, and read what is there")
    return out


def main() -> None:
    arguments = parser()
    args = arguments.parse_args()
    torch.set_num_threads(args.threads)
    try:
        run(args, Console())
    except (ValueError, FileNotFoundError) as error:
        arguments.error(str(error))


if __name__ == "__main__":
    main()
