"""SPMM on the CPU: time and GB/s beside two measured ceilings, a copy and the bare reading of the same rows.

The bytes of an SPMM are a row of the table and an index for each edge, and a row of the result for each node; those of
its ceiling are the rows and the indices.

python -m benchmarks.primitives_graph --law arxiv --width 128
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from rich.console import Console
from torch import Tensor

from benchmarks.ceilings import Contestant, table
from benchmarks.graphs import LAWS, draw_ends
from benchmarks.random_rows import readers
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.relation import CSC_INDICES, from_edges

gqc = torch.ops.gqc


def contestants(g: list[Tensor], nodes: int, width: int) -> dict[str, Contestant]:
    """SPMM on each type of table, with its ceilings."""
    x = torch.randn(nodes, width)
    q, scale = gqc.quantize(x, None, torch.tensor([1, 2]), 0, 8, True)
    indices, target = g[CSC_INDICES], torch.empty_like(x)
    weights = torch.rand(len(indices), 1)

    def copy(u: Tensor, *arguments: object) -> Callable[[], object]:
        return lambda: gqc.qspmm(g, "copy_lhs", u, scale, None, None, *arguments)

    found = {"copy": Contestant(lambda: target.copy_(x), 8 * nodes * width)}
    tables = {"int8": q, "bfloat16": x.bfloat16(), "float32": x}
    for name, u in tables.items():
        read = len(indices) * (u[0].nbytes + indices.element_size())
        for ahead, call in readers(u, indices).items():
            found[f"rows of {name}, {ahead} ahead"] = Contestant(call, read)
        for kind in (torch.float32, torch.bfloat16) if name == "int8" else (u.dtype,):
            nbytes = read + nodes * width * kind.itemsize
            sums = copy(u, kind) if name == "int8" else lambda u=u: gqc.spmm(g, "copy_lhs", u, None)
            found[f"SPMM {name} -> {str(kind).removeprefix('torch.')}"] = Contestant(sums, nbytes, f"rows of {name}")
    weighted = read + nodes * width * 4 + len(indices) * 12  # weights, and where they are
    found["SPMM float32, weighted"] = Contestant(lambda: gqc.spmm(g, "mul", x, weights), weighted, "rows of float32")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--law", choices=LAWS, default="arxiv")
    parser.add_argument("--scale", type=float, default=1.0, help="of the law's nodes and edges")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--hub", type=int, default=0, help="edges into one more node")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    law = LAWS[args.law].scaled(args.scale)
    src, dst = draw_ends(law, torch.device("cpu"), generator)
    hub = torch.full((args.hub,), law.nodes - 1, dtype=dst.dtype)
    from_hub = torch.randint(law.nodes, (args.hub,), generator=generator).to(src.dtype)
    g = from_edges(torch.cat([src, from_hub]), torch.cat([dst, hub]), law.nodes, law.nodes)
    title = f"{args.law}, {law.nodes:,} nodes, {law.edges + args.hub:,} edges, width {args.width}"
    group = contestants(g, law.nodes, args.width)
    Console().print(table(f"{title}, {torch.get_num_threads()} threads", group, args.rounds))


if __name__ == "__main__":
    main()
