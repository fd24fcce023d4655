"""verify names the pass, the node and what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import gqc
from gqc.errors import PassError
from gqc.passes import Insert, Report, run, verify
from gqc.passes.primitive import marked
from gqc.passes.share_quantized import quantize_nodes
from gqc.passes.verify import verify_decided
from gqc.policy import Policy
from tests.passes.models import MODELS, case, ops


@pytest.fixture
def joint():
    joint = case(MODELS["gcn"]()).joint
    run(joint, Policy(min_size=0))
    return joint


def test_unmarked_primitive(joint):
    node, _ = marked(joint.graph)[0]
    del node.meta["gqc"]
    with pytest.raises(PassError, match=rf"pass fuse left node {node.name} .*: a primitive without a mark"):
        verify(joint, "fuse")


def test_missing_fake_value(joint):
    node = joint.forward_outputs[0]
    del node.meta["val"]
    with pytest.raises(PassError, match=f"{node.name}.*no fake value"):
        verify(joint, "fuse")


def test_use_before_definition(joint):
    node, _ = marked(joint.graph)[-1]
    marked(joint.graph)[0][0].prepend(node)
    with pytest.raises(PassError, match="pass fuse left a malformed graph"):
        verify(joint, "fuse")


def test_float_operand_with_a_scale(joint):
    node = next(n for n, _ in marked(joint.graph) if n.target is ops.qspmm.default)
    node.update_arg(2, next(p.node for p in joint.placeholders if p.name == "conv1.weight"))
    with pytest.raises(PassError, match=r"operand conv1_weight has a scale but is torch\.float32"):
        verify(joint, "fuse")


def test_quantized_parameter_must_not_outlive_the_step(joint):
    weight = next(n for n in quantize_nodes(joint) if n.args[0].name == "conv1_weight")
    int8 = next(iter(u for u in weight.users if u.args[1] == 0))
    results = list(joint.output.args[0])
    joint.output.args = ([int8, *results[1:]],)
    with pytest.raises(PassError, match="an int8 copy of parameter conv1_weight would outlive the step"):
        verify(joint, "fuse")


def test_undecided_primitive(joint):
    node, primitive = next((n, p) for n, p in marked(joint.graph) if p.kept)
    node.meta["gqc"] = type(primitive)(primitive.kind, primitive.op, primitive.half)
    with pytest.raises(PassError, match=rf"pass fuse left node {node.name} .*neither kept with a reason nor in int8"):
        verify_decided(joint, "fuse")


def drop_an_output(joint):
    joint.output.args = (joint.output.args[0][1:],)


def drop_a_gradient(joint):
    position = max(i for i, n in enumerate(joint.output.args[0]) if n is not None)
    joint.output.args = ([None if i == position else n for i, n in enumerate(joint.output.args[0])],)


def drop_the_last_result(joint):
    joint.output.args = (joint.output.args[0][:-1],)


def return_more(joint):
    joint.output.args = ([*joint.output.args[0], joint.forward_outputs[0]],)


def return_int8(joint):
    joint.output.args = ([quantized(joint, 0), *joint.output.args[0][1:]],)


def reorder_the_list(joint):
    joint.placeholders.reverse()


def rename_a_parameter(joint):
    joint.placeholders[0] = replace(joint.placeholders[0], name="other")


def quantize_to_99_bits(joint):
    quantize_nodes(joint)[0].update_arg(4, 99)


def forget_the_seed(joint):
    quantize_nodes(joint)[0].update_arg(2, None)


def quantized(joint, index):
    return next(u for u in quantize_nodes(joint)[0].users if u.args[1] == index)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (drop_an_output, r"the step gives \d results instead of \d"),
        (drop_a_gradient, r"the gradient of \w+ is None instead of a tensor of torch\.float32 with \d axes"),
        (drop_the_last_result, r"the step gives \d results instead of \d"),
        (return_more, r"the step gives \d results instead of \d"),
        (return_int8, r"output 0 is a tensor of torch\.int8 .* instead of a tensor of torch\.float32"),
        (reorder_the_list, r"joint\.placeholders lists .*, and the graph has .* in this order"),
        (rename_a_parameter, "the arguments of the step are .* or of another meaning"),
        (quantize_to_99_bits, r"node \w+_quantized .*: its bits are 99, and 2 to 8 are possible"),
        (forget_the_seed, r"node \w+_quantized .*: it rounds stochastically without a seed"),
    ],
)
def test_a_users_pass_that_breaks_the_step_is_named(change, wrong):
    def broken(joint, policy):
        change(joint)
        return Report("broken")

    model = gqc.compile(
        nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), min_size=0, passes=[Insert(broken, after="schedule")]
    )
    with pytest.raises(PassError, match=f"^pass broken (left|changed).*{wrong}"):
        model(torch.randn(4, 8))


def test_a_right_graph_passes(joint):
    verify(joint, "fuse")
    assert joint.graph.find_nodes(op="call_function", target=torch.ops.gqc.quantize.default)
