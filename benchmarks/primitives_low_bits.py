"""Packed 4-bit operands beside int8 and fp32: time and bytes of each primitive.

python -m benchmarks.primitives_low_bits --nodes 50000 --width 128
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.timer import Timing, paired
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.relation import from_edges

gqc = torch.ops.gqc
Contestants = dict[str, Callable[[], object]]


def contestants(nodes: int, degree: int, width: int, hidden: int) -> dict[str, Contestants]:
    """What is timed, by primitive: the same values in fp32, in int8 and packed."""
    x, weight, grad = torch.randn(nodes, width), torch.randn(hidden, width), torch.randn(nodes, hidden)
    source, target = (torch.randint(nodes, (nodes * degree,), dtype=torch.int32) for _ in range(2))
    g = from_edges(source, target, nodes, nodes)
    seed, dtype = torch.tensor([0, 0]), torch.float32

    def int8(t: Tensor) -> tuple[Tensor, Tensor]:
        return gqc.quantize(t, None, seed, 0, 4, True)

    def int4(t: Tensor) -> tuple[Tensor, Tensor]:
        return gqc.quantize_int4(t, None, seed, 0, 4, True)

    x8, w8, d8 = int8(x), int8(weight), int8(grad)
    x4, w4, d4 = (*int4(x), width), (*int4(weight), width), (*int4(grad), hidden)
    u4 = (*x4[:2], [width])
    return {
        "quantize": {"int8": lambda: int8(x), "int4": lambda: int4(x)},
        "unpack": {"int4": lambda: gqc.unpack_int4(x4[0], [width])},
        "GEMM X W'": {
            "fp32": lambda: x @ weight.t(),
            "int8": lambda: gqc.qgemm(*x8, *w8, False, True, None, dtype),
            "int4": lambda: gqc.qgemm_int4(*x4, *w4, False, True, None, dtype),
        },
        "GEMM dY' X": {
            "fp32": lambda: grad.t() @ x,
            "int8": lambda: gqc.qgemm(*d8, *x8, True, False, None, dtype),
            "int4": lambda: gqc.qgemm_int4(*d4, *x4, True, False, None, dtype),
        },
        "SPMM copy": {
            "fp32": lambda: gqc.spmm(g, "copy_lhs", x, None),
            "int8": lambda: gqc.qspmm(g, "copy_lhs", *x8, None, None, dtype),
            "int4": lambda: gqc.qspmm_int4(g, "copy_lhs", *u4, None, dtype),
        },
        "SDDMM dot": {
            "fp32": lambda: gqc.sddmm(g, "dot", x, x, "u", "v"),
            "int8": lambda: gqc.qsddmm(g, "dot", *x8, *x8, "u", "v", dtype),
            "int4": lambda: gqc.qsddmm_int4(g, "dot", *u4, *u4, "u", "v", dtype),
        },
    }


def table(title: str, timings: dict[str, dict[str, Timing]], operand_bytes: dict[str, int]) -> Table:
    """One row a primitive: median milliseconds in each precision, and int8's time over packed 4-bit's."""
    out = Table(title=title, title_justify="left")
    out.add_column("primitive")
    for name, count in operand_bytes.items():
        out.add_column(f"{name}, ms\n{count / 2**20:.1f} MB", justify="right")
    out.add_column("int8 / int4", justify="right")
    for primitive, by_precision in timings.items():
        cells = [f"{1e3 * by_precision[n].median:.2f}" if n in by_precision else "" for n in operand_bytes]
        ratio = f"{by_precision['int4'].speedup_over(by_precision['int8']):.2f}" if "int8" in by_precision else ""
        out.add_row(primitive, *cells, ratio)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=50_000)
    parser.add_argument("--degree", type=int, default=20)
    parser.add_argument("--width", type=int, default=128, help="node features")
    parser.add_argument("--hidden", type=int, default=64, help="columns of the product")
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(0)
    groups = contestants(args.nodes, args.degree, args.width, args.hidden)
    timings = {primitive: paired(group, args.rounds) for primitive, group in groups.items()}
    values = args.nodes * args.width
    sizes = {"fp32": 4 * values, "int8": values, "int4": args.nodes * ((args.width + 1) // 2)}
    title = (
        f"{args.nodes:,} nodes, degree {args.degree}, {args.width} features, {torch.get_num_threads()} threads; "
        "MB: the node features"
    )
    Console().print(table(title, timings, sizes))


if __name__ == "__main__":
    main()
