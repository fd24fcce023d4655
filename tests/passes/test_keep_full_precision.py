"""Exactly the right primitives stay in full precision, each with its reason."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gqc.passes import find_primitives, keep_full_precision
from gqc.passes.primitive import marked
from gqc.policy import Policy
from tests.passes.models import CLASSES, HIDDEN, MODELS, WIDTH, GraphConv, OnRelation, TwoLayers, case, ops


def kept(model: nn.Module, policy: Policy | None = None, **options) -> dict[str, str]:
    """Reason by ``half kind op module`` of the primitive."""
    joint = case(model, **options).joint
    policy = policy or Policy(min_size=0)
    find_primitives(joint, policy)
    report = keep_full_precision(joint, policy)
    names = {n.name: f"{p.half} {p.kind} {p.op}" for n, p in marked(joint.graph)}
    return {f"{names[d.node]} {d.module}".strip(): d.reason for d in report.decisions}


def forward(decisions: dict[str, str]) -> set[str]:
    return {name.removeprefix("forward ") for name in decisions if name.startswith("forward")}


OUTPUT_LAYER = {
    "gcn": {"gemm nn conv2", "spmm copy_lhs conv2"},
    "gat": {"gemm nt conv2.fc", "spmm mul conv2"},
    "dotgat": {"gemm nt conv2.fc", "spmm mul conv2"},
    "sage": {"gemm nt conv2.own", "gemm nt conv2.neighbours", "spmm copy_lhs conv2"},
    "pool": {"gemm nt conv2.pool", "gemm nt conv2.fc", "spmm copy_lhs max conv2"},
    "rgcn": {"gemm nn conv2", "gemm nt conv2.loop", "spmm copy_lhs conv2"},
    "pyg": {"gemm nt conv2.lin"},
    "mlp": {"gemm nt last"},
}
ATTENTION = {
    "gat": {f"{p} conv{i}" for p in ("sddmm add", "edge_softmax edge_softmax") for i in (1, 2)},
    "dotgat": {f"{p} conv{i}" for p in ("sddmm dot", "edge_softmax edge_softmax") for i in (1, 2)},
}


@pytest.mark.parametrize("name", MODELS)
def test_output_layer_and_attention(name):
    assert forward(kept(MODELS[name]())) == OUTPUT_LAYER[name] | ATTENTION.get(name, set())


@pytest.mark.parametrize("name", ["gcn", "gat", "dotgat"])
def test_output_layer_can_be_quantized(name):
    decisions = kept(MODELS[name](), Policy(min_size=0, keep_output_layer=False))
    assert forward(decisions) == ATTENTION.get(name, set())


@pytest.mark.parametrize("name", ["sage", "rgcn"])
def test_backward_follows_its_forward(name):
    decisions = kept(MODELS[name]())
    assert all("backward of" in reason for key, reason in decisions.items() if key.startswith("backward"))
    modules = {key.split()[-1] for key in decisions}
    assert modules == {key.split()[-1] for key in OUTPUT_LAYER[name]}


def test_attention_logits_in_int8():
    policy = Policy(min_size=0, attention_logits="int8", keep_output_layer=False)
    decisions = kept(MODELS["dotgat"](), policy)
    assert forward(decisions) == {"edge_softmax edge_softmax conv1", "edge_softmax edge_softmax conv2"}
    narrow = kept(MODELS["gat"](), policy)
    assert narrow["forward sddmm add conv1"] == "one number a node or edge: nothing to gain"


def test_small_primitives():
    small = kept(MODELS["gcn"](), Policy(min_size=37 * WIDTH + 1, keep_output_layer=False))
    assert small["forward spmm copy_lhs conv1"] == f"its largest operand has {37 * WIDTH} elements, Policy.min_size=593"
    assert "forward gemm nn conv2" not in small  # reads 37 x 24 elements
    assert forward(kept(MODELS["gcn"](), Policy(min_size=37 * WIDTH, keep_output_layer=False))) == {
        "spmm copy_lhs conv2"
    }


def test_full_precision_policy_keeps_everything():
    decisions = kept(MODELS["sage"](), Policy(bits=32, min_size=0))
    assert decisions["forward spmm copy_lhs conv1"] == "Policy.bits=32"
    joint = case(MODELS["sage"]()).joint
    find_primitives(joint, Policy())
    assert len({(n.name) for n, _ in marked(joint.graph)}) == 13


def test_double_precision_has_no_int8_form():
    decisions = kept(MODELS["mlp"]().double(), dtype=torch.float64)
    assert set(decisions.values()) == {"float64 operands have no int8 form"}


class Forms(OnRelation):
    """Ops without an int8 form, each in a module of its own name, then a quantized output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.batch = nn.Parameter(torch.randn(2, WIDTH, WIDTH))
        self.last = nn.Linear(WIDTH, CLASSES)

    def run(self, g, x):
        x = x @ self.weight
        edges = ops.sddmm(g, "copy_lhs", x, None, "u", "v")
        ratio = ops.sddmm(g, "div", x, x.exp(), "u", "v")
        summed = ops.spmm(g, "add", x, edges) + ops.spmm(g, "copy_rhs", None, ratio)
        batched = torch.bmm(summed.unsqueeze(0).expand(2, -1, -1), self.batch).sum(0)
        scaled = torch.addmm(batched, x, self.weight, beta=0.5)
        one = ops.spmm(g, "copy_lhs", x.sum(1, keepdim=True), None)
        return self.last(torch.addmm(scaled, x, self.weight) + one)


