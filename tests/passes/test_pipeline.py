"""Passes can be switched off and added; every error names the pass."""

from __future__ import annotations

import functools
import pickle
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gqc
from examples.user_pass import FORWARD_ONLY, keep_gradients
from gqc.errors import PassError, PolicyError
from gqc.passes import PIPELINE, Insert, Report, partition, run, select
from gqc.passes.pipeline import Step
from gqc.passes.primitive import KINDS
from gqc.passes.share_quantized import quantize_nodes
from gqc.policy import Policy
from tests.passes.models import CLASSES, MODELS, case, graph_and_features

BUILT_IN = [step.name for step in PIPELINE]
NEEDED = {"copy_updated"}.union(*(step.requires for step in PIPELINE))
DISPENSABLE = [name for name in BUILT_IN if name not in NEEDED]


def observe(joint, policy) -> Report:
    return Report("observe", numbers={"nodes": len(joint.graph.nodes)})


def names(**fields) -> list[str]:
    return [step.name for step in select(Policy(**fields))]


def test_all_passes_run_by_default():
    assert names() == BUILT_IN
    assert [r.name for r in run(case(MODELS["gcn"]()).joint, Policy())] == BUILT_IN


@pytest.fixture(scope="module")
def step_of():
    """``step_of(skip)``: what one training step of each of two models computes without some passes."""
    torch.manual_seed(1)
    g, x = graph_and_features(60, 300)
    tangent = torch.randn(60, CLASSES)
    models = [MODELS[name]() for name in ("sage", "mlp")]

    @functools.cache
    def step(skip: tuple[str, ...]) -> list[Tensor]:
        results = []
        for model in models:
            compiled = case(model)
            reports = run(compiled.joint, Policy(min_size=0, rounding="nearest", skip=skip))
            assert [r.name for r in reports] == [n for n in BUILT_IN if n not in skip]
            halves = partition(compiled.joint)
            with torch.no_grad():
                output, *saved = halves.forward(*[v.clone() for v in compiled.primals(g, x)])
                results += [output, *halves.backward(*saved, tangent)]
        return results

    return step


@pytest.mark.parametrize("name", DISPENSABLE)
def test_a_pass_can_be_switched_off(name, step_of):
    """Outputs and gradients stay what they are, up to the rounding that the pass moves."""
    distance = 0.25 if name in ("quantize_operands", "scale_after_gemm") else 1e-6
    if name in ("share_quantized", "fuse_pointwise", "fuse_products"):
        distance = 0.01  # sums that one quantize alone reads are stored in bfloat16
    for expected, actual in zip(step_of(()), step_of((name,)), strict=True):
        assert (expected is None) == (actual is None)
        if expected is not None:
            assert torch.dist(expected, actual) <= distance * expected.norm() + 1e-5


def test_without_quantization_nothing_is_int8():
    joint = case(MODELS["gcn"]()).joint
    run(joint, Policy(min_size=0, skip=["quantize_operands"]))
    assert quantize_nodes(joint) == []


def test_a_pass_that_others_need():
    with pytest.raises(PolicyError) as raised:
        select(Policy(skip=["find_primitives"]))
    assert str(raised.value) == (
        "Policy.skip names 'find_primitives', which keep_full_precision and choose_bits and quantize_operands need: "
        "skip keep_full_precision and choose_bits and quantize_operands too"
    )
    with pytest.raises(PolicyError, match="'keep_full_precision', which quantize_operands needs: skip"):
        select(Policy(skip=["keep_full_precision"]))
    with pytest.raises(PolicyError, match="'copy_updated', which partition needs, and that always runs"):
        select(Policy(skip=["copy_updated"]))
    together = ["find_primitives", "keep_full_precision", "choose_bits", "quantize_operands"]
    joint = case(MODELS["gcn"]()).joint
    run(joint, Policy(skip=together))
    assert any(n.target in KINDS for n in joint.graph.nodes)


def test_unknown_names_list_near_misses():
    with pytest.raises(PolicyError, match="'share_quantised', which is no pass; did you mean 'share_quantized'"):
        gqc.compile(nn.Linear(2, 2), skip=["share_quantised"])
    with pytest.raises(PolicyError, match=r"'xyz', which is no pass; known: find_messages, simplify, copy_updated"):
        select(Policy(skip=["xyz"]))
    with pytest.raises(PolicyError, match=r"inserts 'observe' beside 'find_primitive', .*'find_primitives'"):
        select(Policy(passes=[Insert(observe, after="find_primitive")]))


