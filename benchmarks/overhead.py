"""What a call costs beyond its kernels: a 100-node graph, where eager DGL's time is overhead too.

python -m benchmarks.overhead
"""

from __future__ import annotations

import argparse
import copy

from rich.console import Console
from rich.table import Table

import gqc
from benchmarks.peers import EAGER, INT8
from benchmarks.timer import Timing, paired
from examples.datasets import blocks
from examples.models import RECIPES, recipe
from examples.training import accuracies, step

NODES = 100


def measure(name: str, rounds: int) -> dict[str, dict[str, Timing]]:
    """Timings of a training step and of a forward without gradients, by contestant."""
    how = recipe(name)
    data = how.prepare(blocks(NODES))
    eager = how.model(data)
    models = {EAGER: eager, INT8: gqc.compile(copy.deepcopy(eager))}
    optimizers = {key: how.optimizer(model) for key, model in models.items()}
    return {
        "training step": paired(
            {key: lambda m=m, o=optimizers[key]: step(m, o, data) for key, m in models.items()}, rounds
        ),
        "evaluation": paired({key: lambda m=m: accuracies(m, data) for key, m in models.items()}, rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--rounds", type=int, default=300)
    args = parser.parse_args()

    table = Table("model", "call", title=f"median per call on {NODES} nodes", title_justify="left")
    for heading in (EAGER, INT8, "speed-up"):
        table.add_column(heading, justify="right")
    for name in args.model:
        for call, timings in measure(name, args.rounds).items():
            eager, int8 = timings[EAGER], timings[INT8]
            cells = [f"{1e6 * t.median:.0f} us" for t in (eager, int8)]
            table.add_row(name, call, *cells, f"{int8.speedup_over(eager):.2f}x")
    Console().print(table)


if __name__ == "__main__":
    main()
