"""Products in full precision that gqc's kernel computes: which, and that nothing but the order of sums changes."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

import gqc
from gqc.cost import CostModel
from gqc.passes import apply, multiply_floats, partition, run
from gqc.passes.multiply_floats import FEWEST_ROWS, MOST_SUMS, MOST_WEIGHTS, refusal
from gqc.passes.nodes import by_name
from gqc.passes.report import FUSED, REPLACED, UNFUSED
from gqc.policy import Policy
from gqc.runtime import native
from tests.passes.models import CLASSES, MODELS, case, graph_and_features, ops
from tests.passes.test_fuse_products import targets

ROWS = FEWEST_ROWS


@pytest.fixture(autouse=True)
def vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass leaves products to torch where gqc has portable code only; what it does else holds for that code too."""
    pretended = SimpleNamespace(isa=lambda: "avx2", multiplies_bf16x3=native.multiplies_bf16x3)
    if native.isa() == "portable":
        monkeypatch.setattr(sys.modules[refusal.__module__], "native", pretended)


SLOW_TORCH = CostModel(torch_call=1e6)


def rewritten(function, *inputs: Tensor, costs: CostModel = SLOW_TORCH):
    """The graph after the pass, whose results are close to those before, and the report."""
    graph = make_fx(function)(*inputs)
    expected = graph(*inputs)
    report = apply(multiply_floats, graph, Policy(costs=costs))
    for got, want in zip(tree_leaves(graph(*inputs)), tree_leaves(expected), strict=True):
        assert torch.dist(got, want) <= 3e-5 * want.norm()
    return graph, report


