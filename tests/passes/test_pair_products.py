"""Two products that one program reads: computed together where nobody else reads the second, the same values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from gqc.passes import apply, fuse_products, pair_products, run
from gqc.passes.nodes import by_name
from gqc.passes.report import FUSED, UNFUSED
from gqc.policy import Policy
from tests.passes.models import MODELS, case, ops
from tests.passes.test_fuse_products import SEED, int8, product, program, targets

ADDED = "v0 = add(x1, x0); v1 = mul(v0, x2); v2 = relu(v1); return int8(v2, 3, 8, 1), float32(v0)"


def pair(function, *inputs: Tensor):
    """The graph after the pass, which changes no value, and what it reports."""
    graph = make_fx(function)(SEED, *inputs)
    apply(fuse_products, graph, Policy())
    expected = graph(SEED, *inputs)
    report = apply(pair_products, graph, Policy())
    torch.testing.assert_close(graph(SEED, *inputs), expected, rtol=0, atol=0)
    return graph, report


def operands(k: int = 7) -> list[Tensor]:
    return [torch.randn(20, 5), torch.randn(5, 6), torch.randn(20, k), torch.randn(k, 6), torch.randn(6), torch.rand(6)]


@pytest.mark.parametrize("dtypes", [(torch.float32,) * 2, (torch.bfloat16, torch.float32), (torch.bfloat16,) * 2])
def test_sum_of_products(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    def function(seed, x, v, y, w, bias, factor):
        first, _ = product(seed, x, v, dtype=dtypes[0])
        second, _ = product(seed, y, w, bias, dtype=dtypes[1])
        return program(seed, ADDED, first, second, factor)

    graph, report = pair(function, *operands())
    assert targets(graph) == ["quantize"] * 4 + ["qgemm_pointwise"]
    (decision,) = report.decisions
    assert decision.action == FUSED
    assert "which only its program reads" in decision.reason


def test_quantizes_the_first_operand_and_reads_the_second() -> None:
    def function(seed, x, v, y, w, bias, factor):
        a, scale = int8(seed, x, x.abs().amax())
        first, _ = ops.qgemm.default(a, scale, *int8(seed, v, node=1), False, False, None, torch.float32)
        second, _ = product(seed, y, w, bias)
        return [*program(seed, ADDED, first, second, factor), a]

    graph, _ = pair(function, *operands())
    assert targets(graph)[-1] == "quantize_qgemm_pointwise"
    assert "qgemm" not in targets(graph)
    (fused,) = (n for n in graph.graph.nodes if n.target is ops.quantize_qgemm_pointwise.default)
    assert by_name(fused)["bias2"] is not None


def test_the_product_with_a_bias_is_the_second() -> None:
    def function(seed, x, v, y, w, bias, factor):
        first, _ = product(seed, x, v, bias)
        second, _ = product(seed, y, w)
        return program(seed, ADDED, first, second, factor)

    graph, _ = pair(function, *operands())
    (fused,) = (n for n in graph.graph.nodes if n.target is ops.qgemm_pointwise.default)
    assert by_name(fused)["bias2"] is not None
    assert "biased" not in by_name(fused)["program"]


@pytest.mark.parametrize("case", ["read twice", "its absmax is read", "too long"])
def test_stays_apart(case: str) -> None:
    def function(seed, x, v, y, w, bias, factor):
        first, _ = product(seed, x, v)
        second, absmax = product(seed, y, w)
        others = {"read twice": [second.t()], "its absmax is read": [absmax], "too long": []}
        return [*program(seed, ADDED, first, second, factor), *others[case]]

    graph, report = pair(function, *operands(600 if case == "too long" else 7))
    assert "qgemm" in targets(graph)
    (decision,) = report.decisions
    assert decision.action == UNFUSED
    assert ("over 600 indices" if case == "too long" else "read its result as well") in decision.reason


def test_hidden_layers_of_sage() -> None:
    def ops_of(skip: tuple[str, ...]) -> list[str]:
        joint = case(MODELS["sage"](), input_needs_grad=True).joint
        run(joint, Policy(min_size=0, keep_output_layer=False, skip=skip))
        return targets(joint)

    apart, together = ops_of(("pair_products",)), ops_of(())
    assert apart.count("qgemm") > together.count("qgemm")
    assert len(apart) == len(together) + apart.count("qgemm") - together.count("qgemm")