def test_places():
    before = names(passes=[Insert(observe, before="share_quantized")])
    assert before[before.index("observe") + 1] == "share_quantized"
    twice = [Insert(observe, after="simplify"), Insert(observe, after="simplify", name="again")]
    assert names(passes=twice)[:3] == ["simplify", "observe", "again"]
    beside = [Insert(observe, after=BUILT_IN[-1]), Insert(observe, before="observe", name="again")]
    assert names(passes=beside)[-2:] == ["again", "observe"]
    skipped = names(passes=[Insert(observe, after="simplify")], skip=["simplify"])
    assert skipped[:2] == ["observe", "copy_updated"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Policy(skip="simplify"), r"Policy.skip='simplify': expected a list of names"),
        (lambda: Policy(passes=[observe]), "expected a list of Insert"),
        (lambda: Insert(observe), "either before= or after="),
        (lambda: Insert(observe, before="simplify", after="simplify"), "either before= or after="),
        (lambda: Insert("observe", before="simplify"), "expected a function"),
        (lambda: Insert(partial(observe), before="simplify"), "it has no __name__"),
        (lambda: select(Policy(passes=[Insert(observe, after="simplify")] * 2)), "a second pass"),
        (lambda: select(Policy(passes=[Insert(observe, after="simplify", name="simplify")])), "a second pass named"),
    ],
)
def test_bad_selections(make, message):
    with pytest.raises(PolicyError, match=message):
        make()


def test_a_policy_with_passes_is_a_value():
    policy = Policy(skip=["simplify"], passes=[Insert(observe, after="simplify")])
    assert policy == Policy(skip=("simplify",), passes=(Insert(observe, after="simplify"),))
    assert len({policy, pickle.loads(pickle.dumps(policy))}) == 1


def test_the_observer_sees_inserted_passes():
    seen = []
    policy = Policy(passes=[Insert(observe, after="simplify", name="look")])
    run(case(MODELS["gcn"]()).joint, policy, watch=lambda joint, report: seen.append(report.name))
    assert seen == ["joint", "simplify", "look", *BUILT_IN[1:]]


def raising(joint, policy):
    raise KeyError("no such node")


def breaking(joint, policy):
    del joint.forward_outputs[0].meta["val"]
    return Report("breaking")


def undeciding(joint, policy):
    for node in joint.graph.nodes:
        if "gqc" in node.meta and node.meta["gqc"].kept:
            node.meta["gqc"] = type(node.meta["gqc"])("gemm", "nn", "forward")
    return Report("undeciding")


@pytest.mark.parametrize(
    ("run_pass", "after", "message"),
    [
        (raising, "simplify", "pass raising failed with KeyError: 'no such node'"),
        (lambda joint, policy: None, "simplify", "pass <lambda> returned None: return a gqc.passes.Report"),
        (breaking, "simplify", "pass breaking left node .* it has no fake value"),
        (undeciding, "quantize_operands", "pass undeciding left node .* neither kept with a reason nor in int8"),
    ],
)
def test_errors_name_the_pass(run_pass, after, message):
    policy = Policy(min_size=0, passes=[Insert(run_pass, after=after)])
    with pytest.raises(PassError, match=message):
        run(case(MODELS["gcn"]()).joint, policy)


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x)))


def test_an_error_of_a_users_pass_is_not_hidden_by_running_eagerly():
    model = gqc.compile(MLP(), passes=[Insert(raising, before="simplify")])
    with pytest.raises(PassError, match="pass raising failed"):
        model(torch.randn(8, 32))


def test_a_users_pass_in_a_model():
    x = torch.randn(50, 32)
    model = gqc.compile(MLP(), FORWARD_ONLY, min_size=0, rounding="nearest", keep_output_layer=False)
    model(x).sum().backward()
    (stage,) = gqc.explain(model).variants[0].stages
    assert {d.half for d in stage.decisions("quantized")} == {"forward"}
    kept = stage.decisions("kept")
    assert kept
    assert {(d.half, d.reason) for d in kept} == {("backward", "gradients stay exact")}
    assert keep_gradients.__name__ in [r.name for r in stage.reports]


def test_explain_says_what_was_switched_off():
    model = gqc.compile(MLP(), min_size=0, skip=["quantize_operands", "keep_full_precision", "measure_saved"])
    model(torch.randn(8, 32)).sum().backward()
    text = str(gqc.explain(model))
    assert "passes switched off: measure_saved, keep_full_precision, quantize_operands" in text
    assert "no pass decided about it" in text
    assert "instead of" not in text


def test_every_step_is_named_after_its_function():
    for step in PIPELINE:
        assert isinstance(step, Step)
        assert step.name == step.run.__name__
        assert step.run.__doc__
