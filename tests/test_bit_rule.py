"""``bits="auto"``: Tango's rule on the first GNN layer's output."""

from __future__ import annotations

import math

import dgl
import dgl.nn as dglnn
import pytest
import torch
import torch_geometric.nn as pygnn
from torch import Tensor, nn
from torch.nn import functional as F

import gqc
from gqc.passes.choose_bits import BitRule, error_x
from gqc.runtime.reference import quantize


def by_hand(x: Tensor, bits: int) -> float:
    q, scale = quantize.quantize(x, None, None, 0, bits, False)
    terms = []
    for value, level in zip(x.flatten().tolist(), q.flatten().tolist(), strict=True):
        rounded = level * scale.item()
        terms.append(abs(value - rounded) / (abs(value + rounded) + 0.0005))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("bits", range(2, 9))
def test_error_x_is_equation_4(bits: int) -> None:
    x = torch.randn(30, 7)
    assert error_x(x, bits) == pytest.approx(by_hand(x, bits), rel=1e-4)


def test_error_x_of_hard_values() -> None:
    assert error_x(torch.zeros(5), 2) == 0
    assert error_x(torch.tensor([1.0, -1.0]), 2) == 0
    assert math.isnan(error_x(torch.tensor([1.0, math.nan]), 8))
    assert math.isnan(error_x(torch.zeros(0, 3), 8))


@pytest.mark.parametrize(("values", "bits"), [([1.0, -1.0], 2), ([3.0, 1.0, 2.0], 3), ([7.0, 1.0, 1.0, -1.0], 4)])
def test_the_smallest_width_that_is_enough_is_chosen(values: list[float], bits: int) -> None:
    rule = BitRule.of(torch.tensor(values * 3), "x")
    assert rule.bits == bits
    assert all(rule.errors[b] > 0.3 for b in range(2, bits))
    assert rule.errors[bits] <= 0.3


def test_where_no_width_is_enough_there_are_8_bits() -> None:
    rule = BitRule.of(torch.cat([torch.ones(1), torch.full((99,), 1e-3)]), "x")
    assert rule.bits == 8
    assert "which no width keeps to 0.3" in str(rule)


