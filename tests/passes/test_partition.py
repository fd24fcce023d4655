"""The two halves together compute what the joint graph computes, and few bytes cross between them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.nn import functional as F

from gqc.errors import PassError
from gqc.joint import SEED
from gqc.passes import partition, run
from gqc.passes.measure_saved import SAVED_BYTES
from gqc.passes.nodes import is_size
from gqc.passes.partition import Halves
from gqc.passes.saved_values import REPEATED
from gqc.policy import Policy
from tests.passes.models import (
    CLASSES,
    HIDDEN,
    MODELS,
    WIDTH,
    Case,
    GraphConv,
    OnRelation,
    TwoLayers,
    case,
    graph_and_features,
)

QUANTIZED = Policy(min_size=0)
EXACT = Policy(bits=32)


def draws_seed(compiled: Case) -> bool:
    return any(p.kind == SEED for p in compiled.joint.placeholders)


def run_joint(compiled: Case, values: list[Any], tangents: list[Tensor]) -> list[Any]:
    with torch.no_grad():
        return fx.Interpreter(compiled.joint.module).run(*values, *tangents, enable_io_processing=False)


def run_halves(compiled: Case, values: list[Any], tangents: list[Tensor]) -> list[Any]:
    halves = partition(compiled.joint)
    assert_only_views_and_sizes_are_computed_twice(halves)
    count = compiled.joint.num_forward_outputs
    with torch.no_grad():
        outputs = list(halves.forward(*values))
        assert len(outputs) - count == len(halves.saved)
        return outputs[:count] + list(halves.backward(*outputs[count:], *tangents))


def assert_halves_equal_joint(compiled: Case, policy: Policy) -> None:
    run(compiled.joint, policy)
    values = compiled.primals(*graph_and_features(53, 201))
    if draws_seed(compiled):
        values.append(torch.tensor([3, 5]))
    shapes = [n.meta["val"].shape for n in compiled.joint.forward_outputs]
    outputs = [torch.empty([53 if isinstance(size, torch.SymInt) else size for size in shape]) for shape in shapes]
    tangents = compiled.tangents(outputs)
    buffers = {name: b.clone() for name, b in compiled.model.named_buffers()}
    torch.manual_seed(7)
    expected = run_joint(compiled, values, tangents)
    updated = {name: b.clone() for name, b in compiled.model.named_buffers()}
    for name, buffer in compiled.model.named_buffers():
        buffer.data.copy_(buffers[name])
    torch.manual_seed(7)
    actual = run_halves(compiled, values, tangents)
    if draws_seed(compiled):
        assert actual.pop() is None  # the seed has no gradient
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    torch.testing.assert_close(dict(compiled.model.named_buffers()), updated, rtol=0, atol=0)


def assert_only_views_and_sizes_are_computed_twice(halves: Halves) -> None:
    modules = (halves.forward, halves.backward)
    forward, backward = ({n.name: n for n in m.graph.nodes if n.op == "call_function"} for m in modules)
    for name in forward.keys() & backward.keys():
        assert forward[name].target in REPEATED or is_size(forward[name]), name


@pytest.mark.parametrize("name", MODELS)
def test_halves_equal_joint(name):
    assert_halves_equal_joint(case(MODELS[name](), input_needs_grad=True), QUANTIZED)


@pytest.mark.parametrize("name", ["gat", "mlp"])
def test_halves_equal_joint_without_quantization(name):
    assert_halves_equal_joint(case(MODELS[name](), input_needs_grad=True), EXACT)


def test_dropout_is_drawn_once():
    model = TwoLayers(GraphConv(WIDTH, HIDDEN), GraphConv(HIDDEN, CLASSES), dropout=0.5)
    assert_halves_equal_joint(case(model), EXACT)


def test_exact_gradients_are_those_of_eager():
    compiled = case(MODELS["sage"]())
    run(compiled.joint, EXACT)
    g, x = graph_and_features(31, 97)
    values = compiled.primals(g, x)
    tangents = [torch.randn(31, CLASSES)]
    output, *gradients = run_halves(compiled, values, tangents)
    expected = compiled.model(*g, x)
    expected.backward(tangents[0])
    torch.testing.assert_close(output, expected)
    got = {p.name: gradient for p, gradient in zip(compiled.joint.placeholders, gradients, strict=False) if p.name}
    torch.testing.assert_close(got, {name: p.grad for name, p in compiled.model.named_parameters()})


@pytest.mark.parametrize("name", MODELS)
def test_int8_gradients_point_the_same_way(name):
    gradients = []
    model = MODELS[name]()
    g, x = graph_and_features(200, 1500)
    tangents = [torch.randn(200, CLASSES)]
    for policy in (EXACT, Policy(min_size=0)):
        compiled = case(model)
        run(compiled.joint, policy)
        values = compiled.primals(g, x)
        if draws_seed(compiled):
            values.append(torch.randint(2**62, (2,)))
        flat = [t for t in run_halves(compiled, values, tangents) if t is not None]
        gradients.append(torch.cat([t.flatten() for t in flat[1:]]))
    # Rounding changes which neighbour is the largest, and with it the way of a gradient.
    assert torch.cosine_similarity(*gradients, dim=0) > (0.9 if name == "pool" else 0.98)


# Not dotgat: its fp32 logits read the features in fp32, and its SPMM reads them in int8, so both are saved.
LIMITS = {"gcn": 0.6, "sage": 0.6, "rgcn": 0.8, "pyg": 0.8, "mlp": 0.7, "pool": 0.8, "gat": 0.9}


@pytest.mark.parametrize("name", LIMITS)
def test_saves_less_than_full_precision(name):
    joint = case(MODELS[name]()).joint
    reports = run(joint, Policy(min_size=0, keep_output_layer=False))
    exact = next(r.numbers[SAVED_BYTES] for r in reports if SAVED_BYTES in r.numbers)
    assert sum(s.nbytes() for s in partition(joint).saved) < LIMITS[name] * exact


def test_saves_the_int8_copy_and_the_mask_only():
    joint = case(MODELS["sage"]()).joint
    run(joint, Policy(min_size=0, keep_output_layer=False, skip=("fuse_products",)))
    saved = {s.name: s.dtype for s in partition(joint).saved}
    assert saved["relu_int8_out"] is torch.int8
    assert saved["relu_mask_bits"] is torch.uint8
    assert "relu" not in saved


def test_without_training_there_is_no_backward():
    with torch.no_grad():
        compiled = case(MODELS["gcn"]())
        run(compiled.joint, QUANTIZED)
        halves = partition(compiled.joint)
        assert halves.backward is None
        assert halves.saved == []
        assert not draws_seed(compiled)
        values = compiled.primals(*graph_and_features(20, 60))
        assert halves.forward(*values)[0].shape == (20, CLASSES)


class ReadsBufferBeforeUpdate(OnRelation):
    """The backward needs the value that the buffer had before the forward updated it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))
        self.register_buffer("scale", torch.ones(WIDTH))

    def run(self, g, x):
        out = x * self.weight * self.scale.clone()
        self.scale.add_(1)
        return out


