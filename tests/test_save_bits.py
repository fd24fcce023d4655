"""``save_bits``: what it accepts, and what compiled models save, as ``gqc.explain`` tells it."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gqc
from gqc.explain import StageExplanation
from gqc.passes.saved_plan import SavedPlan
from tests.same import pair, step


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.last = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(torch.relu(self.conv1(x)), 0.5, self.training)
        return self.last(torch.tanh(self.conv2(h)))


@pytest.mark.parametrize(
    ("save_bits", "message"),
    [
        (3, r"Policy\.save_bits=3: expected one of 1, 2, 4, 8, 'auto', a mapping by module, a gqc\.SaveBits or None"),
        (True, r"Policy\.save_bits=True: expected"),
        (2.0, r"Policy\.save_bits=2\.0: expected"),
        ("all", r"Policy\.save_bits='all': expected"),
        ({"conv1": 3}, r"Policy\.save_bits\['conv1'\]=3: expected one of 1, 2, 4, 8, or 32, which leaves"),
        ({1: 8}, r"Policy\.save_bits: key 1 is neither the path"),
        ({"conv3": 4}, r"Policy\.save_bits\['conv3'\]: Net has no module of this name; did you mean 'conv[12]'"),
    ],
)
def test_wrong_values(save_bits: object, message: str) -> None:
    with pytest.raises(gqc.PolicyError, match=message):
        gqc.compile(Net(), save_bits=save_bits)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 16}, r"SaveBits\.bits=16: expected one of 1, 2, 4, 8, 'auto' or a mapping by module"),
        ({"group": 100}, r"SaveBits\.group=100: expected None or a multiple of 8"),
        ({"group": 0}, r"SaveBits\.group=0"),
        ({"stats": "fp16"}, r"SaveBits\.stats='fp16': expected 'bf16' or 'fp32'"),
        ({"rounding": "up"}, r"SaveBits\.rounding='up': expected 'stochastic' or 'nearest'"),
        ({"project": 0}, r"SaveBits\.project=0: expected None or a fraction"),
        ({"project": 1.5}, r"SaveBits\.project=1\.5"),
        ({"min_size": -1}, r"SaveBits\.min_size=-1: expected a number of elements"),
        ({"budget": 0.5}, r"budget=0\.5\): is for bits='auto'"),
        ({"bits": "auto", "budget": 1.0}, r"SaveBits\.budget=1\.0: expected bytes"),
    ],
)
def test_wrong_options(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(gqc.PolicyError, match=message):
        gqc.SaveBits(**{"bits": 2, **fields})


def test_all_forms_become_save_bits() -> None:
    assert gqc.Policy().saves is None
    assert gqc.Policy(save_bits=2).save_bits == gqc.SaveBits(2)
    assert gqc.Policy(save_bits="auto").saves == gqc.SaveBits("auto")
    layers = gqc.Policy(save_bits={"conv1": 2, "*": 8})
    assert layers.saves == gqc.SaveBits({"conv1": 2, "*": 8}) != gqc.SaveBits({"conv1": 4, "*": 8})
    assert {layers: 1}[pickle.loads(pickle.dumps(layers))] == 1


def stage_of(model: nn.Module) -> StageExplanation:
    (stage,) = gqc.explain(model).variants[-1].stages
    return stage


def plan_of(model: nn.Module) -> dict[str, SavedPlan]:
    return {plan.name: plan for plan in stage_of(model).plan}


def test_a_training_step_and_its_plan(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(300, 32)
    exact, compressed = pair(Net(), save_bits=2)
    exact = gqc.compile(exact, bits=32)
    torch.manual_seed(5)
    expected, gradients = step(exact, x)
    torch.manual_seed(5)
    got, noisy = step(compressed, x)
    assert torch.equal(got, expected)  # the dropout's numbers, too
    assert torch.equal(noisy["last.bias"], gradients["last.bias"])
    for name, gradient in gradients.items():
        assert torch.cosine_similarity(gradient.flatten(), noisy[name].flatten(), 0) > 0.8
    stage = stage_of(compressed)
    plan = {(p.module, p.how): p for p in stage.plan}
    assert sum(p.after for p in stage.plan) == stage.saved_bytes < stage_of(exact).saved_bytes / 6
    assert plan["", "mask in 1 bit"].after == 300 * 32 / 8
    assert plan["", "compressed to 2 bits"].after == 300 * (32 / 4 + 4)
    printed = capsys.readouterr().out
    assert "save_bits=2" in printed
    assert "compressed to 2 bits" in printed


def test_steps_repeat_with_the_seed_of_torch() -> None:
    def gradients() -> list[Tensor]:
        torch.manual_seed(3)
        model = gqc.compile(Net(), bits=32, save_bits=1)
        x = torch.randn(300, 32)
        return [step(model, x)[1]["last.weight"] for _ in range(2)]

    first, second = gradients(), gradients()
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not torch.equal(*first)


def test_modules_have_widths_of_their_own(tmp_path) -> None:
    model = gqc.compile(Net(), bits=32, save_bits={"conv2": 2, "": 32}, dump=tmp_path)
    step(model, torch.randn(300, 32))
    plan = plan_of(model)
    by_how = {p.how: p for p in plan.values()}
    assert by_how["compressed to 2 bits"].module == "conv2"
    assert by_how["compressed to 2 bits"].reason == "save_bits['conv2']=2"
    assert {p.reason for p in plan.values() if p.how == "as is"} == {"save_bits['']=32"}
    (path,) = tmp_path.glob("**/reasons.json")
    told = json.loads(path.read_text())
    assert [p["name"] for p in told["saved_plan"]] == list(plan)
    assert told["policy"]["save_bits"]["bits"] == {"conv2": 2, "": 32}


def test_autocast_and_int8_together() -> None:
    x = torch.randn(300, 32)
    model = gqc.compile(Net(), save_bits=2, min_size=0)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    out.float().sum().backward()
    plan = stage_of(model).plan
    assert all(p.grad is not None for p in model.parameters())
    assert {"int8 operand", "compressed to 2 bits"} <= {p.how for p in plan}
    assert "bfloat16" in {p.dtype for p in plan if p.how == "compressed to 2 bits"}


def test_errors_of_compressed_tensors_are_reported() -> None:
    model = gqc.compile(Net(), bits=32, save_bits=2)
    report = gqc.error_report(model, torch.randn(300, 32))
    kinds = {node.kind: node for node in reversed(report.nodes)}
    assert kinds["saved"].own > 0.01
    assert kinds["saved"].half == "backward"
    assert all(node.relative == 0 for node in report.nodes if node.half == "forward" or node.kind == "output")
    gradients = {node.parameter: node.relative for node in report.nodes if node.parameter}
    assert gradients["last.weight"] > 0.01
    assert gradients["last.bias"] == 0


class WithIsland(nn.Module):
    """The number of selected rows depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return torch.sigmoid(self.last(h[torch.nonzero(x[:, 0] > 0)[:, 0]]))


