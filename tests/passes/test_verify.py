"""verify names the pass, the node and what is wrong."""

from __future__ import annotations

import pytest
import torch

from gqc.errors import PassError
from gqc.passes import run, verify
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


def test_a_right_graph_passes(joint):
    verify(joint, "fuse")
    assert joint.graph.find_nodes(op="call_function", target=torch.ops.gqc.quantize.default)
