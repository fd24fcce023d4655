"""A rewritten model gives the losses, gradients and buffers of the compiled one, to the bit, over several steps."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gqc
from gqc.rewrite.state import LARGEST_LITERAL
from tests.rewrite.conftest import Load
from tests.rewrite.zoo import CASES, Several, with_column
from tests.ruff import ruff_complaints


def train(model: nn.Module, calls: list[tuple[Any, ...]], steps: int = 4) -> dict[str, Tensor]:
    """Everything that a few steps on alternating graphs, and an evaluation, compute."""
    seen: dict[str, Tensor] = {}
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for step in range(steps):
        torch.manual_seed(step)
        out = model.train()(*calls[step % len(calls)])
        loss = (out.sin() * out).sum()
        optimizer.zero_grad()
        loss.backward()
        seen[f"loss {step}"] = loss.detach()
        seen |= {f"gradient {step} {n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
    with torch.no_grad():
        seen |= {f"evaluation {i}": model.eval()(*call) for i, call in enumerate(calls)}
    return seen | {f"state {name}": value.clone() for name, value in model.state_dict().items()}


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("name", CASES)
def test_equals_the_compiled_model_to_the_bit(name: str, load: Load, tmp_path: Path) -> None:
    case = CASES[name]
    model, calls = case.make(), [case.call(1), case.call(2)]
    source = gqc.rewrite(model, calls[0], min_size=0)
    assert ruff_complaints(source, tmp_path) == ""
    rewritten = getattr(load(source), type(model).__name__)()
    rewritten.load_state_dict(model.state_dict(), strict=True)
    compiled = gqc.compile(copy.deepcopy(model), min_size=0)
    expected = train(compiled, calls)
    assert not gqc.state_of(compiled).fallbacks
    assert "int8" in source
    assert_equal(train(rewritten, calls), expected)


@pytest.mark.parametrize("bits", [4, "auto"])
def test_other_widths(bits: int | str, load: Load) -> None:
    case = CASES["gcn"]
    model, calls = case.make(), [case.call(1)]
    rewritten = load(gqc.rewrite(model, calls[0], min_size=0, bits=bits)).GCN()
    rewritten.load_state_dict(model.state_dict())
    compiled = gqc.compile(copy.deepcopy(model), min_size=0, bits=bits)
    assert_equal(train(rewritten, calls, 2), train(compiled, calls, 2))


def test_bits_32_is_full_precision_with_torchs_dropout(load: Load) -> None:
    case = CASES["gat"]
    model, calls = case.make(), [case.call(1)]
    source = gqc.rewrite(model, calls[0], bits=32)
    assert "ops.quantize" not in source
    rewritten = load(source).GAT()
    rewritten.load_state_dict(model.state_dict())
    assert_equal(train(rewritten, calls, 2), train(gqc.compile(copy.deepcopy(model), bits=32), calls, 2))


def test_autocast_is_written_down_as_it_was(load: Load) -> None:
    case = CASES["sage"]
    model, calls = case.make(), [case.call(1)]
    with torch.autocast("cpu", torch.bfloat16):
        rewritten = load(gqc.rewrite(model, calls[0], min_size=0)).SAGE()
        rewritten.load_state_dict(model.state_dict())
        assert_equal(train(rewritten, calls, 2), train(gqc.compile(copy.deepcopy(model), min_size=0), calls, 2))
    with pytest.raises(gqc.InputError, match="autocast is off"):
        rewritten.train()(*calls[0])


def test_fixed_seed_counts_steps(load: Load) -> None:
    case = CASES["sage"]
    model, calls = case.make(), [case.call(1)]
    rewritten = load(gqc.rewrite(model, calls[0], min_size=0, seed=7)).SAGE()
    rewritten.load_state_dict(model.state_dict())
    compiled = gqc.compile(copy.deepcopy(model), min_size=0, seed=7)
    assert_equal(train(rewritten, calls, 3), train(compiled, calls, 3))


def test_all_four_ways_of_calling(load: Load) -> None:
    case = CASES["sage"]
    model, call = case.make(), case.call(1)
    modes = ("train", "eval", "eval-grad", "train-no-grad")
    rewritten = load(gqc.rewrite(model, call, min_size=0, modes=modes)).SAGE()
    rewritten.load_state_dict(model.state_dict())
    compiled = gqc.compile(copy.deepcopy(model), min_size=0)
    for training in (True, False):
        for grad in (True, False):
            results = []
            for each in (rewritten.train(training), compiled.train(training)):
                torch.manual_seed(3)
                with torch.set_grad_enabled(grad):
                    out = each(*call)
                assert out.requires_grad == grad
                results.append(out)
            assert torch.equal(*results)


def test_columns_constants_effects_ties_and_frozen_parameters(load: Load) -> None:
    model = Several()
    (graph,) = with_column(1)
    rewritten = load(gqc.rewrite(model, (graph,), {"factor": 2.0}, min_size=0)).Several()
    rewritten.load_state_dict(model.state_dict(), strict=True)
    assert rewritten.third.weight is rewritten.second.weight
    assert not rewritten.second.bias.requires_grad
    compiled = gqc.compile(copy.deepcopy(model), min_size=0)
    results, graphs = [], []
    for each in (rewritten, compiled):
        (graph,) = with_column(2)
        graphs.append(graph)
        torch.manual_seed(0)
        out = each(graph, factor=2.0)
        out["out"].sum().backward()
        results.append(out)
    mine, theirs = results
    assert torch.equal(mine["out"], theirs["out"])
    assert all(map(torch.equal, mine["pair"], theirs["pair"]))
    assert mine["n"] == 3
    assert torch.equal(graphs[0].ndata["hidden"], graphs[1].ndata["hidden"])
    assert torch.equal(rewritten.last, compiled.last)
    for (name, p), q in zip(rewritten.named_parameters(), compiled.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        assert p.grad is None or torch.equal(p.grad, q.grad), name
    with pytest.raises(gqc.InputError, match="factor"):
        rewritten(with_column(2)[0], factor=3.0)


class Scaled(nn.Module):
    """Multiplies by a tensor that no state_dict holds; a parameter's name starts with an underscore."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._weight = nn.Parameter(torch.randn(width, width))
        self.table = torch.randn(width)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self._weight * self.table


def test_tensors_that_no_state_dict_holds(load: Load) -> None:
    model, x = Scaled(LARGEST_LITERAL), torch.randn(20, LARGEST_LITERAL)
    rewritten = load(gqc.rewrite(model, (x,))).Scaled()
    rewritten.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(rewritten(x), model(x))
    with pytest.raises(gqc.RewriteError, match=f"{LARGEST_LITERAL + 1} elements"):
        gqc.rewrite(Scaled(LARGEST_LITERAL + 1), (x.new_zeros(20, LARGEST_LITERAL + 1),))


@pytest.mark.parametrize(("name", "bits"), [("sage", 8), ("sage", 32), ("gat", 32)])
def test_saved_activations_are_compressed_as_in_the_compiled_model(name: str, bits: int, load: Load) -> None:
    case = CASES[name]
    model, calls = case.make(), [case.call(1)]
    options = {"bits": bits, "min_size": 0, "save_bits": gqc.SaveBits(2, min_size=0)}
    source = gqc.rewrite(model, calls[0], **options)
    assert "ops.compress_rows(" in source
    rewritten = getattr(load(source), type(model).__name__)()
    rewritten.load_state_dict(model.state_dict())
    assert_equal(train(rewritten, calls, 2), train(gqc.compile(copy.deepcopy(model), **options), calls, 2))
