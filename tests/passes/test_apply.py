"""Passes run alone on plain torch.fx graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from gqc.errors import InputError, PassError
from gqc.passes import (
    PIPELINE,
    apply,
    choose_bits,
    find_primitives,
    keep_full_precision,
    quantize_operands,
    share_quantized,
)
from gqc.passes.report import Report
from gqc.policy import Policy
from tests.passes.models import ops

POLICY = Policy(min_size=0, keep_output_layer=False)
QUANTIZING = (find_primitives, keep_full_precision, choose_bits, quantize_operands)


def int8_product(x: Tensor, w: Tensor) -> Tensor:
    """``x w`` and ``x' x`` as someone quantizes them by hand, ``x`` twice."""
    a, a_scale = ops.quantize.default(x, None, None, 0, 8, False)
    b, b_scale = ops.quantize.default(w, None, None, 1, 8, False)
    c, c_scale = ops.quantize.default(x, None, None, 2, 8, False)
    product = ops.qgemm.default(a, a_scale, b, b_scale, False, False, None, torch.float32)[0]
    gram = ops.qgemm.default(a, a_scale, c, c_scale, True, False, None, torch.float32)[0]
    return torch.ops.aten.mm.default(product, gram)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_share_quantized_on_a_graph_written_by_hand(mode):
    x, w = torch.randn(20, 8), torch.randn(8, 8)
    graph = make_fx(int8_product, tracing_mode=mode)(x, w)
    expected = graph(x, w)
    report = apply(share_quantized, graph)
    assert report.numbers["quantize nodes"] == 2
    assert torch.equal(graph(x, w), expected)


def test_values_come_from_example_inputs():
    graph = fx.symbolic_trace(int8_product)
    with pytest.raises(InputError, match=r"node x has no fake value in meta\['val'\]: give inputs=, one example value"):
        apply(share_quantized, graph)
    x, w = torch.randn(20, 8), torch.randn(8, 8)
    expected = graph(x, w)
    apply(share_quantized, graph, inputs=(x, w))
    assert torch.equal(graph(x, w), expected)
    assert sum(n.target is ops.quantize.default for n in graph.graph.nodes) == 2


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x)))


def test_quantizing_a_forward():
    """Parameters are attributes of the graph; their int8 copies are theirs too."""
    model, x = Network(), torch.randn(40, 16)
    graph = make_fx(model)(x)
    for step in QUANTIZING:
        report = apply(step, graph, POLICY)
    assert report.numbers["quantize nodes"] == 4
    with torch.no_grad():
        expected = model(x)
        assert torch.dist(graph(x), expected) < 0.05 * expected.norm()


def joint_graph(model: nn.Module, x: Tensor) -> fx.GraphModule:
    """Forward and backward as ``make_fx`` records them, with AOTAutograd's names."""

    def step(primals_1, primals_2, primals_3, primals_4, primals_5, tangents_1):
        leaves = [p.detach().requires_grad_() for p in (primals_1, primals_2, primals_3, primals_4)]
        out = F.linear(F.relu(F.linear(primals_5, *leaves[:2])), *leaves[2:])
        return [out, *torch.autograd.grad(out, leaves, tangents_1), None]

    graph = make_fx(step)(*model.parameters(), x, torch.randn(len(x), 4))
    for node, name in zip(graph.graph.nodes, [*(f"primals_{i}" for i in range(1, 6)), "tangents_1"], strict=False):
        node._rename(name)
        node.target = name
    graph.recompile()
    return graph


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_joint_graph(rounding):
    model, x = Network(), torch.randn(400, 16)
    graph = joint_graph(model, x)
    tangent = torch.rand(400, 4) + 0.5  # so that a bias's gradient, a sum over rows, does not cancel
    with torch.no_grad():
        exact = graph(*model.parameters(), x, tangent)
    policy = Policy(min_size=0, rounding=rounding)
    decided = [apply(step.run, graph, policy) for step in PIPELINE]
    assert {d.half for r in decided for d in r.decisions if d.action == "quantized"} == {"forward", "backward"}
    seed = [torch.tensor([1, 2])] if rounding == "stochastic" else []
    with torch.no_grad():
        results = graph(*model.parameters(), x, *seed, tangent)
    for expected, actual in zip(exact[:5], results[:5], strict=True):
        # INT8 flips about 1% of ReLU's masks, and independent terms of a sum over rows with them: √1% of it.
        assert torch.dist(expected, actual) < 0.125 * expected.norm()
    assert results[5] is None


def test_results_that_do_not_match():
    model, x = Network(), torch.randn(40, 16)
    graph = joint_graph(model, x)
    with pytest.raises(InputError, match="6 results and 5 placeholders that are no tangents: give"):
        apply(find_primitives, graph, num_forward_outputs=2)


def test_a_required_pass_has_not_run():
    graph = make_fx(Network())(torch.randn(40, 16))
    with pytest.raises(PassError, match="quantize_operands requires find_primitives: apply that to the graph first"):
        apply(quantize_operands, graph)


def test_an_int8_parameter_must_not_leave_the_step():
    def leak(w: Tensor) -> Tensor:
        return ops.quantize.default(w, None, None, 0, 8, False)[0]

    graph = make_fx(leak)(torch.randn(8, 8))
    apply(share_quantized, graph)
    (name,) = [n.name for n in graph.graph.find_nodes(op="placeholder")]
    with pytest.raises(PassError, match=f"int8 copy of parameter {name} would outlive the step"):
        apply(share_quantized, graph, parameters=[name])
    with pytest.raises(InputError, match=f"'w', which is no placeholder of the graph; known: {name}"):
        apply(share_quantized, graph, parameters=["w"])


@pytest.mark.parametrize(("model", "kind"), [(Network(), "call_module"), (nn.ReLU(), "call_function")])
def test_graphs_of_torch_calls_are_refused(model, kind):
    with pytest.raises(InputError, match=rf"is a {kind} of .*: passes read aten and gqc ops; record the module with"):
        apply(find_primitives, fx.symbolic_trace(model))


def test_a_graph_that_reads_what_it_has_updated_is_refused():
    def product(x, w):
        before = x @ w
        x[0].zero_()
        return before, x @ w

    graph = make_fx(product)(torch.randn(20, 8), torch.randn(8, 8))
    with pytest.raises(InputError, match=r"node mm_1 reads x_1 after zero_ has updated it in place, and pass simplify"):
        apply(PIPELINE[0].run, graph)
    functional = make_fx(torch.func.functionalize(product))(torch.randn(20, 8), torch.randn(8, 8))
    apply(PIPELINE[0].run, functional)


def test_a_pass_of_the_users_own():
    def count(joint, policy):
        return Report("count", numbers={"nodes": len(joint.graph.nodes), "forward": joint.num_forward_outputs})

    graph = make_fx(Network())(torch.randn(40, 16))
    assert apply(count, graph).numbers == {"nodes": len(graph.graph.nodes), "forward": 1}
