"""Products of quantized matrices on the CPU: time, GB/s beside a measured copy, and int8 operations a second.

The bytes of a row are those that must cross memory once: operands read, results written. Chains are what a fused
product stands for, run one after the other.

python -m benchmarks.primitives --rows 169343 --sizes 128x128 256x256 --isas avx512 amx
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.ceilings import Contestant, Group
from benchmarks.timer import Timing, paired
from gqc.runtime import native, ops  # noqa: F401  registers torch.ops.gqc

gqc = torch.ops.gqc
FLOAT, BFLOAT = torch.float32, torch.bfloat16


def contestants(rows: int, k: int, n: int) -> Group:
    """What is timed for a product of ``rows`` by ``k`` with ``k`` by ``n``."""
    x, grad, weight = torch.randn(rows, k), torch.randn(rows, n), torch.randn(k, n)
    seed, bias, factors = torch.tensor([1, 2]), torch.randn(n), torch.rand(rows)
    absmax = x.abs().amax()

    def int8(t: Tensor, at_most: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return gqc.quantize(t, at_most, seed, 0, 8, True)

    (a, a_scale), (b, b_scale), (d, d_scale) = int8(x), int8(weight), int8(grad)
    product = (a, a_scale, b, b_scale, False, False)
    after, rounding = (bias, factors, True), (seed, 1, 8, True)
    reads = partial(gqc.quantize_qgemm, x, absmax, *rounding, b, b_scale, False)
    target = torch.empty_like(x)

    def chain() -> None:
        q, scale = int8(x, absmax)
        gqc.qgemm(q, scale, b, b_scale, False, False, None, FLOAT)

    def epilogue_chain() -> None:
        out = gqc.qgemm(*product, bias, FLOAT)[0]
        (out * factors[:, None]).relu()

    def int8_chain() -> None:
        out, largest = gqc.qgemm(*product, None, FLOAT)
        int8(out, largest)

    left, right, both = rows * k, rows * n, 2 * rows * k * n
    return {
        "copy": Contestant(lambda: target.copy_(x), 8 * left),
        "quantize": Contestant(lambda: int8(x, absmax), 5 * left),
        "fp32 X W": Contestant(lambda: x @ weight, 4 * left + 4 * right, both),
        "int8 -> fp32": Contestant(lambda: gqc.qgemm(*product, None, FLOAT), left + 4 * right, both),
        "int8 -> bf16": Contestant(lambda: gqc.qgemm(*product, None, BFLOAT), left + 2 * right, both),
        "fp32 -> fp32, chain": Contestant(chain, 5 * left + 4 * right, both),
        "fp32 -> fp32": Contestant(lambda: reads(None, None, False, FLOAT), 5 * left + 4 * right, both),
        "int8 -> epilogue, chain": Contestant(epilogue_chain, left + 4 * right, both),
        "int8 -> epilogue": Contestant(lambda: gqc.qgemm_epilogue(*product, *after, FLOAT), left + 4 * right, both),
        "int8 -> int8, chain": Contestant(int8_chain, left + right, both),
        "int8 -> int8": Contestant(
            lambda: gqc.qgemm_int8(*product, None, None, False, *rounding, FLOAT), left + right, both
        ),
        "fp32 X' dY": Contestant(lambda: x.t() @ grad, 4 * left + 4 * right, both),
        "int8 X' dY": Contestant(
            lambda: gqc.qgemm(a, a_scale, d, d_scale, True, False, None, FLOAT), left + right, both
        ),
    }


def table(title: str, group: Group, timings: dict[str, dict[str, Timing]]) -> Table:
    """One row a contestant, fastest and median time with each instruction set."""
    out = Table(title=title, title_justify="left")
    out.add_column("product")
    for isa in timings:
        out.add_column(f"{isa}, ms\nfastest / median", justify="right")
        out.add_column("GB/s", justify="right")
        out.add_column("GOPS", justify="right")
    for name, contestant in group.items():
        cells = []
        for timing in timings.values():
            fastest = min(timing[name].seconds)
            cells.append(f"{1e3 * fastest:.2f} / {1e3 * timing[name].median:.2f}")
            cells.append(f"{contestant.nbytes / fastest / 1e9:.1f}")
            cells.append(f"{contestant.operations / fastest / 1e9:.0f}" if contestant.operations else "")
        out.add_row(name, *cells)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=169_343)
    parser.add_argument("--sizes", nargs="+", default=["128x128"], help="K x N of the products")
    parser.add_argument("--isas", nargs="+", default=[native.isas()[-1]])
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.manual_seed(0)
    for size in args.sizes:
        k, n = map(int, size.split("x"))
        group = contestants(args.rows, k, n)
        calls = {name: contestant.call for name, contestant in group.items()}
        timings = {}
        for isa in args.isas:
            with native.use_isa(isa):
                timings[isa] = paired(calls, args.rounds)
        Console().print(table(f"{args.rows:,} x {k} by {k} x {n}, {torch.get_num_threads()} threads", group, timings))


if __name__ == "__main__":
    main()