class GCN(nn.Module):
    """Batch norm and dropout before the first layer: buffers and random numbers that measuring must not touch."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(12)
        self.dropout = dropout
        self.conv1 = dglnn.GraphConv(12, 16, activation=F.relu)
        self.conv2 = dglnn.GraphConv(16, 4)

    def forward(self, g: dgl.DGLGraph, x: Tensor) -> Tensor:
        return self.conv2(g, self.conv1(g, F.dropout(self.norm(x), self.dropout, self.training)))


def graph(nodes: int = 30) -> tuple[dgl.DGLGraph, Tensor]:
    ends = torch.randint(nodes, (2, 5 * nodes))
    return dgl.add_self_loop(dgl.graph((ends[0], ends[1]), num_nodes=nodes)), torch.randn(nodes, 12)


def rules(model: nn.Module) -> list[BitRule]:
    return [variant.bit_rule for variant in gqc.explain(model).variants]


def test_the_first_layer_of_a_training_call_is_measured(capsys) -> None:
    model, (g, x) = GCN(), graph()
    compiled = gqc.compile(model, bits="auto", min_size=0)
    with torch.no_grad():
        want = model.conv1(g, F.batch_norm(x, None, None, model.norm.weight, model.norm.bias, training=True))
    before, updates = model.norm.running_mean.clone(), model.norm.num_batches_tracked.item()
    compiled(g, x).sum().backward()
    (rule,) = rules(compiled)
    assert rule.reason == "Error_X of the output of conv1"
    assert rule.errors == pytest.approx({bits: error_x(want, bits) for bits in range(2, 9)}, rel=1e-3)
    torch.testing.assert_close(model.norm.running_mean, before * 0.9 + x.mean(0) * 0.1)  # one update, not two
    assert model.norm.num_batches_tracked == updates + 1
    printed = capsys.readouterr().out
    assert f"{rule.bits} bits: Error_X of the output of conv1, 2 bits {rule.errors[2]:.3f}, 3 bits" in printed
    (stage,) = gqc.explain(compiled).variants[0].stages
    assert {d.reason.rsplit(" ", 1)[1] for d in stage.decisions("quantized")} == {f"int{rule.bits}"}


def test_measuring_draws_no_random_numbers() -> None:
    (g, x), options = graph(), {"min_size": 0, "rounding": "nearest"}
    model = GCN(0.5)
    model.norm = nn.Identity()
    auto = gqc.compile(model, bits="auto", **options)
    torch.manual_seed(0)
    first = auto(g, x)
    fixed = gqc.compile(model, bits=rules(auto)[0].bits, **options)
    torch.manual_seed(0)
    assert torch.equal(fixed(g, x), first)


def test_a_variant_measures_once_and_evaluation_takes_what_training_decided() -> None:
    model = gqc.compile(GCN(), bits="auto", min_size=0)
    for nodes in (30, 50):
        model(*graph(nodes)).sum().backward()
    model.eval()
    with torch.no_grad():
        model(*graph())
    training, evaluation = rules(model)
    assert evaluation.bits == training.bits
    assert evaluation.reason == "as in training, by Error_X of the output of conv1"


def test_evaluation_measures_itself_where_nothing_was_trained() -> None:
    model = gqc.compile(GCN().eval(), bits={"conv2": 3, "*": "auto"}, min_size=0)
    with torch.no_grad():
        model(*graph())
    (rule,) = rules(model)
    assert len(rule.errors) == 7


class PyGGCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = pygnn.GCNConv(12, 16), pygnn.GCNConv(16, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.conv2(F.relu(self.conv1(x, edges)), edges)


def test_pyg_layers_are_found() -> None:
    model, x, edges = PyGGCN(), torch.randn(30, 12), torch.randint(30, (2, 100))
    compiled = gqc.compile(model, bits="auto", min_size=0)
    compiled(x, edges)
    (rule,) = rules(compiled)
    assert rule.reason == "Error_X of the output of conv1"
    assert rule.errors == pytest.approx({b: error_x(model.conv1(x, edges), b) for b in range(2, 9)}, rel=1e-3)


class Bare(nn.Module):
    """Message passing outside any layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(12, 4)

    def forward(self, g: dgl.DGLGraph, x: Tensor) -> Tensor:
        return self.lin(dgl.ops.copy_u_sum(g, x))


def test_message_passing_of_the_model_itself() -> None:
    (g, x), model = graph(), gqc.compile(Bare(), bits="auto", min_size=0)
    model(g, x)
    (rule,) = rules(model)
    assert rule.reason.startswith("Error_X of the first aggregation")
    assert rule.errors == pytest.approx({b: error_x(dgl.ops.copy_u_sum(g, x), b) for b in range(2, 9)}, rel=1e-3)


def test_without_a_gnn_layer_there_are_8_bits_and_it_says_so() -> None:
    model = gqc.compile(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)), bits="auto", min_size=0)
    model(torch.randn(5, 8))
    (rule,) = rules(model)
    assert str(rule) == "8 bits: the model has no GNN layer, so there is nothing to measure"


def test_behind_an_island_nothing_is_measured() -> None:
    model, calls = GCN(), []

    def double(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        calls.append(1)
        return out * 2

    model.norm.register_forward_hook(double)
    compiled = gqc.compile(model, bits="auto", min_size=0)
    compiled(*graph())
    (rule,) = rules(compiled)
    assert rule.bits == 8
    assert "lies behind" in rule.reason
    assert "runs eagerly and would run twice" in rule.reason
    measured = len(calls)
    calls.clear()
    gqc.compile(model, bits=8, min_size=0)(*graph())
    assert len(calls) == measured
