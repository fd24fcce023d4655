"""RGCN's aggregation, a product with the matrix of each edge's type and the sum, as one kernel.

Time, GB/s beside the bare reading of the sources' rows and a copy of the result, and operations a second beside torch's
product of the same number of rows: with as many operations a byte, the products may be the limit and not memory.

python -m benchmarks.primitives_typed --law arxiv --scale 0.3 --width 128 --types 10
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
from gqc.runtime.relation import CSC_INDICES, SRC

gqc = torch.ops.gqc
FLOAT = torch.float32


def contestants(g: list[Tensor], nodes: int, width: int, types: int) -> Group:
    """The sums and the gradient of the matrices; that of the rows is a sum over the reversed relation."""
    x, grad, matrices = torch.randn(nodes, width), torch.randn(nodes, width), torch.randn(types, width, width)
    kinds, seed, sources = torch.randint(types, (len(g[SRC]),)), torch.tensor([1, 2]), g[CSC_INDICES]
    q, q_grad, q_matrices = (gqc.quantize(t, None, seed, 0, 8, True) for t in (x, grad, matrices))
    products = 2 * len(sources) * width * width

    found = copying(x)
    for form, u in (("int8", q[0]), ("float32", x)):
        found |= row_readings(f"{form} by destination", u, sources) | end_readings(form, u, g)
    found["torch, X W of the nodes"] = Contestant(lambda: x @ matrices[0], 2 * x.nbytes, 2 * nodes * width * width)
    found["int8"] = Contestant(
        lambda: gqc.qtyped_spmm(g, *q, *q_matrices, kinds, None, FLOAT),
        {"int8 by destination": bytes_of_rows(q[0], sources), "copy": x.nbytes},
        products,
    )
    found["float32"] = Contestant(
        lambda: gqc.typed_spmm(g, x, matrices, kinds, None),
        {"float32 by destination": bytes_of_rows(x, sources), "copy": x.nbytes},
        products,
    )
    found["int8, of the matrices"] = Contestant(
        lambda: gqc.qtyped_spmm_bwd_b(g, *q, *q_grad, kinds, types, FLOAT), bytes_of_ends("int8", q[0], g), products
    )
    found["float32, of the matrices"] = Contestant(
        lambda: gqc.typed_spmm_bwd_b(g, x, grad, kinds, types, None), bytes_of_ends("float32", x, g), products
    )
    return found


def main() -> None:
    parser = graph_parser(__doc__)
    parser.add_argument("--width", type=int, default=128, help="rows and columns of the matrices")
    parser.add_argument("--types", type=int, default=10, help="of edges")
    args = parser.parse_args()
    graph = drawn(args)
    group = contestants(graph.g, graph.nodes, args.width, args.types)
    title = f"sums of typed products, width {args.width}, {args.types} types, {graph.title}"
    show(title, group, args)


if __name__ == "__main__":
    main()
