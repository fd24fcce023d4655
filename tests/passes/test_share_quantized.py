"""Each tensor is quantized once, and the int8 forms are called as their schemas want."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from gqc.passes import find_primitives, keep_full_precision, quantize_operands, run, share_quantized
from gqc.passes.nodes import source
from gqc.passes.report import SHARED, UNSHARED
from gqc.passes.share_quantized import quantize_nodes
from gqc.policy import Policy
from tests.passes.models import CLASSES, MODELS, WIDTH, Case, OnRelation, case, ops

QUANTIZED = Policy(min_size=0)
EVERYTHING = Policy(min_size=0, keep_output_layer=False)


def quantized(name: str, policy: Policy) -> tuple[Case, int]:
    """A model after quantize_operands, and its number of quantize nodes."""
    compiled = case(MODELS[name]())
    for rewrite in (find_primitives, keep_full_precision, quantize_operands):
        report = rewrite(compiled.joint, policy)
    return compiled, report.numbers["quantize nodes"]


# Of GCN's first layer: X once for SPMM; A·X for GEMM and again for dW; W; dY.
COUNTS = {
    "gcn": (5, 4),
    "gat": (8, 5),
    "dotgat": (8, 5),
    "sage": (9, 5),
    "pool": (11, 7),
    "rgcn": (16, 9),
    "pyg": (4, 3),
}


@pytest.mark.parametrize("name", COUNTS)
def test_number_of_quantize_nodes(name):
    compiled, before = quantized(name, QUANTIZED)
    after = share_quantized(compiled.joint, QUANTIZED).numbers["quantize nodes"]
    assert (before, after) == COUNTS[name]


@pytest.mark.parametrize("name", ["gat", "sage", "rgcn"])
def test_no_values_are_quantized_twice(name):
    joint = case(MODELS[name]()).joint
    run(joint, EVERYTHING)
    values = [source(node.args[0])[0] for node in quantize_nodes(joint)]
    assert len(values) == len(set(values))
    streams = [node.args[3] for node in quantize_nodes(joint)]
    assert len(streams) == len(set(streams))


def test_what_is_shared():
    compiled, _ = quantized("sage", EVERYTHING)
    shared = {d.node: d.reason for d in share_quantized(compiled.joint, EVERYTHING).decisions if d.action == SHARED}
    assert shared["relu"] == "one int8 copy for addmm_1_int8, spmm_1_int8, mm_5_int8"  # siblings, forward and backward
    assert shared["tangent_0"] == "one int8 copy for mm_2_int8, mm_3_int8, mm_4_int8, mm_5_int8"  # one gradient
    assert shared["conv2_own_weight"] == "one int8 copy for addmm_1_int8, mm_4_int8"  # through transposes


def test_gemm_reads_the_weight_as_it_lies_in_memory():
    joint = case(MODELS["mlp"]()).joint
    run(joint, QUANTIZED)
    first = next(n for n in joint.graph.nodes if n.target is ops.qgemm.default)
    _, scale, weight, weight_scale, trans_a, trans_b, bias, dtype = first.args
    assert source(weight)[0].args[0].args[0].name == "first_weight"
    assert (trans_a, trans_b, bias.name, dtype) == (False, True, "first_bias", torch.float32)
    assert (scale.meta["val"].dim(), weight_scale.meta["val"].dtype) == (0, torch.float32)


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_quantize_arguments(rounding):
    compiled = case(MODELS["gcn"]())
    run(compiled.joint, Policy(min_size=0, rounding=rounding))
    seed = compiled.joint.seed() if rounding == "stochastic" else None
    for node in quantize_nodes(compiled.joint):
        assert node.args[2] is seed
        assert node.args[4:] == (8, rounding == "stochastic")


def test_absmax_comes_from_the_epilogue_where_values_are_unchanged():
    joint = case(MODELS["gat"]()).joint
    run(joint, replace(QUANTIZED, skip=("fuse_pointwise", "fuse_products")))  # whose programs give absmax too
    absmax = {n.args[0].name: n.args[1] and n.args[1].name for n in quantize_nodes(joint)}
    assert absmax["mm_out"] == "mm_out_absmax"  # read through a view
    assert {name for name, given in absmax.items() if given is None} == {
        "input_8",
        "conv1_fc_weight",
        "threshold_backward",
        "view_11" if "view_11" in absmax else next(n for n in absmax if n.startswith("add")),
    }


class DividesBy(OnRelation):
    """Edge features of several forms, and a divisor, which stays float."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, CLASSES)

    def run(self, g, x):
        h = self.lin(x)
        edges = ops.sddmm(g, "div", h, h.exp(), "u", "v") + ops.sddmm(g, "mul", h, h.sum(1, keepdim=True), "v", "u")
        return self.last(ops.spmm(g, "mul", h, edges))


def test_sddmm_operands_that_stay_float():
    joint = case(DividesBy()).joint
    run(joint, QUANTIZED)
    divided, scaled = [n for n in joint.graph.nodes if n.target is ops.qsddmm.default][:2]
    for node in (divided, scaled):
        _, _, left, left_scale, right, right_scale, *_ = node.args
        assert left.meta["val"].dtype is torch.int8
        assert left_scale is not None
        assert right.meta["val"].dtype is torch.float32
        assert right_scale is None


def test_edge_weights_stay_float():
    joint = case(MODELS["gat"]()).joint
    run(joint, EVERYTHING)
    for node in joint.graph.nodes:
        if node.target is ops.qspmm.default and node.args[1] == "mul":
            assert node.args[4].meta["val"].dtype is torch.float32
            assert node.args[5] is None


def test_in_place_update_between_two_uses_is_refused():
    """AOTAutograd puts updates last; another front end might not."""
    compiled, _ = quantized("pyg", QUANTIZED)
    joint = compiled.joint
    first, *_, last = [n for n in quantize_nodes(joint) if n.args[0].name == "input_8"]
    with joint.graph.inserting_after(first):
        update = joint.graph.call_function(torch.ops.aten.mul_.Tensor, (first.args[0], 2.0))
    update.meta["val"] = first.args[0].meta["val"]
    report = share_quantized(joint, QUANTIZED)
    assert [d.reason for d in report.decisions if d.action == UNSHARED] == [
        f"not shared with {first.name}: input_8 is updated in place by {update.name}"
    ]
    assert last in quantize_nodes(joint)