def test_what_crosses_an_island_is_not_compressed() -> None:
    model = gqc.compile(WithIsland(), bits=32, save_bits=2)
    x = torch.randn(400, 32)
    step(model, x)
    plans = [p for stage in gqc.explain(model).variants[0].stages for p in stage.plan]
    assert any("crosses from one stage to another" in p.reason for p in plans)
    assert any(p.how == "compressed to 2 bits" for p in plans)


def test_inference_compresses_nothing() -> None:
    model = gqc.compile(Net().eval(), bits=32, save_bits=2)
    with torch.no_grad():
        model(torch.randn(300, 32))
    assert stage_of(model).plan == ()


def test_twice_the_backward_of_one_forward() -> None:
    model = gqc.compile(Net().eval(), bits=32, save_bits=2)
    x = torch.randn(300, 32)
    loss = model(x).square().sum()
    first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("bits", [8, 32])
def test_attention_whose_result_is_not_laid_out_row_by_row(bits: int) -> None:
    """torch's attention gives strides of its own, and what is read again has those of a row by row tensor."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    exact, compressed = pair(nn.Sequential(layer, nn.Linear(64, 8)), bits=bits, save_bits=8)
    x = torch.randn(12, 50, 64)
    _, gradients = step(exact, x)
    _, noisy = step(compressed, x)
    for name, gradient in gradients.items():
        assert torch.cosine_similarity(gradient.flatten(), noisy[name].flatten(), 0) > 0.8, name


def test_complex_tensors_stay_as_they_are() -> None:
    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(17, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.irfft(torch.fft.rfft(x.tanh()) * self.weight, n=32)

    model = gqc.compile(Filter(), bits=32, save_bits=2)
    model(torch.randn(300, 32)).sum().backward()
    assert "complex64 is not compressed" in {plan.reason for plan in stage_of(model).plan}
