"""SPMM on the CPU: time and GB/s beside measured ceilings, a copy and the bare reading of the same rows.

The bytes of an SPMM are a row of the table and an index for each edge, at the rate of the bare reading, the weights of
the edges likewise, and the result at the rate of the copy. Those of max also hold, for each element, which edge won;
its gradient looks up the source of each of these edges, which no ceiling counts.

python -m benchmarks.primitives_graph --law arxiv --width 128
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.ceilings import Contestant, Group, bytes_of_rows, copying, row_readings, show
from benchmarks.graph_options import drawn, graph_parser
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.relation import CSC_EIDS, CSC_INDICES, CSC_INDPTR

gqc = torch.ops.gqc
FLOAT, BFLOAT = torch.float32, torch.bfloat16


def contestants(g: list[Tensor], nodes: int, width: int, heads: int) -> Group:
    """SPMM on each type of table, with each reduction and with weights, with its ceilings."""
    x = torch.randn(nodes, heads, width // heads)
    seed, sources, eids = torch.tensor([1, 2]), g[CSC_INDICES], g[CSC_EIDS]
    degrees = g[CSC_INDPTR].diff().float().clamp_(min=1)
    weights = torch.rand(len(eids), heads, 1)
    q, scale = gqc.quantize(x, None, seed, 0, 8, True)
    q_weights, weight_scale = gqc.quantize(weights, None, seed, 1, 8, True)
    low = x.bfloat16()
    _, winners = gqc.spmm_cmp(g, "copy_lhs", "max", x, None)

    int8_rows = {"rows of int8": bytes_of_rows(q, sources)}
    low_rows = {"rows of bfloat16": bytes_of_rows(low, sources)}
    rows = {"rows of float32": bytes_of_rows(x, sources)}
    by_weights = {"weights": bytes_of_rows(weights, eids)}
    by_int8_weights = {"int8 weights": bytes_of_rows(q_weights, eids)}
    result, low_result, winning = {"copy": x.nbytes}, {"copy": low.nbytes}, {"copy": x.nbytes + winners.nbytes}
    quantized = (q, scale, None, None)
    return {
        **copying(x),
        **row_readings("rows of int8", q, sources),
        **row_readings("rows of bfloat16", low, sources),
        **row_readings("rows of float32", x, sources),
        **row_readings("weights", weights, eids),
        **row_readings("int8 weights", q_weights, eids),
        "int8 -> float32": Contestant(lambda: gqc.qspmm(g, "copy_lhs", *quantized, FLOAT), {**int8_rows, **result}),
        "int8 -> bfloat16": Contestant(
            lambda: gqc.qspmm(g, "copy_lhs", *quantized, BFLOAT), {**int8_rows, **low_result}
        ),
        "bfloat16": Contestant(lambda: gqc.spmm(g, "copy_lhs", low, None), {**low_rows, **low_result}),
        "float32": Contestant(lambda: gqc.spmm(g, "copy_lhs", x, None), {**rows, **result}),
        "int8 -> float32, mean": Contestant(
            lambda: gqc.qspmm(g, "copy_lhs", *quantized, FLOAT, degrees, True), {**int8_rows, **result}
        ),
        "float32, mean": Contestant(lambda: gqc.spmm(g, "copy_lhs", x, None, degrees, True), {**rows, **result}),
        f"int8 by int8 weights, {heads} heads": Contestant(
            lambda: gqc.qspmm(g, "mul", q, scale, q_weights, weight_scale, FLOAT),
            {**int8_rows, **by_int8_weights, **result},
        ),
        f"int8 by float32 weights, {heads} heads": Contestant(
            lambda: gqc.qspmm(g, "mul", q, scale, weights, None, FLOAT), {**int8_rows, **by_weights, **result}
        ),
        f"float32 by weights, {heads} heads": Contestant(
            lambda: gqc.spmm(g, "mul", x, weights), {**rows, **by_weights, **result}
        ),
        "int8, max": Contestant(lambda: gqc.qspmm_cmp(g, "max", q, scale, FLOAT), {**int8_rows, **winning}),
        "float32, max": Contestant(lambda: gqc.spmm_cmp(g, "copy_lhs", "max", x, None), {**rows, **winning}),
        "gradient of max": Contestant(
            lambda: gqc.spmm_cmp_bwd_src(g, winners, x), {"copy": 2 * x.nbytes + winners.nbytes}
        ),
    }


def main() -> None:
    parser = graph_parser(__doc__)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4, help="weights of an edge; they divide the width")
    args = parser.parse_args()
    graph = drawn(args)
    group = contestants(graph.g, graph.nodes, args.width, args.heads)
    show(f"SPMM of width {args.width}, {graph.title}", group, args)


if __name__ == "__main__":
    main()
