"""Compression and projection of saved activations on the CPU: time and GB/s beside what memory allows.

The bytes of a call are those of the floats and of what is kept of them. Compressing is compared with the bare reading
of the floats (their sum), decompressing with writing them (a fill), and both stand beside a copy.

python -m benchmarks.primitives_saved --rows 169343 --width 128
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.ceilings import Contestant, Group, add_timer_options, copying, show
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc

gqc = torch.ops.gqc
READING, WRITING = "sum", "fill"


def contestants(x: Tensor, group: int) -> Group:
    """Each number of bits, each way to round, and the way back; then random projection to an eighth of the width."""
    target, seed, stats = torch.empty_like(x), torch.tensor([1, 2]), torch.bfloat16
    found = {
        **copying(x),
        READING: Contestant(x.sum, x.nbytes, ceiling=READING),
        WRITING: Contestant(lambda: target.fill_(1.5), x.nbytes, ceiling=WRITING),
    }
    for bits in (8, 4, 2, 1):
        compressed = gqc.compress_rows(x, bits, seed, 0, stats, group)
        nbytes = x.nbytes + sum(part.nbytes for part in compressed)

        def compress(seed: Tensor | None, bits: int = bits) -> Callable[[], object]:
            return lambda: gqc.compress_rows(x, bits, seed, 0, stats, group)

        def decompress(bits: int = bits, compressed: tuple[Tensor, ...] = compressed) -> object:
            return gqc.decompress_rows(*compressed, bits, x.shape[1], x.dtype, group)

        found[f"compress, {bits} bits"] = Contestant(compress(seed), {READING: nbytes})
        found[f"compress, {bits} bits, nearest"] = Contestant(compress(None), {READING: nbytes})
        found[f"decompress, {bits} bits"] = Contestant(decompress, {WRITING: nbytes})
    width, kept = x.shape[1], -(-x.shape[1] // 8)
    projected = gqc.project_rows(x, kept, seed, 0)
    nbytes = x.nbytes + projected.nbytes
    found[f"project to {kept}"] = Contestant(lambda: gqc.project_rows(x, kept, seed, 0), {READING: nbytes})
    found[f"project from {kept}"] = Contestant(lambda: gqc.unproject_rows(projected, width, seed, 0), {WRITING: nbytes})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=169_343)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--group", type=int, default=0, help="elements of a row that share Z and R; 0: the whole row")
    add_timer_options(parser)
    args = parser.parse_args()
    torch.manual_seed(0)
    group = contestants(torch.randn(args.rows, args.width), args.group)
    title = f"float32 [{args.rows:,}, {args.width}]"
    show(title, group, args)


if __name__ == "__main__":
    main()
