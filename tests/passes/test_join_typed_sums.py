"""The gather, product by type and sum of a relational layer become one primitive, in both halves, quantized or not."""

from __future__ import annotations

import copy

import dgl
import dgl.nn as dglnn
import pytest
import torch
from torch import Tensor, nn

import gqc
from gqc.passes.primitive import ops

RELATIONS, WIDTH, HIDDEN, CLASSES = 3, 12, 16, 5


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = dglnn.RelGraphConv(WIDTH, HIDDEN, RELATIONS)
        self.conv2 = dglnn.RelGraphConv(HIDDEN, CLASSES, RELATIONS)

    def forward(self, graph: dgl.DGLGraph, x: Tensor, types: Tensor) -> Tensor:
        return self.conv2(graph, self.conv1(graph, x, types).relu(), types)


class Normalized(Layers):
    def forward(self, graph: dgl.DGLGraph, x: Tensor, types: Tensor) -> Tensor:
        norm = graph.in_degrees().float().reciprocal()[graph.edges()[1]].unsqueeze(1)
        return self.conv2(graph, self.conv1(graph, x, types, norm).relu(), types, norm)


class MessagesAreReturned(nn.Module):
    """What reads the messages themselves needs them in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = dglnn.TypedLinear(WIDTH, CLASSES, RELATIONS)

    def forward(self, graph: dgl.DGLGraph, x: Tensor, types: Tensor) -> tuple[Tensor, Tensor]:
        with graph.local_scope():
            graph.srcdata["h"] = x
            graph.apply_edges(lambda edges: {"m": self.linear(edges.src["h"], types)})
            graph.update_all(dgl.function.copy_e("m", "m"), dgl.function.sum("m", "out"))
            return graph.dstdata["out"], graph.edata["m"]


@pytest.fixture(scope="module")
def inputs() -> tuple[dgl.DGLGraph, Tensor, Tensor]:
    torch.manual_seed(3)
    graph = dgl.rand_graph(80, 600)
    return graph, torch.randn(80, WIDTH), torch.randint(RELATIONS, (600,))


@pytest.fixture(scope="module")
def positive() -> tuple[dgl.DGLGraph, Tensor, Tensor]:
    """Features of one sign: the gradients of weights, sums over rows, do not cancel to the size of INT8's errors."""
    torch.manual_seed(3)
    return dgl.rand_graph(400, 3000), torch.rand(400, WIDTH), torch.randint(RELATIONS, (3000,))


def step(model: nn.Module, inputs: tuple[dgl.DGLGraph, Tensor, Tensor]) -> list[Tensor]:
    out = model(*inputs)
    loss = sum(part.square().mean() for part in (out if isinstance(out, tuple) else (out,)))
    model.zero_grad()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def targets(compiled: nn.Module) -> list[object]:
    (variants,) = gqc.state_of(compiled).variants.values()
    joints = [step.joint for step in variants[0].steps if hasattr(step, "joint")]
    return [node.target for joint in joints for node in joint.graph.nodes]


@pytest.mark.parametrize("layers", [Layers, Normalized])
def test_full_precision_equals_dgl(inputs, layers) -> None:
    model = layers()
    compiled = gqc.compile(copy.deepcopy(model), bits=32)
    torch.testing.assert_close(step(compiled, inputs), step(model, inputs), rtol=1e-4, atol=1e-6)
    found = targets(compiled)
    assert found.count(ops.typed_spmm.default) == 3
    assert found.count(ops.typed_spmm_bwd_b.default) == 2
    assert not {ops.gather_mm.default, ops.gather_mm_bwd_b.default, ops.sddmm.default} & set(found)


def test_int8_is_near_and_the_output_layer_stays_float(positive) -> None:
    model = Layers()
    compiled = gqc.compile(copy.deepcopy(model), min_size=0)
    for got, want in zip(step(compiled, positive), step(model, positive), strict=True):
        assert (got - want).norm() < 0.1 * want.norm()
    found = targets(compiled)
    assert found.count(ops.qtyped_spmm.default) == found.count(ops.qtyped_spmm_bwd_b.default) == 1
    assert found.count(ops.typed_spmm.default) == 2
    assert "in int8" in next(line for line in str(gqc.explain(compiled)).splitlines() if "typed_mm" in line)


def test_weights_of_edges_stay_float_and_so_does_the_gradient_of_the_matrices(positive) -> None:
    model = Normalized()
    compiled = gqc.compile(copy.deepcopy(model), min_size=0)
    for got, want in zip(step(compiled, positive), step(model, positive), strict=True):
        assert (got - want).norm() < 0.1 * want.norm()
    found = targets(compiled)
    assert found.count(ops.qtyped_spmm.default) == 1
    assert found.count(ops.typed_spmm_bwd_b.default) == 2


def test_types_may_change_between_calls(inputs) -> None:
    graph, x, types = inputs
    model = Layers()
    compiled = gqc.compile(copy.deepcopy(model), bits=32)
    for other in (types, types.flip(0)):
        torch.testing.assert_close(
            step(compiled, (graph, x, other)), step(model, (graph, x, other)), rtol=1e-4, atol=1e-5
        )


def test_messages_that_are_read_elsewhere_stay(inputs) -> None:
    model = MessagesAreReturned()
    compiled = gqc.compile(copy.deepcopy(model), min_size=0)
    torch.testing.assert_close(step(compiled, inputs), step(model, inputs))
    assert ops.gather_mm.default in targets(compiled)