def test_a_layer_and_its_gradients():
    x, w, bias, grad, norm = (torch.randn(*s) for s in ((ROWS, 9), (5, 9), (5,), (ROWS, 5), (ROWS, 1)))

    def function(x, w, bias, grad, norm):
        out = torch.ops.aten.addmm.default(bias, x, w.t())
        return out, grad @ w, x.t() @ (grad * norm), grad.t() @ x

    graph, report = rewritten(function, x, w, bias, grad, norm)
    assert "mm" in targets(graph)
    assert not {n.target for n in graph.graph.nodes} & {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
    products = [by_name(n) for n in graph.graph.nodes if n.target is ops.mm.default]
    assert [(p["trans_a"], p["trans_b"], p["rows"] is not None) for p in products] == [
        (False, True, False),
        (False, False, False),
        (True, False, True),
        (True, False, False),
    ]
    assert [d.action for d in report.decisions] == [REPLACED] * 4
    assert "multiplies rows by norm" in next(d.reason for d in report.decisions if "rows by" in d.reason)


def test_scaled_rows_that_others_read_too_stay_a_tensor():
    x, grad, norm = torch.randn(ROWS, 9), torch.randn(ROWS, 5), torch.randn(ROWS, 1)

    def function(x, grad, norm):
        scaled = grad * norm
        return x.t() @ scaled, scaled.sum(0)

    graph, _ = rewritten(function, x, grad, norm)
    (product,) = (n for n in graph.graph.nodes if n.target is ops.mm.default)
    assert by_name(product)["rows"] is None


@pytest.mark.parametrize(
    ("a", "b", "dtype", "why"),
    [
        ((ROWS - 1, 4), (4, 3), torch.float32, "rows are few"),
        ((ROWS, 4), (4, 3), torch.float64, "it is float64"),
        ((ROWS, 4), (4, 3), torch.bfloat16, "it is bfloat16"),
        ((ROWS, 320), (320, 320), torch.float32, f"weights are more than {MOST_WEIGHTS}"),
        ((MOST_SUMS, ROWS), (ROWS, 2), torch.float32, "sums are more than"),
    ],
)
def test_what_stays_torchs(a, b, dtype, why):
    x, y = torch.randn(a, dtype=dtype), torch.randn(b, dtype=dtype)
    transposed = "sums" in why
    inputs = (x.t().contiguous() if transposed else x, y)
    graph, report = rewritten(lambda x, y: (x.t() if transposed else x) @ y, *inputs)
    assert "mm.default" in [str(n.target).removeprefix("aten.") for n in graph.graph.nodes]
    (decision,) = report.decisions
    assert decision.action == UNFUSED
    assert why in decision.reason


CORA = 2708


@pytest.mark.parametrize(
    ("rows", "contracted", "columns", "read_by", "gqcs"),
    [
        (CORA, 1433, 16, "relu", True),  # waits for its rows
        (CORA, 1433, 64, None, True),
        (CORA, 64, 64, "relu", True),  # the program spares a call and a pass
        (CORA, 64, 64, None, False),
        (CORA, 16, 7, None, False),
        (CORA, 7, 16, "relu", True),
        (200_000, 64, 64, None, True),  # larger than the caches
    ],
)
def test_the_faster_product_is_taken(rows, contracted, columns, read_by, gqcs):
    """What was measured on graphs of Cora's size in float32: torch's unless a program, or memory, is what counts."""
    with FakeTensorMode():
        x, w = torch.empty(rows, contracted), torch.empty(contracted, columns)
        graph = make_fx(lambda x, w: (x @ w).relu() if read_by else x @ w)(x, w)
        report = apply(multiply_floats, graph, Policy(costs=CostModel(), float_products="fp32"))
    (decision,) = report.decisions
    assert (decision.action == REPLACED) == gqcs
    assert gqcs or " us with what it leaves to others, gqc's " in decision.reason


@pytest.mark.parametrize(("rows", "gqcs"), [(CORA, False), (200_000, True)])
def test_gradients_of_weights_stay_torchs_in_the_caches(rows, gqcs):
    with FakeTensorMode():
        graph = make_fx(lambda x, grad: x.t() @ grad)(torch.empty(rows, 64), torch.empty(rows, 40))
        report = apply(multiply_floats, graph, Policy(costs=CostModel()))
    assert [d.action == REPLACED for d in report.decisions] == [gqcs]


def test_both_transposed_and_scaled_terms_stay_torchs():
    x, y, bias = torch.randn(4, ROWS), torch.randn(3, 4), torch.randn(3)

    def function(x, y, bias):
        return x.t() @ y.t(), torch.addmm(bias, x.t().contiguous(), y.t(), beta=2)

    _, report = rewritten(function, x, y, bias)
    assert [d.reason.partition(": ")[2] for d in report.decisions] == [
        "both operands are transposed",
        "its terms have factors",
    ]


def test_exact_layers_and_policies_stay_in_float32():
    x, w = torch.randn(ROWS, 9), torch.randn(9, 5)

    def precision(**options):
        graph = make_fx(lambda x, w: x @ w)(x, w)
        report = apply(multiply_floats, graph, Policy(costs=SLOW_TORCH, **options))
        (product,) = (n for n in graph.graph.nodes if n.target is ops.mm.default)
        said = report.decisions[0].reason
        assert ("bf16x3" in said) == (by_name(product)["precision"] == "bf16x3")
        return by_name(product)["precision"], said

    chosen, said = precision()
    assert chosen == "bf16x3"
    assert ("error of at most 2^-15" if native.multiplies_bf16x3() else "needs AMX") in said
    assert precision(bits={"other": 32})[0] == "bf16x3"
    for options in ({"bits": 32}, {"float_products": "fp32"}, {"bits": {"*": 32}}):
        assert precision(**options)[0] == "fp32"


@pytest.fixture
def of_any_size(monkeypatch):
    monkeypatch.setattr(sys.modules["gqc.passes.multiply_floats"], "FEWEST_ROWS", 1)


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_models(name, bits, of_any_size):
    """All float products of the output layer run programs where something elementwise reads them."""
    g, x = graph_and_features()
    tangent, results = torch.randn(len(x), CLASSES), []
    for skip in ((), ("multiply_floats",)):
        torch.manual_seed(0)
        prepared = case(MODELS[name]())
        policy = Policy(min_size=0, bits=bits, rounding="nearest", skip=skip, costs=SLOW_TORCH)
        reports = run(prepared.joint, policy)
        found = {n.target for n in prepared.joint.graph.nodes}
        assert (torch.ops.aten.mm.default in found) == bool(skip)
        assert torch.ops.aten.addmm.default not in found or skip
        assert (ops.mm_pointwise.default in found) == (not skip)
        halves = partition(prepared.joint)
        torch.manual_seed(0)
        with torch.no_grad():
            output, *saved = halves.forward(*prepared.primals(g, x))
            results.append([output, *(t for t in halves.backward(*saved, tangent) if t is not None)])
        if not skip:
            fused = [d for r in reports if r.name in ("fuse_products", "pair_products") for d in r.decisions]
            assert any(d.action == FUSED and d.primitive == "gemm" and "_gqc" in d.node for d in fused)
    for a, b in zip(*results, strict=True):
        assert torch.dist(a, b) <= 0.02 * b.norm() + 1e-5


def test_an_error_report_reads_the_programs(of_any_size):
    """What the int8 results of a float product stand for is compared with what they would be without rounding."""
    g, x = graph_and_features()
    compiled = gqc.compile(MODELS["sage"](), min_size=0, rounding="nearest", costs=SLOW_TORCH)
    report = gqc.error_report(compiled, *g, x)
    assert report.nodes
    assert all(math.isfinite(e.relative) for e in report.nodes)
