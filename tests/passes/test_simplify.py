"""Simplifying changes no value and keeps what must stay apart."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from gqc.passes import simplify
from gqc.passes.nodes import aten
from gqc.policy import Policy
from tests.passes.models import MODELS, OnRelation, case, graph_and_features


def targets(model: nn.Module) -> list[object]:
    joint = case(model).joint
    simplify(joint, Policy())
    return [n.target for n in joint.graph.nodes]


def test_degrees_are_computed_once():
    joint = case(MODELS["gcn"]()).joint
    assert len(joint.graph.find_nodes(op="call_function", target=aten.rsqrt.default)) == 2
    simplify(joint, Policy())
    assert len(joint.graph.find_nodes(op="call_function", target=aten.rsqrt.default)) == 1


def test_dropout_that_is_off_costs_nothing():
    assert aten.clone.default not in targets(MODELS["gcn"]())


class Twins(OnRelation):
    """Equal results and equal random calls."""

    def run(self, g, x):
        a, b = F.dropout(x, 0.5), F.dropout(x, 0.5)
        return a + b, x.relu(), x.relu(), x.clone()


def test_random_calls_and_results_stay_apart():
    joint = case(Twins(), input_needs_grad=True).joint
    simplify(joint, Policy())
    assert len(joint.graph.find_nodes(op="call_function", target=aten.native_dropout.default)) == 2
    assert len(set(joint.forward_outputs)) == 4


class Constants(OnRelation):
    def run(self, g, x):
        return (x * 1).sum() + (x * 1.0).sum() + (x * True).sum() + x.transpose(0, 1).contiguous().view(-1).sum()


def test_values_are_unchanged():
    compiled = case(Constants())
    values = compiled.primals(*graph_and_features())
    before = compiled.joint.module(*values)[0]
    simplify(compiled.joint, Policy())
    compiled.joint.module.recompile()
    torch.testing.assert_close(compiled.joint.module(*values)[0], before, rtol=0, atol=0)
