"""SDDMM, edge softmax and the gradient of max along edges, beside the bare reading of the same rows and a copy.

Edges stand in the order of their ids, so both ends of an SDDMM are rows at random; a softmax takes them in the order of
their destinations, in which their numbers are rows at random, read and written.

python -m benchmarks.primitives_edges --law arxiv --width 128 --heads 4
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.ceilings import (
    Contestant,
    Group,
    bytes_of_ends,
    bytes_of_rows,
    copying,
    end_readings,
    row_readings,
    show,
)
from benchmarks.graph_options import drawn, graph_parser
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.relation import CSC_EIDS, SRC

gqc = torch.ops.gqc
FLOAT = torch.float32


def contestants(g: list[Tensor], nodes: int, width: int, heads: int) -> Group:
    """Each op on float and, where there is such a kernel, on int8 operands."""
    seed, edges = torch.tensor([1, 2]), len(g[SRC])
    x, logits = torch.randn(nodes, heads, width // heads), torch.randn(nodes, heads, 1)
    numbers, grad = torch.randn(edges, heads, 1), torch.randn(edges, heads, 1)
    q, q_logits = (gqc.quantize(t, None, seed, 0, 8, True) for t in (x, logits))
    softmax = gqc.edge_softmax(g, numbers)
    largest, winners = gqc.spmm_cmp(g, "copy_rhs", "max", None, numbers)
    result, by_edge = {"copy": numbers.nbytes}, bytes_of_rows(numbers, g[CSC_EIDS])
    return {
        **copying(numbers),
        **end_readings("rows of int8", q[0], g),
        **end_readings("rows of float32", x, g),
        **end_readings("int8 logits", q_logits[0], g),
        **end_readings("logits", logits, g),
        **row_readings("edges by destination", numbers, g[CSC_EIDS]),
        "dot, int8": Contestant(
            lambda: gqc.qsddmm(g, "dot", *q, *q, "u", "v", FLOAT), {**bytes_of_ends("rows of int8", q[0], g), **result}
        ),
        "dot, float32": Contestant(
            lambda: gqc.sddmm(g, "dot", x, x, "u", "v"), {**bytes_of_ends("rows of float32", x, g), **result}
        ),
        "add, int8": Contestant(
            lambda: gqc.qsddmm(g, "add", *q_logits, *q_logits, "u", "v", FLOAT),
            {**bytes_of_ends("int8 logits", q_logits[0], g), **result},
        ),
        "add, float32": Contestant(
            lambda: gqc.sddmm(g, "add", logits, logits, "u", "v"), {**bytes_of_ends("logits", logits, g), **result}
        ),
        "softmax": Contestant(lambda: gqc.edge_softmax(g, numbers), {"edges by destination": by_edge + numbers.nbytes}),
        "softmax, backward": Contestant(
            lambda: gqc.edge_softmax_bwd(g, softmax, grad), {"edges by destination": by_edge + 2 * numbers.nbytes}
        ),
        "max of edges": Contestant(
            lambda: gqc.spmm_cmp(g, "copy_rhs", "max", None, numbers),
            {"edges by destination": by_edge, "copy": largest.nbytes + winners.nbytes},
        ),
        "max of edges, backward": Contestant(
            lambda: gqc.spmm_cmp_bwd(g, winners, largest),
            {"edges by destination": by_edge, "copy": largest.nbytes + winners.nbytes},
        ),
    }


def main() -> None:
    parser = graph_parser(__doc__)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4, help="numbers of an edge; they divide the width")
    args = parser.parse_args()
    graph = drawn(args)
    group = contestants(graph.g, graph.nodes, args.width, args.heads)
    title = f"along edges, width {args.width}, {args.heads} heads, {graph.title}"
    show(title, group, args)


if __name__ == "__main__":
    main()