def test_backward_reads_a_buffer_as_it_was():
    assert_halves_equal_joint(case(ReadsBufferBeforeUpdate()), EXACT)


STEPS = {
    "relu": lambda h, w, g: F.relu(h),
    "leaky_relu": lambda h, w, g: F.leaky_relu(h, 0.1),
    "elu": lambda h, w, g: F.elu(h),
    "gemm": lambda h, w, g: h @ w,
    "gemm_t": lambda h, w, g: h @ w.t(),
    "tanh": lambda h, w, g: torch.tanh(h),
    "square": lambda h, w, g: h * h,
    "spmm": lambda h, w, g: torch.ops.gqc.spmm(g, "copy_lhs", h, None) / 4,
    "sddmm": lambda h, w, g: torch.ops.gqc.spmm(g, "mul", h, torch.ops.gqc.sddmm(g, "dot", h, h, "u", "v")).tanh(),
    "heads": lambda h, w, g: h.view(-1, 4, WIDTH // 4).softmax(-1).flatten(1),
    "residual": lambda h, w, g: h + torch.sigmoid(h @ w),
    "norm": lambda h, w, g: F.layer_norm(h, (WIDTH,)),
    "dropout": lambda h, w, g: F.dropout(h, 0.3),
}


class Chain(OnRelation):
    def __init__(self, steps: list[str]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) / 4 for _ in steps)
        self.steps = steps

    def run(self, g, x):
        h = x
        for step, weight in zip(self.steps, self.weights, strict=True):
            h = STEPS[step](h, weight, g)
        return h * x


@pytest.mark.long
@settings(max_examples=8, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=8), st.sampled_from([EXACT, QUANTIZED]))
def test_halves_of_any_chain_equal_joint(steps, policy):
    assert_halves_equal_joint(case(Chain(steps), input_needs_grad=True), policy)


def test_unknown_dependency_is_an_error():
    """A forward output that depends on a gradient cannot be split off."""
    compiled = case(MODELS["mlp"]())
    output = compiled.joint.output
    results = list(output.args[0])
    results[0] = results[1]
    output.args = (results,)
    with pytest.raises(PassError, match="an output of the forward depends on a gradient"):
        run(compiled.joint, EXACT)
