"""Exactly the right primitives stay in full precision, each with its reason."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gqc
from gqc.errors import PolicyError
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
    assert narrow["forward sddmm add conv1"] == "one number a node or edge and head: nothing to gain"


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


class Ending(OnRelation):
    """GCN whose forward goes on behind the last conv."""

    def __init__(self, end) -> None:
        super().__init__()
        self.conv1, self.conv2 = GraphConv(WIDTH, HIDDEN), GraphConv(HIDDEN, CLASSES)
        self.end = end

    def run(self, g, x):
        return self.end(self.conv2(g, F.relu(self.conv1(g, x))), g[7] % CLASSES, self.conv1.weight)


ENDINGS = {
    "softmax": lambda h, y, w: h.softmax(1),
    "log_softmax": lambda h, y, w: F.log_softmax(h, -1),
    "cross_entropy": lambda h, y, w: F.cross_entropy(h, y[: h.shape[0]]),
    "nll": lambda h, y, w: F.nll_loss(F.log_softmax(h, 1), y[: h.shape[0]]),
    "loss of some nodes": lambda h, y, w: F.cross_entropy(h[:7], y[:7]),
    "loss and logits": lambda h, y, w: (F.cross_entropy(h, y[: h.shape[0]]), h),
    "multi-label loss": lambda h, y, w: F.binary_cross_entropy_with_logits(h, (h > 0).float()),
    "weight decay": lambda h, y, w: F.cross_entropy(h, y[: h.shape[0]]) + 0.01 * w.square().sum(),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_the_output_layer_is_found_behind_softmax_and_loss(name):
    assert forward(kept(Ending(ENDINGS[name]))) == OUTPUT_LAYER["gcn"]


class Pooled(OnRelation):
    """A softmax that a product follows, as in pooling by soft assignment and in attention between all nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.assign, self.embed = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, HIDDEN)
        self.last = nn.Linear(HIDDEN, CLASSES)

    def run(self, g, x):
        return F.log_softmax(self.last(self.assign(x).softmax(1).t() @ self.embed(x)), 1)


def test_a_softmax_inside_the_model_is_attention():
    decisions = kept(Pooled())
    assert forward(decisions) == {"gemm nt assign", "gemm nt last"}
    assert decisions["forward gemm nt assign"].startswith("attention logits: it feeds _softmax")
    assert forward(kept(Pooled(), Policy(min_size=0, attention_logits="int8"))) == {"gemm nt last"}


class MeanNorm(nn.Module):
    """Normalizes by the mean over the neighbours, which it computes itself."""

    def forward(self, g, x):
        return x - ops.spmm(g, "copy_lhs", x, None)


class Normed(OnRelation):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.batch = nn.Linear(WIDTH, HIDDEN), MeanNorm(), nn.BatchNorm1d(HIDDEN)
        self.last = nn.Linear(HIDDEN, CLASSES)

    def run(self, g, x):
        return self.last(self.batch(self.norm(g, self.first(x))).relu())


def test_what_a_norm_runs_is_kept_and_what_feeds_it_is_not():
    decisions = kept(Normed())
    assert forward(decisions) == {"spmm copy_lhs norm", "gemm nt last"}
    assert decisions["forward spmm copy_lhs norm"] == "normalization: MeanNorm runs in full precision"
    assert "norm" in {key.split()[-1] for key in decisions if key.startswith("backward")}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("conv1", {"gemm nt conv1.own", "gemm nt conv1.neighbours", "spmm copy_lhs conv1"}),
        ("conv1.own", {"gemm nt conv1.own"}),
        ("*.neighbours", {"gemm nt conv1.neighbours", "gemm nt conv2.neighbours"}),
        ("spmm", {"spmm copy_lhs conv1", "spmm copy_lhs conv2"}),
        ("addmm", {"gemm nt conv1.own", "gemm nt conv2.own"}),
    ],
)
def test_what_the_user_keeps(entry, expected):
    """Each with its backward, which works on the same module and call."""
    decisions = kept(MODELS["sage"](), Policy(min_size=0, keep_output_layer=False, keep=[entry]))
    assert forward(decisions) == expected
    assert {r for k, r in decisions.items() if k.startswith("forward")} == {f"Policy.keep={entry!r}"}
    modules = {key.split()[-1] for key in decisions if key.startswith("backward")}
    assert modules <= {key.split()[-1] for key in expected}
    assert modules or entry == "spmm"


def test_nodes_are_kept_alone():
    joint = case(MODELS["sage"]()).joint
    find_primitives(joint, Policy())
    policy = Policy(min_size=0, keep_output_layer=False, keep=["node:addmm", "node:mm_2"])
    report = keep_full_precision(joint, policy)
    assert [(d.node, d.half, d.reason) for d in report.decisions] == [
        ("addmm", "forward", "Policy.keep='node:addmm'"),
        ("mm_2", "backward", "Policy.keep='node:mm_2'"),
    ]


def test_names_that_fit_nothing_list_near_misses():
    model = nn.ModuleDict({"conv1": nn.Linear(2, 2), "classifier": nn.Linear(2, 2)})
    fits_not = r"'clasifier': ModuleDict has no module of this name, nor is it a kind of primitive; did you mean 'class"
    with pytest.raises(PolicyError, match=fits_not):
        gqc.compile(model, keep=["conv*", "clasifier"])
    with pytest.raises(PolicyError, match=r"'spm': .*; did you mean 'spmm'"):
        gqc.compile(model, keep=["spm"])
    with pytest.raises(PolicyError, match=r"'layer\*': .*; known: conv1, classifier, addmm, "):
        gqc.compile(model, keep=["layer*"])
    with pytest.raises(PolicyError, match=r"Policy\.keep='conv1': expected a list of names"):
        gqc.compile(model, keep="conv1")


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 4)

    def forward(self, x):
        return F.log_softmax(self.last(F.relu(self.second(F.relu(self.first(x))))), 1)


def test_a_node_that_is_not_there_raises_at_the_first_call():
    model = gqc.compile(MLP(), min_size=0, keep=["node:addm_1"])
    with pytest.raises(PolicyError, match=r"'node:addm_1': the graph has no such primitive; did you mean 'node:addmm"):
        model(torch.randn(8, 32))
    model = gqc.compile(MLP(), min_size=0, keep=["node:mm_1"])  # of the backward, which inference lacks
    with torch.no_grad():
        model(torch.randn(8, 32))
    model(torch.randn(8, 32)).sum().backward()
    training = gqc.explain(model).variants[1].stages[0]
    assert "Policy.keep='node:mm_1'" in {d.reason for d in training.decisions("kept")}


def test_the_output_layer_is_found_across_stages():
    """A hook cuts the graph between the last layer and the softmax behind it."""
    eager = MLP()
    eager.last.register_forward_hook(lambda *_: None)
    model = gqc.compile(eager, min_size=0)
    model(torch.randn(8, 32)).sum().backward()
    (variant,) = gqc.explain(model).variants
    assert len(variant.stages) == 2
    kept_modules = {d.module for stage in variant.stages for d in stage.decisions("kept")}
    assert kept_modules == {"last"}
