"""Float matrices in three bytes an element: where only products and sums in full precision read them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import gqc
from gqc.cost import CostModel
from gqc.passes import apply, store_float24
from gqc.passes.report import FUSED, Report
from gqc.policy import Policy
from gqc.runtime.reference.float24 import ERROR
from gqc.runtime.relation import from_edges
from tests.passes.models import ops
from tests.runtime.graph_cases import large_graph

PROGRAM = "v0 = mul(x0, x1); v1 = le(v0, 0.0); return float32(v0), bits(v1), float32(sum(v0, 0))"
ADDED = "v0 = add(x0, x1); return float32(v0)"
SCALED = "v0 = mul(x0, x1); return float32(v0)"
SLOW_MEMORY = CostModel(memory=0.01, float_rows=0.01, torch_call=1e6)
FAST_MEMORY = CostModel(memory=1e6, float_rows=1e6)


@pytest.fixture(autouse=True)
def small_matrices_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["gqc.passes.store_float24"], "FEWEST_ELEMENTS", 1)


def stored(function, *inputs: Tensor, policy: Policy | None = None):
    """The graph after the pass, whose results are near those before, and what it reports."""
    graph = make_fx(function)(*inputs)
    expected = graph(*inputs)
    report = apply(store_float24, graph, policy or Policy(costs=SLOW_MEMORY))
    for got, want in zip(graph(*inputs), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=20 * ERROR * float(want.abs().max()))
    return graph, report


def programs(graph) -> list[str]:
    return [a for n in graph.graph.nodes for a in n.args if isinstance(a, str) and "return" in a]


def narrow(report: Report) -> bool:
    return any(d.action == FUSED and "float24, three bytes an element" in d.reason for d in report.decisions)


def operands(width: int = 40) -> list[Tensor]:
    return [torch.randn(900, width), torch.rand(900, 1), torch.randn(width, 24)]


def test_sums_and_products_read_it() -> None:
    g = large_graph()

    def function(x, factor, w):
        rows, bits, total = ops.pointwise.default([x, factor], None, PROGRAM, None)
        summed = ops.spmm.default(g, "copy_lhs", rows, None)
        with_program = ops.spmm_pointwise.default(g, "copy_lhs", rows, None, [total], None, ADDED, None)
        product = ops.mm.default(rows, w, False, False, None, "bf16x3")
        gradient = ops.mm.default(rows, factor, True, False, None, "bf16x3")
        transposed = ops.mm.default(x, rows, True, False, None, "bf16x3")
        return [summed, *with_program, product, gradient, transposed, bits]

    graph, report = stored(function, *operands())
    assert programs(graph)[0] == PROGRAM.replace("float32(v0)", "float24(v0)")
    (decision,) = report.decisions
    assert narrow(report)
    assert "which only spmm, spmm_pointwise, mm, mm_1, mm_2 read" in decision.reason


def test_a_product_without_a_program_writes_it() -> None:
    g = large_graph()

    def function(x, factor, w):
        product = ops.mm.default(x, w @ w.t(), False, False, None, "bf16x3")
        gradient = ops.mm.default(x, x, True, False, None, "bf16x3")
        return [
            ops.spmm.default(g, "copy_lhs", product, None),
            ops.mm.default(gradient, x, False, True, None, "bf16x3"),
        ]

    graph, report = stored(function, *operands())
    assert programs(graph) == ["return float24(x0)"]
    assert len(report.decisions) == 1
    assert narrow(report)


@pytest.mark.parametrize("place", ["first", "second"])
def test_both_products_of_a_pair_read_it(place: str) -> None:
    def function(x, factor, w):
        (rows,) = ops.pointwise.default([x, factor], None, SCALED, None)
        first, second = (rows, x) if place == "first" else (x, rows)
        return ops.mm_pointwise.default(first, w, False, [], None, ADDED, None, second, w, False, "bf16x3")

    graph, report = stored(function, *operands())
    assert narrow(report)
    assert "float24" in programs(graph)[0]


def other_reader(g: Sequence[Tensor], kind: str, rows: Tensor, x: Tensor, w: Tensor) -> list[Tensor]:
    e = x.new_ones(len(g[6]), 1)
    return {
        "a result": lambda: [rows],
        "another op": lambda: [rows + 1],
        "another program": lambda: ops.pointwise.default([rows, x], None, ADDED, None),
        "a weighted sum": lambda: [ops.spmm.default(g, "mul", rows, e)],
        "float32": lambda: [ops.mm.default(rows, w, False, False, None, "fp32")],
        "the right operand": lambda: [ops.mm.default(w.t(), rows, False, True, None, "bf16x3")],
        "both operands": lambda: [ops.mm.default(rows, rows, True, False, None, "bf16x3")],
        "its own program": lambda: ops.mm_pointwise.default(
            rows, w @ w.t(), False, [rows], None, ADDED, None, None, None, False, "bf16x3"
        ),
        "a size": lambda: [x.new_zeros(rows.view(-1, 2).shape)],
    }[kind]()


@pytest.mark.parametrize(
    "kind",
    [
        *(
            "a result",
            "another op",
            "another program",
            "a weighted sum",
            "float32",
            "the right operand",
            "both operands",
        ),
        *("its own program", "a size"),
    ],
)
def test_stays_where_others_read_it(kind: str) -> None:
    g = large_graph()

    def function(x, factor, w):
        (rows,) = ops.pointwise.default([x, factor], None, SCALED, None)
        return [ops.spmm.default(g, "copy_lhs", rows, None), *other_reader(g, kind, rows, x, w)]

    graph, report = stored(function, *operands())
    assert "float24" not in "".join(programs(graph))
    assert not report.decisions


@pytest.mark.parametrize(
    ("options", "width"),
    [
        ({"float_storage": "fp32"}, 40),
        ({"float_products": "fp32"}, 40),
        ({"bits": 32}, 40),
        ({"costs": FAST_MEMORY}, 40),
        ({}, 15),
        ({}, 513),
    ],
)
def test_stays_where_it_is_not_wanted_or_does_not_pay(options: dict[str, object], width: int) -> None:
    g = large_graph()

    def function(x, factor, w):
        (rows,) = ops.pointwise.default([x, factor], None, SCALED, None)
        return [ops.spmm.default(g, "copy_lhs", rows, None)]

    _, report = stored(function, *operands(width), policy=Policy(**{"costs": SLOW_MEMORY, **options}))  # type: ignore[arg-type]
    assert not report.decisions


def test_small_matrices_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["gqc.passes.store_float24"], "FEWEST_ELEMENTS", 900 * 40 + 1)
    g = large_graph()

    def function(x, factor, w):
        (rows,) = ops.pointwise.default([x, factor], None, SCALED, None)
        return [ops.spmm.default(g, "copy_lhs", rows, None)]

    _, report = stored(function, *operands())
    assert not report.decisions


class TwoLayers(nn.Module):
    """GraphSAGE's shape: products of a hidden layer's rows forward and backward, and sums of rows of 40 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.own, self.around = nn.Linear(24, 32), nn.Linear(32, 40), nn.Linear(32, 40, bias=False)

    def forward(self, g: list[Tensor], x: Tensor) -> Tensor:
        h = self.first(x).relu()
        return self.own(h) + torch.ops.gqc.spmm(g, "copy_lhs", self.around(h) * 0.5, None)


