"""The edge phases of attention as one kernel forward and one backward, beside the bare reading of the same rows.

A forward reads, for each edge, a row of the source's features, and its logits or its key. A backward goes over the
edges twice: by destination as the forward, and by source, where it reads the gradient's row and the statistics of the
softmax of the destination, and its query. Results are compared with a copy.

python -m benchmarks.primitives_attention --law arxiv --shapes 4x32 1x40
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.ceilings import Contestant, Group, bytes_of_rows, copying, row_readings, show
from benchmarks.graph_options import drawn, graph_parser
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.ops.gat import STATISTICS
from gqc.runtime.relation import CSC_INDICES, CSR_INDICES

gqc = torch.ops.gqc
FLOAT = torch.float32
SLOPE = 0.2
DROPOUTS = 0.0, 0.2

Quantized = tuple[Tensor, Tensor | None]


def contestants(g: list[Tensor], nodes: int, heads: int, width: int) -> Group:
    """GAT's phase with and without attention dropout, then logits of dot products and those of GATv2 without it."""
    x, grad = torch.randn(nodes, heads, width), torch.randn(nodes, heads, width)
    logits, statistics = torch.randn(nodes, heads), torch.randn(nodes, STATISTICS, heads)
    seed, sources, destinations = torch.tensor([1, 2]), g[CSC_INDICES], g[CSR_INDICES]
    tables: dict[str, tuple[Quantized, Quantized]] = {
        "int8": tuple(gqc.quantize(t, None, seed, 0, 8, True) for t in (x, grad)),  # type: ignore[dict-item]
        "float32": ((x, None), (grad, None)),
    }
    found = copying(x)
    for form, ((u, _), (d, _)) in tables.items():
        found |= row_readings(f"{form} by destination", u, sources) | row_readings(f"{form} by source", d, destinations)
    found |= row_readings("logits by destination", logits, sources)
    found |= row_readings("statistics by source", statistics, destinations)
    forward_logits = {"logits by destination": bytes_of_rows(logits, sources)}
    by_source = {"statistics by source": bytes_of_rows(statistics, destinations)}
    for form, (u, d) in tables.items():
        once = {f"{form} by destination": bytes_of_rows(u[0], sources)}
        twice = {**once, f"{form} by source": bytes_of_rows(d[0], destinations), **by_source}
        for p in DROPOUTS:
            forward, backward = _gat(g, logits, u, d, p, seed)
            name = f"GAT, {form}" + (f", dropout {p}" if p else "")
            found[name] = Contestant(forward, {**once, **forward_logits, "copy": x.nbytes})
            found[f"{name}, backward"] = Contestant(backward, {**twice, **forward_logits, "copy": x.nbytes})
        for kind, forward, backward in _attend(g, x, grad, u, d):
            keys = {"float32 by destination": bytes_of_rows(x, sources)}
            queries = {"float32 by source": bytes_of_rows(x, destinations)}
            found[f"{kind}, {form}"] = Contestant(forward, _added(once, keys, {"copy": x.nbytes}))
            found[f"{kind}, {form}, backward"] = Contestant(
                backward, _added(twice, keys, queries, {"copy": 3 * x.nbytes})
            )
    return found


def _added(*parts: dict[str, int]) -> dict[str, int]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0) for part in parts) for name in names}


def _gat(
    g: list[Tensor], logits: Tensor, u: Quantized, grad: Quantized, p: float, seed: Tensor
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Forward and backward of GAT's edge phase."""
    rest = SLOPE, p, seed, 1, FLOAT
    _, _, largest, total = gqc.gat(g, logits, logits, *u, *rest)
    return (
        lambda: gqc.gat(g, logits, logits, *u, *rest),
        lambda: gqc.gat_bwd(g, logits, logits, largest, total, *u, *grad, *rest),
    )


def _attend(
    g: list[Tensor], keys: Tensor, queries: Tensor, u: Quantized, grad: Quantized
) -> Iterator[tuple[str, Callable[[], object], Callable[[], object]]]:
    """Name, forward and backward for each kind of logits; keys and queries are float32."""
    heads, width = keys.shape[1:]
    for kind, vector, factor in (
        ("dot products", None, width**-0.5),
        ("GATv2", torch.randn(heads, width), SLOPE),
    ):
        ends, rest = (g, keys, queries, vector, factor), (0.0, None, 0, FLOAT)
        statistics = gqc.attend(*ends, *u, *rest)[2:]
        yield (
            kind,
            lambda ends=ends, rest=rest: gqc.attend(*ends, *u, *rest),
            lambda ends=ends, rest=rest, s=statistics: gqc.attend_bwd(*ends, *s, *u, *grad, *rest),
        )


def main() -> None:
    parser = graph_parser(__doc__, rounds=7)
    parser.add_argument("--shapes", nargs="+", default=["4x32", "1x40"], help="heads x width of a head")
    args = parser.parse_args()
    graph = drawn(args)
    for shape in args.shapes:
        heads, width = map(int, shape.split("x"))
        group = contestants(graph.g, graph.nodes, heads, width)
        show(f"attention, {heads} heads of {width}, {graph.title}", group, args)


if __name__ == "__main__":
    main()
