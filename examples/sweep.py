"""All models on all Planetoid graphs; writes the table of docs/accuracy.md.

    python -m examples.sweep --data-root DIR

A pair's numbers are kept in ``--results``, and a pair that is there already is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

from examples.datasets import PLANETOID
from examples.models import RECIPES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"
BEGIN, END = "<!-- accuracy: begin -->", "<!-- accuracy: end -->"


def run_pair(model: str, data: str, results: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Result of one pair, from its file or from a run of examples.node_classification in its own process."""
    file = results / f"{model}-{data}.json"
    if not file.exists():
        pair = ["--model", model, "--data", data, "--json", str(file)]
        subprocess.run([sys.executable, "-m", "examples.node_classification", *pair, *arguments], check=True)
    return json.loads(file.read_text())


def table(results: Sequence[dict[str, Any]]) -> str:
    """Markdown: one row a pair, then the single seeds."""
    variants = list(results[0]["test_accuracy"])
    lines = [
        "| model | graph | seeds | " + " | ".join(variants) + " | int8 - fp32 |",
        "| --- " * (len(variants) + 4) + "|",
    ]
    for result in results:
        accuracy = result["test_accuracy"]
        difference = statistics.mean(accuracy["int8"]) - statistics.mean(accuracy["fp32"])
        cells = [result["model"], PLANETOID[result["data"]], str(result["seeds"])]
        cells += [_mean_and_spread(accuracy[variant]) for variant in variants]
        lines.append("| " + " | ".join([*cells, f"{difference:+.2f}"]) + " |")
    lines += ["", "Seed by seed:", "", "| model | graph | variant | test accuracy |", "| --- | --- | --- | --- |"]
    for result in results:
        for variant, values in result["test_accuracy"].items():
            cells = [result["model"], PLANETOID[result["data"]], variant, " ".join(f"{v:.1f}" for v in values)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def rewrite(page: str, content: str) -> str:
    """``page`` with ``content`` between its markers.

    Raises:
        ValueError: a marker is missing.
    """
    before, _, rest = page.partition(BEGIN)
    _, marker, after = rest.partition(END)
    if not marker:
        raise ValueError(f"the page needs the markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{content}\n{END}{after}"


def _mean_and_spread(values: Sequence[float]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2f} ± {spread:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True, help="folder that holds Planetoid/<Name>/raw")
    parser.add_argument("--models", nargs="+", choices=RECIPES, default=["gcn", "gat", "sage"])
    parser.add_argument("--datasets", nargs="+", choices=PLANETOID, default=list(PLANETOID))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1, help="pairs at a time; with more than one, a thread each")
    parser.add_argument("--results", type=Path, default=Path("build/accuracy"))
    args = parser.parse_args()

    args.results.mkdir(parents=True, exist_ok=True)
    arguments = ["--data-root", str(args.data_root), "--seeds", str(args.seeds), "--epochs", str(args.epochs)]
    arguments += ["--threads", "1"] if args.jobs > 1 else []
    with ThreadPoolExecutor(args.jobs) as pool:
        pairs = product(args.models, args.datasets)
        results = list(pool.map(lambda pair: run_pair(*pair, args.results, arguments), pairs))
    PAGE.write_text(rewrite(PAGE.read_text(), table(results)))


if __name__ == "__main__":
    main()
