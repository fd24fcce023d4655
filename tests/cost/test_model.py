"""Estimates follow from a machine's constants, and decide what is quantized."""

from __future__ import annotations

import pytest
import torch

import gqc
from gqc.cost import BUILT_IN, CostModel, Look, Work
from gqc.passes.report import KEPT
from gqc.policy import Policy
from gqc.runtime import native
from tests.passes.models import HIDDEN, MODELS, WIDTH
from tests.passes.test_keep_full_precision import forward, kept

# Round numbers: a call takes 1 us in float and 5 us in int8, int8 is ten times as fast at products and rows.
PLAIN = CostModel(1, 5, 2, 10, 20, 100, 4, 4, 10, 1, 2, 4, 8)
FOREVER = CostModel(float32_gemm=1e-3, float_rows=1e-3)
NOTHING = CostModel(float32_gemm=1e6, bfloat16_gemm=1e6, float_rows=1e6, float_edge=1e-3, call=1e3)


def test_estimates() -> None:
    product = Work("float32", operations=10**6, torch=True, operands=((1000, 1), (500, 2)))
    assert PLAIN.estimate(product) == pytest.approx((1 + 100, 5 + 10 + (2 + 1) + (2 + 0.5) / 2))
    low = product._replace(dtype="bfloat16")
    assert PLAIN.estimate(low) == pytest.approx((1 + 50, 5 + 10 + (2 + 0.5) + (2 + 0.25) / 2))
    rows = Work("float32", edges=1000, gathered=16_000, operands=((1600, 1),))
    assert PLAIN.estimate(rows) == pytest.approx((5 + 1 + 16, 5 + 2 + 1.6 + 2 + 1.6))


@pytest.mark.parametrize(("precision", "multiplied"), [("int8", 10), ("fp32", 100), ("bf16x3", 150)])
def test_storage_of_int8_results(precision: str, multiplied: float) -> None:
    look = Look(precision, operations=10**6, elements=8000, results=1, instructions=3, read=16_000)
    assert PLAIN.storage(look) == pytest.approx((multiplied + 4 * 2 + 2, 2 + 2 * 2 + 4))
    both = PLAIN.storage(look._replace(results=2))
    assert both == pytest.approx((multiplied + 5 * 2 + 2, 2 * (2 + 2 * 2 + 4)))


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), True, "fast", None])
def test_constants_that_are_none(value: object) -> None:
    with pytest.raises(gqc.PolicyError, match="expected a number of GOP/s > 0"):
        CostModel(int8_gemm=value)


def test_every_instruction_set_has_constants() -> None:
    assert set(native.isas()) <= set(BUILT_IN) == {"amx", "avx512", "avxvnni", "avx2", "portable"}


@pytest.mark.parametrize("name", ["gcn", "gat", "dotgat", "sage", "rgcn", "pyg"])
def test_constants_decide(name: str) -> None:
    everything = kept(MODELS[name](), Policy(min_size=0))
    assert kept(MODELS[name](), Policy(costs=FOREVER)) == everything
    slow = kept(MODELS[name](), Policy(costs=NOTHING))
    assert slow.keys() > everything.keys()
    assert {key: slow[key] for key in everything} == everything
    assert all(slow[key].startswith("int8 would take ") for key in slow.keys() - everything.keys())
    assert kept(MODELS[name](), Policy(min_size=0, costs=NOTHING)) == everything


def test_the_reason_tells_both_times() -> None:
    """Of the first product of a GCN and its sum: 37 nodes, 150 edges; the backward reads what the forward copied."""
    costs = CostModel(call=50, torch_call=2, float32_gemm=1, int8_gemm=1, quantize=1, quantize_call=20)
    reasons = kept(MODELS["gcn"](), Policy(costs=costs))
    work = 2 * 37 * WIDTH * HIDDEN / 1e3
    x, weight = 20 + 4 * 37 * WIDTH / 1e3, 20 + 4 * WIDTH * HIDDEN / 1e3
    names = {key for key in forward(reasons) if key.endswith("conv1")}
    (product,) = (reasons[f"forward {key}"] for key in names if key.startswith("gemm"))
    shares = {f"int8 would take {50 + work + x / a + weight / b:.3g} us" for a in (1, 2) for b in (1, 2)}
    said, full = product.split(", ")
    assert said in shares
    assert full == f"float32 {2 + work:.3g} us"


def test_explain_gives_the_reason() -> None:
    model = gqc.compile(torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Linear(8, 4)), costs=NOTHING)
    model(torch.randn(5, 16))
    (stage,) = gqc.explain(model).variants[0].stages
    assert any(d.reason.startswith("int8 would take 1") for d in stage.decisions(KEPT))
