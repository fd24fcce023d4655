"""Products of float matrices on the CPU: time, GB/s beside a copy, and operations a second, beside torch's product.

``bf16x3`` adds up three products of bfloat16, where the processor has tiles for them.

python -m benchmarks.primitives_dense --rows 169343 --sizes 128x128 128x40
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.ceilings import Contestant, Group, add_timer_options, copying, show
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.ops.mm import PRECISIONS

gqc = torch.ops.gqc


def contestants(rows: int, k: int, n: int) -> Group:
    """A layer's product with its weight, and the two of its backward."""
    x, weight, grad = torch.randn(rows, k), torch.randn(k, n), torch.randn(rows, n)
    moved, operations = {"copy": x.nbytes + grad.nbytes}, 2 * rows * k * n
    calls = {
        "X W, torch": lambda: x @ weight,
        **{f"X W, {p}": lambda p=p: gqc.mm(x, weight, False, False, None, p) for p in PRECISIONS},
        "dY W', torch": lambda: grad @ weight.t(),
        **{f"dY W', {p}": lambda p=p: gqc.mm(grad, weight, False, True, None, p) for p in PRECISIONS},
        "X' dY, torch": lambda: x.t() @ grad,
        **{f"X' dY, {p}": lambda p=p: gqc.mm(x, grad, True, False, None, p) for p in PRECISIONS},
    }
    return {**copying(x), **{name: Contestant(call, moved, operations) for name, call in calls.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=169_343)
    parser.add_argument("--sizes", nargs="+", default=["128x128", "128x40"], help="K x N of the products")
    add_timer_options(parser)
    args = parser.parse_args()
    torch.manual_seed(0)
    for size in args.sizes:
        k, n = map(int, size.split("x"))
        title = f"{args.rows:,} x {k} by {k} x {n}"
        show(title, contestants(args.rows, k, n), args)


if __name__ == "__main__":
    main()
