"""Chains of elementwise ops as one program: the same values, fewer passes, nothing more saved."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import gqc
from gqc.joint import JointGraph
from gqc.passes import partition, run
from gqc.passes.report import FUSED, Decision
from gqc.policy import Policy
from tests.passes.models import HIDDEN, MODELS, WIDTH, OnRelation, case, graph_and_features, ops

POINTWISE = ops.pointwise.default


def fused(joint: JointGraph, **options) -> list[Decision]:
    """What the pass decides; ``joint`` is rewritten."""
    reports = run(joint, Policy(**{"min_size": 0, "skip": ["fuse_products"], **options}))
    return [d for r in reports for d in r.decisions if d.action == FUSED]


def programs(joint: JointGraph) -> list[str]:
    return [n.args[2] for n in joint.graph.find_nodes(op="call_function", target=POINTWISE, sort=True)]


def step(model: OnRelation, data, dtype=torch.float32, skip=(), **options) -> tuple[list[Tensor], int]:
    """Results of both halves, and the bytes that are saved between them."""
    g, x = data
    compiled = case(model, dtype)
    run(compiled.joint, Policy(**{"min_size": 0, "skip": list(skip), **options}))
    halves = partition(compiled.joint)
    values = compiled.primals(g, x.to(dtype))
    if len(values) < len(halves.forward.graph.find_nodes(op="placeholder")):
        values.append(torch.tensor([1234567, 3]))
    torch.manual_seed(0)
    with torch.no_grad():
        outputs = halves.forward(*values)
        count = compiled.joint.num_forward_outputs
        torch.manual_seed(0)
        tangents = compiled.tangents(outputs[:count])
        gradients = halves.backward(*outputs[count:], *tangents)
    results = [r for r in (*outputs[:count], *gradients) if r is not None]
    return results, sum(s.nbytes() for s in halves.saved)


def check(model: OnRelation, dtype=torch.float32, rtol=0.0, atol=0.0, **options) -> None:
    data = graph_and_features(50, 200)
    expected, saved_before = step(model, data, dtype, skip=["fuse_pointwise", "fuse_products"], **options)
    results, saved = step(model, data, dtype, skip=["fuse_products"], **options)
    torch.testing.assert_close(results, expected, rtol=rtol, atol=atol)
    assert saved <= saved_before * 5 / 4  # with masks, of a bit or a byte an element, of floats that are saved too


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("options", [{}, {"bits": 32}, {"bits": 4}], ids=str)
def test_models_compute_what_they_did(name, options):
    model = MODELS[name]()
    if hasattr(model, "dropout"):
        model.dropout = 0.5
    # Sums over rows and exponentials differ in the last places, and so may a value on the border of two integers.
    check(
        model, rtol=2e-2 if options != {"bits": 32} else 1e-4, atol=2e-2 if options != {"bits": 32} else 1e-5, **options
    )


class Dense(OnRelation):
    """A chain between two products, with its own gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, HIDDEN)
        self.second = nn.Linear(HIDDEN, 4)
        self.scale = nn.Parameter(torch.rand(HIDDEN))

    def run(self, g, x):
        return self.second(self.chain(g, self.first(x)))

    def chain(self, g, x):
        norm = (g[0][1:] - g[0][:-1]).float().clamp(min=1).unsqueeze(1)
        return F.dropout(torch.relu(x / norm * self.scale + 0.25), 0.5)


def test_one_program_a_half_and_masks_in_bits():
    joint = case(Dense()).joint
    decisions = fused(joint)
    forward = next(d for d in decisions if "relu" in d.reason and d.half == "forward")
    assert "in one pass" in forward.reason
    assert "in 1 bit an element" in forward.reason
    backward = next(d for d in decisions if d.half == "backward" and "drop" in programs(joint)[-1])
    assert "sum(" in backward.reason
    left = {n.target for n in joint.graph.nodes}
    assert not left & {torch.ops.aten.relu.default, ops.dropout.default, ops.dropout_backward.default}
    saved = {s.dtype for s in partition(joint).saved if not s.held}
    assert torch.bool not in saved


def test_the_float_that_only_quantize_reads_is_not_written():
    joint = case(Dense()).joint
    fused(joint, keep_output_layer=False)
    text = " | ".join(programs(joint))
    assert "int8(v" in text
    assert all(
        n.args[0].target is not POINTWISE
        for n in joint.graph.find_nodes(op="call_function", target=ops.quantize.default)
    )


def test_skipping_the_pass_leaves_the_ops():
    joint = case(Dense()).joint
    assert fused(joint, skip=["fuse_pointwise", "fuse_products"]) == []
    assert programs(joint) == []


class Halves(Dense):
    """Under autocast products give bfloat16; norms and the scale stay float32."""

    def chain(self, g, x):
        low = x.bfloat16()
        norm = (g[0][1:] - g[0][:-1]).float().clamp(min=1).unsqueeze(1)
        return (F.leaky_relu(low * 0.3 + low, 0.2).float() * norm * self.scale).bfloat16().float()