def graph_and_features(nodes: int = 3000) -> tuple[list[Tensor], Tensor]:
    return from_edges(*torch.randint(0, nodes, (2, 20000)), nodes, nodes), torch.randn(nodes, 24)


def test_a_model_trains_with_the_same_gradients() -> None:
    (g, x), net = graph_and_features(), TwoLayers()

    def gradients(**options: object) -> tuple[str, list[Tensor]]:
        net.zero_grad()
        model = gqc.compile(net, bits=8, rounding="nearest", min_size=0, costs=SLOW_MEMORY, **options)
        model(g, x).square().mean().backward()
        return str(gqc.explain(model)), [p.grad.clone() for p in net.parameters()]

    told, narrow_gradients = gradients()
    told_floats, float_gradients = gradients(skip=("store_float24",))
    assert told.count("in float24") >= 1
    assert "in float24" not in told_floats
    for got, want in zip(narrow_gradients, float_gradients, strict=True):
        assert torch.dist(got, want) <= 1e-3 * want.norm()


def test_what_is_saved_says_so() -> None:
    g, x = graph_and_features(3000)
    model = gqc.compile(TwoLayers(), min_size=0, costs=SLOW_MEMORY)
    (entry,) = (entry for entry in gqc.memory_report(model, g, x).entries if entry.how == "float24")
    assert (entry.shape, entry.dtype) == ((3000, 32), "float32")
    assert (entry.before, entry.after) == (3000 * 32 * 4, 3000 * 32 * 3)
