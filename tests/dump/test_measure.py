"""What a dump measures is true of the step that trains the model, and the step does not notice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gqc


class MLP(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 8)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(F.relu(self.norm(self.first(x))), self.dropout, self.training))


class Positive(MLP):
    """The number of rows of its last layer depends on data, which splits it around an island."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(h[(h[:, 0] > 0).nonzero().squeeze(1)])


def measured(folder: Path, stage: str = "variant1_train/stage1") -> dict[str, Any]:
    return json.loads((folder / stage / "errors.json").read_text())


def nodes(folder: Path, stage: str = "variant1_train/stage1") -> dict[str, dict[str, Any]]:
    return {n["node"]: n for n in measured(folder, stage)["nodes"]}


def relative(got: Tensor, true: Tensor) -> float:
    return ((got - true).norm() / true.norm()).item()


def history(model: nn.Module, make_loss: Any, steps: int = 4, **options: Any) -> list[Tensor]:
    """Everything that a few steps of training leave behind, bit for bit."""
    torch.manual_seed(0)
    model.load_state_dict({k: torch.randn_like(v.float()).to(v.dtype).abs() for k, v in model.state_dict().items()})
    compiled = gqc.compile(model, min_size=0, **options)
    optimizer = torch.optim.Adam(compiled.parameters(), 0.01)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = make_loss(compiled)
        loss.backward()
        seen += [loss.detach().clone(), *[p.grad.clone() for p in compiled.parameters() if p.grad is not None]]
        seen += [b.clone() for b in compiled.buffers()]
        optimizer.step()
    with torch.no_grad():
        seen.append(compiled.eval()(torch.randn(50, 32)))
    return [*seen, torch.tensor(gqc.state_of(compiled).seed.step), torch.get_rng_state()]


def square(model: nn.Module) -> Tensor:
    return model(torch.randn(100, 32)).square().mean()


def checkpointed(model: nn.Module) -> Tensor:
    x = torch.randn(100, 32, requires_grad=True)
    return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).square().mean()


def in_bfloat16(model: nn.Module) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model(torch.randn(100, 32)).float().square().mean()


def twice(model: nn.Module) -> Tensor:
    loss = square(model)
    loss.backward(retain_graph=True)
    return loss


@pytest.mark.parametrize(
    ("model", "options", "make_loss"),
    [
        (MLP, {}, square),
        (MLP, {"seed": 7}, square),
        (MLP, {"bits": 4}, in_bfloat16),
        (MLP, {}, checkpointed),
        (MLP, {}, twice),
        (Positive, {}, square),
        (Positive, {"seed": 7}, twice),
    ],
)
def test_training_does_not_notice(model, options, make_loss, tmp_path):
    plain = history(model(0.5), make_loss, **options)
    dumped = history(model(0.5), make_loss, dump=tmp_path, **options)
    torch.testing.assert_close(dumped, plain, rtol=0, atol=0)
    folder = next(tmp_path.glob("variant*_train/stage1"))
    found = json.loads((folder / "errors.json").read_text())
    assert found["note"].startswith("Measured on a call of the model, with the gradients of its loss.")
    assert found["nodes"]


def test_gradients_are_off_by_what_is_said(tmp_path):
    torch.manual_seed(0)
    model, x, weights = MLP(), torch.randn(200, 32), torch.randn(200, 8)
    buffers = {k: v.clone() for k, v in model.named_buffers()}
    (model(x) * weights).sum().backward()
    exact = {k: p.grad for k, p in model.named_parameters()}
    model.zero_grad()
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])

    (gqc.compile(model, min_size=0, dump=tmp_path)(x) * weights).sum().backward()
    found = {n["gradient_of"]: n for n in nodes(tmp_path).values() if n["gradient_of"]}
    assert set(found) == set(exact)
    for name, p in model.named_parameters():
        if relative(p.grad, exact[name]) > 1e-5:  # the gradient of a bias before a normalization is zero but for noise
            assert found[name]["relative"] == pytest.approx(relative(p.grad, exact[name]), rel=1e-2, abs=1e-5), name
    assert found["first.weight"]["relative"] > 1e-3


