"""The joint graph says what each placeholder and output means, whatever torch release made it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from gqc.joint import BUFFER, INPUT, PARAMETER, SEED, TANGENT, JointGraph, build_joint

TORCH = f"torch {torch.__version__}: aot_export_joint_with_descriptors has changed"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.norm(self.linear(x))
        return h, h.relu()


class Views(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = self.linear(x)
        return h.view(-1, 2, 2), h.flatten(), x, x.t()


def joint_of(model: nn.Module, requires_grad: bool = False) -> JointGraph:
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    sizes = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    fake = mode.from_tensor(torch.randn(10, 8, requires_grad=requires_grad), symbolic_context=sizes)
    return build_joint(fx.symbolic_trace(model), [fake])


def test_placeholders_and_outputs():
    joint = joint_of(Net())
    kinds = [p.kind for p in joint.placeholders]
    assert kinds == [PARAMETER] * 4 + [BUFFER] * 3 + [INPUT] + [TANGENT] * 2, TORCH
    names = [p.name for p in joint.placeholders if p.kind in (PARAMETER, BUFFER)]
    assert names == [*dict(Net().named_parameters()), *dict(Net().named_buffers())], TORCH
    assert [p.index for p in joint.placeholders if p.kind == TANGENT] == [0, 1], TORCH
    assert joint.num_forward_outputs == 2
    gradients = joint.output.args[0][2:]
    has_gradient = {p.kind for p, g in zip(joint.placeholders, gradients, strict=False) if g is not None}
    assert has_gradient == {PARAMETER}
    updates = [n for n in joint.graph.nodes if n.target is torch.ops.aten.copy_.default]
    assert len(updates) == 3, f"{TORCH}: in-place updates of buffers are no longer part of the graph"


def test_sizes_are_symbolic_and_backward_is_tagged():
    joint = joint_of(Net())
    (x,) = [p.node for p in joint.placeholders if p.kind == INPUT]
    assert isinstance(x.meta["val"].shape[0], torch.SymInt), TORCH
    assert any(n.meta.get("partitioner_tag") == "is_backward" for n in joint.graph.nodes), TORCH


def test_without_grad_mode_there_is_no_backward():
    with torch.no_grad():
        joint = joint_of(Net())
    assert not joint.training
    assert all(p.kind != TANGENT for p in joint.placeholders)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_outputs_that_alias_become_tensors_of_their_own(requires_grad):
    joint = joint_of(Views(), requires_grad)
    outputs = joint.output.args[0][:4]
    assert [o.target for o in outputs] == [torch.ops.aten.clone.default] * 4, TORCH


def test_seed_is_added_once_after_the_other_inputs():
    joint = joint_of(Net())
    seed = joint.seed()
    assert joint.seed() is seed
    assert [p.kind for p in joint.placeholders][-3:] == [SEED, TANGENT, TANGENT]
    assert [p.node for p in joint.placeholders] == joint.graph.find_nodes(op="placeholder")
    joint.graph.lint()
