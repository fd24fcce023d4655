"""Values of at most 4 bits are packed as they are quantized, and every primitive reads one copy of them."""

from __future__ import annotations

import copy
import sys

import pytest
import torch

import gqc
from gqc.passes import partition, run
from gqc.passes.nodes import source
from gqc.passes.share_quantized import UNPACK, quantize_nodes
from gqc.policy import Policy
from tests.passes.models import MODELS, case, graph_and_features, ops

POLICY = Policy(bits=4, min_size=0, keep_output_layer=False)
PACKED = {ops.qgemm_int4.default, ops.qspmm_int4.default, ops.qsddmm_int4.default}


def joint_of(name: str, policy: Policy = POLICY):
    joint = case(MODELS[name]()).joint
    run(joint, policy)
    return joint


@pytest.mark.parametrize("name", ["gcn", "dotgat", "sage", "rgcn", "mlp"])
def test_all_primitives_read_packed_values(name):
    joint = joint_of(name)
    targets = {n.target for n in joint.graph.nodes if n.op == "call_function"}
    assert targets & PACKED
    assert not targets & {ops.qgemm.default, ops.qspmm.default, ops.qsddmm.default, ops.quantize.default, UNPACK}


def test_views_of_rows_are_read_packed_in_their_shape():
    joint = joint_of("gat")
    messages = [n for n in joint.graph.nodes if n.target is ops.qspmm_int4.default]
    assert [3, 8] in [node.args[4] for node in messages]  # heads of a matrix of 24 columns
    assert all(source(node.args[2])[0] is node.args[2] for node in messages)


def test_a_tensor_read_packed_and_unpacked_is_quantized_and_unpacked_once():
    """Max aggregation has no packed form."""
    joint = joint_of("pool")
    values = [n.args[0] for n in quantize_nodes(joint)]
    assert len(values) == len(set(values))
    unpacked = [n for n in joint.graph.nodes if n.target is UNPACK]
    assert {user.target for n in unpacked for user in n.users} == {ops.qspmm_cmp.default}
    assert len(unpacked) == len({n.args[0] for n in unpacked}) == 2
    also_packed = [n for n in unpacked if any(user.target in PACKED for user in n.args[0].users)]
    assert also_packed or all(len(n.args[0].users) == 1 for n in unpacked)


@pytest.mark.parametrize("name", ["gcn", "sage", "dotgat"])
def test_half_a_byte_a_value_is_saved(name):
    saved = {}
    for bits in (4, 8):
        # Programs give int8 copies in the place of floats, and no packed ones.
        policy = Policy(bits=bits, min_size=0, keep_output_layer=False, skip=("fuse_pointwise", "fuse_products"))
        kept = partition(joint_of(name, policy)).saved
        saved[bits] = [(s.name, s.nbytes(), s.shape) for s in kept if s.name.endswith(("_int4", "_int8"))]
    in_int8 = {name: (nbytes, shape) for name, nbytes, shape in saved[8]}
    assert saved[4]
    for name, nbytes, _ in saved[4]:
        full, shape = in_int8.pop(name.replace("_int4", "_int8"))
        assert nbytes == full * ((shape[-1] + 1) // 2) / shape[-1]
    assert not in_int8


class Model(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.model = MODELS[name]()

    def forward(self, g, x):
        return self.model(*g, x)


@pytest.mark.parametrize(
    ("name", "rounding"),
    [
        *((name, "stochastic") for name in ("gcn", "dotgat", "sage", "pool", "rgcn")),
        ("gat", "nearest"),  # an expanded gradient is packed anew, with random bits of its own
    ],
)
def test_packed_primitives_compute_what_unpacked_ones_do(name, rounding, monkeypatch):
    """Outputs and gradients of a step are equal bit for bit."""
    g, x = graph_and_features()
    packed = Model(name)
    plain = copy.deepcopy(packed)

    def step(model):
        # Attention is fused where it reads int8 values, and then sums in another order; so are products.
        compiled = gqc.compile(model, POLICY, seed=3, rounding=rounding, skip=["fuse_attention", "fuse_products"])
        out = compiled(g, x)
        out.square().sum().backward()
        return [out, *(p.grad for p in model.parameters())]

    got = step(packed)
    monkeypatch.setattr(sys.modules["gqc.passes.quantize_operands"], "MOST_PACKED_BITS", 0)
    for mine, other in zip(got, step(plain), strict=True):
        assert torch.equal(mine, other)
