"""Products that run what reads them: the same values, nothing written that nobody reads, and where they stay apart."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from gqc.cost import CostModel
from gqc.passes import apply, fuse_products, partition, run
from gqc.passes.int8_copies import is_copy, lifetimes
from gqc.passes.nodes import by_name
from gqc.passes.report import FUSED, UNFUSED
from gqc.policy import Policy
from tests.passes.models import MODELS, case, graph_and_features, ops, relation

SEED = torch.tensor([11, 3])
SLOW = CostModel(int8_gemm=1e-6, float32_gemm=1e-6, bfloat16_gemm=1e-6)


def fuse(function, *inputs: Tensor, exact: bool = True, **options):
    """The graph of a function of a seed and inputs after the pass, which changes no value, and the report."""
    inputs = (SEED, *inputs)
    graph = make_fx(function)(*inputs)
    expected = graph(*inputs)
    report = apply(fuse_products, graph, Policy(**options))
    given = graph(*inputs)
    if exact:
        torch.testing.assert_close(given, expected, rtol=0, atol=0, equal_nan=True)
    return graph, report, given, expected


def assert_same(a, b) -> None:
    torch.testing.assert_close(tuple(a), tuple(b), rtol=0, atol=0)


def targets(graph) -> list[str]:
    calls = [n for n in graph.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]
    return [n.target.__name__.removesuffix(".default") for n in calls if n.target.__name__ != "lift_fresh_copy.default"]


def int8(seed: Tensor, x: Tensor, absmax: Tensor | None = None, node: int = 0) -> tuple[Tensor, Tensor]:
    return ops.quantize.default(x, absmax, seed, node, 8, True)


def product(
    seed: Tensor, x: Tensor, w: Tensor, bias: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    return ops.qgemm.default(*int8(seed, x), *int8(seed, w, node=1), False, False, bias, dtype)


def program(seed: Tensor | None, text: str, *inputs: Tensor) -> list[Tensor]:
    return ops.pointwise.default(list(inputs), seed, text)


def sums(seed: Tensor, g: list[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    return ops.qspmm.default(g, "copy_lhs", *int8(seed, x), None, None, torch.float32)


def copy_of_product(seed: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    out, absmax = product(seed, x, w)
    return int8(seed, out, absmax, 5)


def x_and_w(rows: int = 30, k: int = 12, n: int = 24) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, k), torch.randn(k, n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_program_runs_in_the_product(dtype, with_bias):
    x, w = x_and_w()
    rows, bias = torch.rand(30, 1), torch.randn(24, dtype=dtype)

    def function(seed, x, w, rows, bias):
        out = product(seed, x, w, bias if with_bias else None, dtype)[0]
        return program(seed, "v0 = mul(x0, x1); v1 = relu(v0); return int8(v1, 4, 8, 1), float32(v1)", rows, out)

    graph, report, *_ = fuse(function, x, w, rows, bias)
    assert targets(graph)[-1] == "qgemm_pointwise"
    assert "qgemm" not in targets(graph)
    assert "pointwise" not in targets(graph)
    (decision,) = report.decisions
    assert decision.action == FUSED
    assert "mul, relu while its result is in the cache" in decision.reason.replace(
        " and writes int8 from a second product", ""
    )


def test_heads_are_a_view_of_the_product_and_others_still_read_it():
    x, w = x_and_w()
    weights, bias = torch.randn(1, 3, 8), torch.randn(24)

    def function(seed, x, w, weights, bias):
        out, absmax = product(seed, x, w, bias)
        logits = program(seed, "v0 = mul(x0, x1); return float32(sum(v0, -1))", out.view(30, 3, 8), weights)[0]
        return logits, *int8(seed, out, absmax, 7), out + 1, absmax * 2

    graph, *_ = fuse(function, x, w, weights, bias)
    assert "qgemm" not in targets(graph)
    assert targets(graph).count("quantize") == 2  # of the operands


def test_the_only_copy_of_a_product_is_written_by_it():
    x, w = x_and_w()
    graph, report, *_ = fuse(copy_of_product, x, w)
    assert targets(graph) == ["quantize", "quantize", "qgemm_pointwise"]
    assert "writes int8 from a second product" in report.decisions[0].reason
    (copy,) = [n for n in graph.graph.nodes if is_copy(n) and n.args[0].target is ops.qgemm_pointwise.default]
    assert copy.meta["val"].dtype is torch.int8


def test_a_long_contraction_is_not_repeated():
    x, w = torch.randn(16, 600), torch.randn(600, 8)
    graph, report, *_ = fuse(copy_of_product, x, w)
    assert targets(graph).count("quantize") == 3
    assert [(d.action, d.reason) for d in report.decisions] == [
        (UNFUSED, "a second product over 600 indices would take longer than writing floats")
    ]


@pytest.mark.parametrize("k", [12, 600])
def test_a_product_that_takes_long_stores_bfloat16(k):
    x, w = x_and_w(k=k)
    graph, report, (values, scale), _ = fuse(copy_of_product, x, w, exact=False, costs=SLOW)
    assert targets(graph) == ["quantize", "quantize", "qgemm_pointwise", "quantize"]
    assert "stores in bfloat16 what only a quantize reads, which takes" in report.decisions[0].reason
    narrow = product(SEED, x, w)[0].bfloat16()
    assert_same((values, scale), int8(SEED, narrow, ops.absmax(narrow), 5))
    exact, *_ = fuse(copy_of_product, x, w, costs=SLOW, float_storage="fp32")
    assert targets(exact).count("quantize") == (2 if k == 12 else 3)


def test_only_what_is_quantized_is_stored_in_bfloat16():
    x, w = x_and_w()
    outputs = "float32(v0), int8(v1, 7, 8, 1), float32(sum(v1, 0)), float32(sum(v1, -1))"
    text = f"v0 = mul(x0, x1); v1 = relu(v0); return {outputs}"

    def function(seed, x, w, rows):
        heads = product(seed, x, w)[0].view(30, 3, 8)
        return program(seed, text, heads, rows)

    rows = torch.rand(30, 1, 1)
    graph, _, given, expected = fuse(function, x, w, rows, exact=False, costs=SLOW)
    assert targets(graph) == ["quantize", "quantize", "qgemm_pointwise", "quantize"]
    value = torch.relu(product(SEED, x, w)[0].view(30, 3, 8) * rows)
    assert torch.equal(given[0], expected[0])
    assert torch.equal(given[4], expected[4])
    torch.testing.assert_close(given[3], expected[3], rtol=1e-5, atol=1e-6)  # of numbers that are not negative
    narrow = value.bfloat16()
    assert_same(given[1:3], int8(SEED, narrow, ops.absmax(narrow), 7))


def test_a_program_that_waits_for_another_reader_stays_apart():
    x, w = x_and_w()
    g = relation(30, 30, 90)

    def function(seed, x, w):
        out = product(seed, x, w)[0]
        total = ops.spmm(g, "copy_lhs", out, None)
        return program(seed, "v0 = add(x0, x1); return float32(v0)", out, total)

    graph, *_ = fuse(function, x, w)
    assert targets(graph)[-2:] == ["qgemm", "spmm_pointwise"]


def test_an_update_in_between_keeps_them_apart():
    x, w = x_and_w()
    buffer = torch.zeros(30, 1)

    def function(seed, x, w, buffer):
        out = product(seed, x, w)[0]
        buffer.add_(1)
        return program(seed, "v0 = mul(x0, x1); return float32(v0)", out, torch.ones(30, 1))

    graph = make_fx(function)(SEED, x, w, buffer.clone())
    report = apply(fuse_products, graph, Policy())
    assert "qgemm" in targets(graph)
    assert "updates a tensor in place" in report.decisions[0].reason


def test_sums_that_one_quantize_reads_are_stored_in_bfloat16():
    g, x = graph_and_features()
    graph, report, (values, _), (expected, _) = fuse(
        lambda seed, x: int8(seed, *sums(seed, g, x), 5),
        x,
        exact=False,
    )
    (narrow,) = graph.graph.find_nodes(op="call_function", target=ops.qspmm.default)
    assert by_name(narrow)["dtype"] is torch.bfloat16
    assert "in bfloat16" in report.decisions[0].reason
    assert (values.int() - expected.int()).abs().max() <= 1


def test_sums_stay_in_float32():
    """Where the user asks for it, and then no bit changes."""
    g, x = graph_and_features()
    rows = torch.rand(len(x), 1)

    def function(seed, x, rows):
        scaled = program(seed, "v0 = mul(x0, x1); return int8(v0, 3, 8, 1)", sums(seed, g, x)[0], rows)
        return [*scaled, *int8(seed, *sums(seed, g, x), 5)]

    graph, report, *_ = fuse(function, x, rows, float_storage="fp32")
    assert {"qspmm", "qspmm_pointwise"} <= set(targets(graph))
    assert "stores in float32 what only a quantize reads" in report.decisions[0].reason


def test_sums_of_a_program_are_gathered_once():
    g, x = graph_and_features()
    rows = torch.rand(40, 1)

    def function(seed, x, rows):
        out = sums(seed, g, x)[0]
        return program(seed, "v0 = mul(x0, x1); v1 = le(v0, 0.0); return int8(v0, 4, 8, 1), bits(v1)", out, rows)

    graph, _, given, expected = fuse(function, x, rows, exact=False)
    assert targets(graph) == ["quantize", "qspmm_pointwise", "quantize"]
    assert (given[0].int() - expected[0].int()).abs().max() <= 1
    torch.testing.assert_close(given[2], expected[2])


def test_the_left_operand_is_rounded_while_it_is_read():
    x, w = x_and_w()

    def function(seed, x, w):
        copy = int8(seed, x, x.abs().amax(), 3)
        weights = int8(seed, w, node=1)
        out = ops.qgemm.default(*copy, *weights, False, False, None, torch.float32)
        (half,) = program(seed, "v0 = mul(x0, 0.5); return float32(v0)", out[0])
        gradient = ops.qgemm.default(*copy, *copy, True, False, None, torch.float32)[0]
        return half, gradient

    graph, report, *_ = fuse(function, x, w)
    assert "quantize_qgemm_pointwise" in targets(graph)
    assert targets(graph).count("quantize") == 1
    assert any("stores the int8 copy" in d.reason for d in report.decisions)


def outcome(name: str, dtype: torch.dtype, skip: tuple[str, ...], **options) -> tuple[list[Tensor], set, int]:
    torch.manual_seed(0)
    prepared = case(MODELS[name]().to(dtype), dtype, input_needs_grad=True)
    run(prepared.joint, Policy(min_size=0, keep_output_layer=False, rounding="nearest", skip=skip, **options))
    halves = partition(prepared.joint)
    g, x = graph_and_features()
    with torch.no_grad():
        forward = halves.forward(*prepared.primals(g, x.to(dtype)))
        outputs = list(forward[: len(forward) - len(halves.saved)])
        torch.manual_seed(1)
        gradients = halves.backward(*forward[len(outputs) :], *prepared.tangents(outputs))
    found = {n.target for n in prepared.joint.graph.nodes}
    copies = len(lifetimes(prepared.joint))
    return [*outputs, *(t for t in gradients if t is not None)], found, copies


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["gcn", "gat", "sage", "mlp"])
def test_models_give_the_same_values(name, dtype):
    fused, found, copies = outcome(name, dtype, ())
    apart, without, copies_apart = outcome(name, dtype, ("fuse_products",))
    assert found & {ops.qgemm_pointwise.default, ops.quantize_qgemm_pointwise.default}
    assert not without & {ops.qgemm_pointwise.default, ops.quantize_qgemm_pointwise.default}
    assert copies == copies_apart
    # A sum in bfloat16 may be rounded to the integer beside, which differs from float32 as much as the int8 of both do.
    distance = 1e-5 if name == "mlp" and dtype is torch.float32 else 0.1
    for a, b in zip(fused, apart, strict=True):
        assert torch.dist(a.float(), b.float()) <= distance * b.float().norm() + 1e-5


@pytest.mark.parametrize("name", ["gcn", "gat", "sage"])
def test_models_in_both_storages(name):
    apart, *_ = outcome(name, torch.float32, ("fuse_products",))
    for storage, distance in (("bf16", 0.1), ("fp32", 1e-5)):
        fused, *_ = outcome(name, torch.float32, (), costs=SLOW, float_storage=storage)
        for a, b in zip(fused, apart, strict=True):
            assert torch.dist(a, b) <= distance * b.norm() + 1e-5
