"""Bit widths of the whole model and of single layers."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gqc
from gqc.layer_bits import LayerBits
from gqc.runtime.reference import gemm, quantize
from tests.same import pair, step


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(nn.Linear(16, 24), nn.Linear(24, 24))
        self.conv2 = nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(F.relu(self.conv1(x)))


def in_bits(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    return quantize.quantize(x, None, None, 0, bits, False)


def linear(x: Tensor, layer: nn.Linear, bits: int) -> Tensor:
    """A quantized linear layer by its reference."""
    operands = (*in_bits(x, bits), *in_bits(layer.weight, bits))
    return gemm.qgemm(*operands, False, True, layer.bias, torch.float32)[0]


EXACTLY = {"min_size": 0, "keep_output_layer": False, "rounding": "nearest"}


@pytest.mark.parametrize("bits", range(2, 9))
def test_every_width_computes_what_the_references_compute(bits: int) -> None:
    model = Net()
    compiled = gqc.compile(model, bits=bits, **EXACTLY)
    x = torch.randn(40, 16)
    with torch.no_grad():
        first, second = model.conv1
        want = linear(F.relu(linear(linear(x, first, bits), second, bits)), model.conv2, bits)
        assert torch.equal(compiled(x), want)
    assert torch.equal(compiled(x), want)  # the forward of training rounds as evaluation does, to nearest


def test_layers_have_widths_of_their_own() -> None:
    model = Net()
    compiled = gqc.compile(model, bits={"conv1.1": 4, "conv1": 6, "*": 8}, **EXACTLY)
    x = torch.randn(40, 16)
    with torch.no_grad():
        first, second = model.conv1
        want = linear(F.relu(linear(linear(x, first, 6), second, 4)), model.conv2, 8)
        assert torch.equal(compiled(x), want)


def test_the_backward_has_the_width_of_its_forward() -> None:
    compiled = gqc.compile(Net(), bits={"conv1": 3, "conv2": 5}, min_size=0, keep_output_layer=False)
    step(compiled, torch.randn(40, 16))
    (stage,) = gqc.explain(compiled).variants[0].stages
    widths = {(d.module, d.half, d.reason.rsplit(" ", 1)[1]) for d in stage.decisions("quantized")}
    assert widths == {
        (module, half, bits)
        for half in ("forward", "backward")
        for module, bits in (("conv1.0", "int3"), ("conv1.1", "int3"), ("conv2", "int5"))
    }


def test_a_layer_of_32_bits_is_exact() -> None:
    eager, compiled = pair(Net(), bits={"conv1.*": 32, "conv2": 32}, min_size=0)
    x = torch.randn(40, 16)
    torch.testing.assert_close(step(compiled, x), step(eager, x))
    (stage,) = gqc.explain(compiled).variants[0].stages
    assert stage.decisions("quantized") == []
    assert "Policy.bits['conv1.*']=32" in {d.reason for d in stage.decisions("kept")}


class Shares(nn.Module):
    """Three layers read one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x) + self.c(x)


def test_a_tensor_read_in_two_widths_has_a_copy_a_width() -> None:
    compiled = gqc.compile(Shares(), bits={"a": 4, "*": 8}, **EXACTLY)
    compiled(torch.randn(40, 16)).sum().backward()
    (stage,) = gqc.explain(compiled).variants[0].stages
    reasons = [d.reason for d in stage.decisions("shared") if d.node == "input_0"]
    assert len(reasons) == 2
    assert all(reason.endswith("other widths have copies of their own") for reason in reasons)
    assert {reason.split()[1]: reason.count(",") for reason in reasons} == {"int4": 1, "int8": 3}


WIDTHS = LayerBits.of({"conv?": 3, "conv1.lin": 4, "conv1": 5, "*": 6})


@pytest.mark.parametrize(
    ("module", "found"),
    [
        ("conv1.lin", ("conv1.lin", 4)),
        ("conv1.lin.inner", ("conv1.lin", 4)),
        ("conv1.other", ("conv1", 5)),
        ("conv2", ("conv?", 3)),
        ("conv2.lin", ("conv?", 3)),
        ("conv22", ("*", 6)),
        ("", ("*", 6)),
    ],
)
def test_which_entry_holds(module: str, found: tuple[str, int]) -> None:
    assert WIDTHS.find(module) == found


def test_what_no_entry_covers_has_eight_bits() -> None:
    assert LayerBits.of({"conv1": 3}).find("conv12") == (None, 8)
    assert LayerBits.of({"": 3}).find("conv1.lin") == ("", 3)


def test_a_policy_with_layers_is_frozen_hashable_and_pickled() -> None:
    given = {"conv1": 4, "*": 8}
    policy = gqc.Policy(bits=given)
    given["conv1"] = 2
    assert policy == gqc.Policy(bits={"conv1": 4, "*": 8}) != gqc.Policy(bits={"conv1": 2, "*": 8})
    assert {policy: 1}[gqc.Policy(policy.bits)] == 1
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert "bits={'conv1': 4, '*': 8}" in repr(policy)
    assert gqc.state_of(gqc.compile(Net(), policy, rounding="nearest")).policy.bits == policy.bits


@pytest.mark.parametrize(
    ("bits", "message"),
    [
        (1, r"Policy\.bits=1: expected one of 2, 3"),
        (True, r"Policy\.bits=True: expected"),
        ("all", r"Policy\.bits='all': expected"),
        ({"conv1": 16}, r"Policy\.bits\['conv1'\]=16: expected one of"),
        ({1: 8}, r"key 1 is neither the path"),
        (
            {"conv3": 4},
            r"Policy\.bits\['conv3'\]: Net has no module of this name; did you mean 'conv[12]' or 'conv[12]'",
        ),
        ({"lin*": 4}, r"Policy\.bits\['lin\*'\]: Net has no module"),
        ({"zzz": 4}, r"it has conv1, conv1\.0, conv1\.1, conv2"),
    ],
)
def test_wrong_widths_and_names(bits: object, message: str) -> None:
    with pytest.raises(gqc.PolicyError, match=message):
        gqc.compile(Net(), bits=bits)