def test_scales_are_those_of_the_call(tmp_path):
    torch.manual_seed(0)
    model, x = MLP(), 3 * torch.randn(100, 32)
    gqc.compile(model, min_size=0, dump=tmp_path)(x).sum().backward()
    found = nodes(tmp_path)
    for node, tensor in (("input_0_quantized", x), ("first_weight_quantized", model.first.weight)):
        assert found[node]["absmax"] == tensor.abs().max().item()
        assert found[node]["scale"] == pytest.approx(tensor.abs().max().item() / 127, rel=1e-6)
        assert 0 < found[node]["own"] == found[node]["relative"] < 0.05
        assert 0.99 < found[node]["cosine"] < 1


def test_packed_values_have_a_scale(tmp_path):
    model, x = MLP(), torch.randn(100, 32)
    gqc.compile(model, bits=4, min_size=0, dump=tmp_path)(x).sum().backward()
    found = nodes(tmp_path)["input_0_quantized"]
    assert found["scale"] == pytest.approx(x.abs().max().item() / 7, rel=1e-6)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_is_measured_in_its_forward(mode, tmp_path):
    model = gqc.compile(MLP(), min_size=0, dump=tmp_path).eval()
    with mode():
        model(torch.randn(100, 32))
    found = measured(tmp_path, "variant1_eval/stage1")
    assert found["note"] == "Measured on a call of the model."
    assert {"addmm_int8", "input_0_quantized"} <= {n["node"] for n in found["nodes"]}


def test_the_first_call_with_a_backward_is_measured(tmp_path):
    model = gqc.compile(MLP(), min_size=0, dump=tmp_path)
    model(torch.randn(100, 32))
    assert measured(tmp_path) == {
        "note": "Scales and errors are not measured yet: no call has run its backward.",
        "nodes": [],
    }
    x = torch.randn(100, 32)
    model(x).sum().backward()
    assert nodes(tmp_path)["input_0_quantized"]["absmax"] == x.abs().max().item()
    model(torch.randn(100, 32)).sum().backward()
    assert nodes(tmp_path)["input_0_quantized"]["absmax"] == x.abs().max().item()


def test_every_stage_is_measured(tmp_path):
    gqc.compile(Positive(), min_size=0, dump=tmp_path)(torch.randn(100, 32)).sum().backward()
    stages = sorted(p.name for p in (tmp_path / "variant1_train").iterdir())
    assert len(stages) > 1
    gradients = {n["gradient_of"] for stage in stages for n in nodes(tmp_path, f"variant1_train/{stage}").values()}
    assert {"first.weight", "last.weight"} <= gradients


def test_numbers_that_are_not_finite_are_text(tmp_path):
    x = torch.randn(100, 32)
    x[0, 0] = torch.nan
    gqc.compile(MLP(), min_size=0, dump=tmp_path)(x).sum().backward()
    text = (tmp_path / "variant1_train/stage1/errors.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert nodes(tmp_path)["input_0_quantized"]["scale"] == "nan"


@pytest.mark.parametrize("place", ["gqc.dump.measure.node_errors", "gqc.dump.measure.generators_at"])
@pytest.mark.filterwarnings("error::gqc.DumpWarning")
def test_a_measurement_that_fails_is_told(place, tmp_path, monkeypatch):
    def fail(*_):
        raise MemoryError("no room for a second run")

    monkeypatch.setattr(place, fail)
    model = gqc.compile(MLP(), min_size=0, dump=tmp_path)
    model(torch.randn(100, 32)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    found = measured(tmp_path)
    assert found["note"] == "Scales and errors could not be measured: MemoryError: no room for a second run"
    assert found["nodes"] == []
    assert "could not be measured" in (tmp_path / "variant1_train/stage1/index.html").read_text()