def test_ops_without_int8_form():
    decisions = {k: r for k, r in kept(Forms()).items() if k.startswith("forward")}
    assert decisions == {
        "forward sddmm copy_lhs": "a gather computes nothing: nothing to gain",
        "forward spmm add": "SPMM add has no int8 form",
        "forward spmm copy_rhs": "each edge value is read once: nothing to gain",
        "forward gemm bmm": "a batched product has no int8 form",
        "forward gemm nn": "the added matrix is scaled or not a bias row",
        "forward spmm copy_lhs": "one number a node: nothing to gain",
        "forward gemm nt last": "output layer: no primitive follows",
    }


class Handwritten(OnRelation):
    """Two rounds of message passing in the model's own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def run(self, g, x):
        h = F.relu(ops.spmm(g, "copy_lhs", self.first(x), None))
        return ops.spmm(g, "copy_lhs", self.second(h), None)


class Nested(OnRelation):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def run(self, g, x):
        return self.net(g, x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, g, x):
        h = F.relu(ops.spmm(g, "copy_lhs", self.first(x), None))
        return ops.spmm(g, "copy_lhs", self.second(h), None) * 2


@pytest.mark.parametrize(("model", "prefix"), [(Handwritten, ""), (Nested, "net.")])
def test_a_model_that_passes_messages_itself_keeps_the_last_pair(model, prefix):
    joint = case(model()).joint
    find_primitives(joint, Policy())
    report = keep_full_precision(joint, Policy(min_size=0))
    reasons = {d.node: d.reason for d in report.decisions if d.half == "forward"}
    assert reasons == {
        "addmm_1": "output layer: it feeds spmm_1",
        "spmm_1": "output layer: no primitive follows",
    }


class Shared(TwoLayers):
    """One conv called twice: only its last call is the output layer."""

    def __init__(self) -> None:
        conv = GraphConv(WIDTH, WIDTH)
        super().__init__(conv, conv)


def test_an_earlier_call_of_the_output_layer_is_no_output_layer():
    joint = case(Shared()).joint
    find_primitives(joint, Policy())
    report = keep_full_precision(joint, Policy(min_size=0))
    assert [d.node for d in report.decisions if d.half == "forward"] == ["spmm_1", "mm_1"]


class TwoOutputs(TwoLayers):
    def run(self, g, x):
        h = F.relu(self.conv1(g, x))
        return self.conv2(g, h), h


def test_every_output_has_its_layer():
    model = TwoOutputs(GraphConv(WIDTH, HIDDEN), GraphConv(HIDDEN, CLASSES))
    assert {k.split()[-1] for k in kept(model)} == {"conv1", "conv2"}


def test_outputs_of_a_stage_before_an_island_are_not_the_models():
    joint = case(MODELS["gcn"]()).joint
    joint.model_outputs = frozenset()
    find_primitives(joint, Policy())
    assert keep_full_precision(joint, Policy(min_size=0)).decisions == []
