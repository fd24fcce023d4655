"""Losses in the model as one op each: the same values and gradients for every selection, and what stays torch's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gqc
from gqc.passes.report import FUSED, UNFUSED, Decision

WIDTH, CLASSES, NODES = 12, 9, 64
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


class Task(nn.Module):
    """A layer for each loss, and the losses of the rows that an argument selects."""

    def __init__(self, losses: dict[str, Loss]) -> None:
        super().__init__()
        self.losses = losses
        self.layers = nn.ModuleDict({name: nn.Linear(WIDTH, CLASSES) for name in losses})

    def forward(self, x: Tensor, labels: Tensor, train: Tensor) -> list[Tensor]:
        return [loss(self.layers[name](x), labels, train) for name, loss in self.losses.items()]


MEAN: dict[str, Loss] = {"mean": lambda x, y, m: F.cross_entropy(x[m], y[m])}
FUSED_LOSSES: dict[str, Loss] = {
    **MEAN,
    "none": lambda x, y, m: F.cross_entropy(x[m], y[m], reduction="none").square(),
    "ignored": lambda x, y, m: F.cross_entropy(x[m], y[m], ignore_index=2),
    "behind": lambda x, y, m: F.nll_loss(F.log_softmax(x, 1)[m], y[m]),
    "rounded": lambda x, y, m: F.cross_entropy(x.bfloat16()[m].float(), y[m]),
    "all": lambda x, y, m: F.cross_entropy(x, y),
}
UNFUSED_LOSSES: dict[str, tuple[Loss, str]] = {
    "weights": (lambda x, y, m: F.cross_entropy(x[m], y[m], weight=torch.ones(CLASSES)), "classes have weights"),
    "smoothing": (lambda x, y, m: F.cross_entropy(x[m], y[m], label_smoothing=0.1), "reads its log-probabilities too"),
    "plane": (lambda x, y, m: F.cross_entropy(x.unsqueeze(2), y.unsqueeze(1)), "not the last of two axes"),
    "likelihood": (lambda x, y, m: F.nll_loss(x[m], y[m]), "is no log-softmax"),
}


def example() -> tuple[Tensor, Tensor]:
    return torch.randn(NODES, WIDTH), torch.randint(CLASSES, (NODES,))


def decisions(compiled: nn.Module) -> list[Decision]:
    reports = [r for v in gqc.explain(compiled).variants for s in v.stages for r in s.reports]
    return [d for r in reports if r.name == "fuse_cross_entropy" for d in r.decisions]


def gradients(losses: list[Tensor], model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(sum(loss.sum() for loss in losses), list(model.parameters())))


def assert_equals_eager(compiled: nn.Module, eager: Task, selected: Tensor) -> None:
    call = (*example(), selected)
    got, want = compiled(*call), eager(*call)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)
    pairs = zip(gradients(got, compiled), gradients(want, eager), eager.named_parameters(), strict=True)
    for gradient, expected, (name, _) in pairs:
        scale = float(expected.abs().max()) if expected.numel() else 0.0
        tolerance = 2e-2 if ".rounded." in name else 1e-4
        torch.testing.assert_close(gradient, expected, rtol=0, atol=tolerance * max(scale, 1e-2))


def test_equals_eager_for_every_loss_and_mask() -> None:
    eager = Task(FUSED_LOSSES)
    compiled = gqc.compile(copy.deepcopy(eager), bits=32)
    for share in (0.3, 0.8, 1.0):
        assert_equals_eager(compiled, eager, torch.rand(NODES) < share)
    assert {d.action for d in decisions(compiled)} == {FUSED}
    assert len(decisions(compiled)) == len(FUSED_LOSSES)


def test_equals_eager_for_indices_and_empty_selections() -> None:
    eager = Task(MEAN)
    compiled = gqc.compile(copy.deepcopy(eager), bits=32)
    for count in (2 * NODES, 20, 0):
        assert_equals_eager(compiled, eager, torch.randint(-NODES, NODES, (count,)))
    assert compiled(*example(), torch.zeros(NODES, dtype=torch.bool))[0].isnan()
    assert {d.action for d in decisions(compiled)} == {FUSED}


def test_others_stay_torchs_with_the_reason() -> None:
    eager = Task({name: loss for name, (loss, _) in UNFUSED_LOSSES.items()})
    compiled = gqc.compile(copy.deepcopy(eager), bits=32)
    assert_equals_eager(compiled, eager, torch.rand(NODES) < 0.5)
    assert len(decisions(compiled)) == len(UNFUSED_LOSSES)
    for decision, (_, reason) in zip(decisions(compiled), UNFUSED_LOSSES.values(), strict=True):
        assert decision.action == UNFUSED
        assert reason in decision.reason
    assert "reads its log-probabilities too" in str(gqc.explain(compiled))


def test_a_label_out_of_range_raises_as_in_torch() -> None:
    compiled = gqc.compile(Task(MEAN), bits=32)
    x, labels = example()
    compiled(x, labels, torch.ones(NODES, dtype=torch.bool))
    labels[3] = CLASSES
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(x, labels, torch.ones(NODES, dtype=torch.bool))


def test_without_the_pass_and_with_compressed_logits() -> None:
    eager = Task(MEAN)
    compiled = gqc.compile(copy.deepcopy(eager), bits=32, save_bits=gqc.SaveBits(8, min_size=0))
    skipping = gqc.compile(copy.deepcopy(eager), bits=32, skip=["fuse_cross_entropy"])
    call = (*example(), torch.rand(NODES) < 0.8)
    want = eager(*call)
    expected = gradients(want, eager)
    for model, tolerance in ((compiled, 0.1), (skipping, 1e-4)):
        got = model(*call)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        for gradient, wanted in zip(gradients(got, model), expected, strict=True):
            torch.testing.assert_close(gradient, wanted, rtol=0, atol=tolerance * float(wanted.abs().max()))
    assert [d.action for d in decisions(compiled)] == [FUSED]
    assert not decisions(skipping)
    (stage,) = gqc.explain(compiled).variants[0].stages
    saved = [s.nbytes() for s in stage.saved if s.dtype is torch.uint8]
    assert saved == [int(call[2].sum()) * CLASSES]
