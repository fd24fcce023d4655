"""All tables of single kernels, one process each, with malloc tuned so that torch's ops do not wait for fresh memory.

python -m benchmarks.primitives_all
python -m benchmarks.primitives_all --only primitives_dense primitives_loss --scale 0.1 --rounds 5
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from benchmarks.graphs import LAWS
from benchmarks.malloc import run_module


def _rows(scale: float) -> list[str]:
    return ["--rows", str(round(scale * LAWS["arxiv"].nodes))]


def _scale(scale: float) -> list[str]:
    return ["--scale", str(scale)]


MODULES: dict[str, Callable[[float], list[str]]] = {
    "primitives": _rows,
    "primitives_dense": _rows,
    "primitives_loss": _rows,
    "primitives_saved": _rows,
    "primitives_low_bits": lambda scale: ["--nodes", str(round(scale * 50_000))],
    "primitives_graph": _scale,
    "primitives_edges": _scale,
    "primitives_attention": _scale,
    "primitives_typed": _scale,
    "primitives_chains": _scale,
    "openmp": _rows,
}
"""In running order, with the options that give a module its size, as a share of ogbn-arxiv's."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MODULES, default=list(MODULES))
    parser.add_argument("--scale", type=float, default=1.0, help="of the rows, nodes and edges")
    parser.add_argument("--rounds", type=int, help="by default each module's own")
    args = parser.parse_args()
    rounds = [] if args.rounds is None else ["--rounds", str(args.rounds)]
    for name in args.only:
        run_module(f"benchmarks.{name}", [*MODULES[name](args.scale), *rounds], "tuned")


if __name__ == "__main__":
    main()