def test_every_value_is_rounded_to_its_type():
    check(Halves(), bits=32, rtol=1e-5, atol=1e-6)
    joint = case(Halves()).joint
    fused(joint, bits=32)
    assert any("to_bfloat16" in program for program in programs(joint))


class Views(Dense):
    """Between rows of all heads and rows of a head."""

    def chain(self, g, x):
        heads = torch.relu(x).view(-1, 4, HIDDEN // 4) * self.scale.view(4, -1)
        weights = heads.sum(-1, keepdim=True)
        return F.leaky_relu((heads * weights.sigmoid()).flatten(1) + self.scale, 0.1)


def test_views_between_do_not_part_a_chain():
    check(Views(), bits=32, rtol=1e-4, atol=1e-5)
    joint = case(Views()).joint
    fused(joint, bits=32)
    assert any("sum(v" in p and ", -1)" in p and "relu" in p for p in programs(joint))


class AroundItself(Dense):
    """A value that a product reads whose result the chain needs again: no group may hold both ends."""

    def chain(self, g, x):
        first = torch.relu(x)
        return first * self.scale + ops.spmm(g, "copy_lhs", first + 1.0, None)


def test_a_group_never_waits_for_itself():
    check(AroundItself(), bits=32, rtol=1e-4, atol=1e-5)


UNARY = {
    "relu": torch.relu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.3),
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": lambda x: torch.exp(-x.abs()),
    "log": lambda x: torch.log(x.abs() + 0.5),
    "rsqrt": lambda x: torch.rsqrt(x * x + 1),
    "square": lambda x: x**2,
    "clamp": lambda x: x.clamp(min=-0.5),
    "where": lambda x: torch.where(x > 0.1, x, 0.5 * x),
    "less": lambda x: x - (2 - x) / 3,
}


class Random(Dense):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def chain(self, g, x):
        results = [x]
        for i, name in enumerate(self.names):
            results.append(UNARY[name](results[-1] * self.scale if i % 3 == 1 else results[-1]) + results[i // 2])
        return results[-1]


@pytest.mark.long
@settings(max_examples=6, deadline=None)  # other ones in each run
@given(st.lists(st.sampled_from(list(UNARY)), min_size=1, max_size=6))
def test_random_chains(names):
    torch.manual_seed(len(names))
    check(Random(names), bits=32, rtol=1e-3, atol=1e-4)


def test_random_ops_keep_their_order():
    class Drops(nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return F.dropout(x, 0.5) * w + F.dropout(x + 1, 0.5) * w

    model, x, w = Drops(), torch.randn(64, 8), torch.randn(8, requires_grad=True)
    torch.manual_seed(3)
    expected = model(x, w)
    torch.manual_seed(3)
    torch.testing.assert_close(gqc.compile(model, bits=32)(x, w), expected)


def test_empty_and_other_sizes():
    model = nn.Sequential(nn.Linear(6, 8), nn.ELU(), nn.Linear(8, 3))
    compiled = gqc.compile(model, bits=32)
    for rows in (50, 3, 2, 1, 0, 700):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


class SumOfOne(Dense):
    """A sum over an axis of length 1, as the aggregation of one relation: its result has the size of what it reads."""

    def chain(self, g, x):
        return (torch.stack([x * 2.0]).sum(0) + 1.0).relu()


def test_nothing_reads_a_sum_in_the_program_that_gives_it():
    check(SumOfOne(), bits=32, rtol=1e-5, atol=1e-5)


class Dropouts(nn.Module):
    """Both products read ``column``, but the second needs a dropout that is drawn after that of the first."""

    def forward(self, x: Tensor, y: Tensor, column: Tensor) -> Tensor:
        first = F.dropout(x * column, 0.5)
        second = F.dropout(y, 0.5).cumsum(1) * column
        return first.exp() + second.exp()


class Picks(nn.Module):
    """The constant of the index stands between nodes that one program computes and those that read it."""

    def forward(self, x: Tensor, y: Tensor, column: Tensor) -> Tensor:
        scaled = (x * column).exp()
        early = scaled.cumsum(1)
        return early + scaled[[2, 0, 1, 2]] + scaled * y * column


@pytest.mark.parametrize("model", [Dropouts(), Picks()])
def test_programs_stand_between_what_they_read_and_what_reads_them(model: nn.Module, recwarn) -> None:
    leaves = [torch.randn(4, 5, requires_grad=True), torch.randn(4, 5), torch.rand(4, 1)]
    results = []
    for called in (model, gqc.compile(model, bits=32)):
        torch.manual_seed(0)
        out = called(*leaves)
        results.append([out, *torch.autograd.grad(out.sum(), leaves[:1])])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-3)
    assert not [w for w in recwarn if issubclass(w.category, gqc.FallbackWarning)]
