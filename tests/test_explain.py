"""gqc.explain says what was found, quantized, shared, kept and saved, and why."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gqc
from gqc.errors import FallbackWarning
from gqc.explain import explain


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.second = nn.Linear(64, 64)
        self.last = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.second(F.relu(self.first(x))))
        return self.last(h)


def compiled(model: nn.Module, *args: Tensor, **options) -> nn.Module:
    result = gqc.compile(model, min_size=0, **options)
    result(*args).sum().backward()
    return result


def test_decisions_of_every_primitive(capsys):
    explanation = explain(compiled(MLP(), torch.randn(50, 32)))
    (variant,) = explanation.variants
    (stage,) = variant.stages
    found = {d.node for d in stage.decisions("found")}
    quantized, kept = ({d.node for d in stage.decisions(action)} for action in ("quantized", "kept"))
    assert (len(found), len(quantized), len(kept)) == (8, 5, 3)
    assert quantized | kept == found
    assert all(d.reason for d in stage.decisions("kept"))
    assert {d.module for d in stage.decisions("kept")} == {"last"}
    assert 0 < stage.saved_bytes < stage.saved_bytes_full_precision

    printed = " ".join(capsys.readouterr().out.split())
    assert printed == " ".join(str(explanation).split())
    assert "MLP, variant 1 of 1 (first call with inputs of this kind)" in printed
    assert "8 primitives found, 5 quantized, 3 kept in full precision" in printed
    assert "kept forward last addmm_2 gemm nt output layer: no primitive follows" in printed
    assert "shared input_0: one int8 copy for" in printed


def test_saved_bytes_are_those_of_the_tensors():
    explanation = explain(compiled(MLP(), torch.randn(50, 32), bits=32))
    (stage,) = explanation.variants[0].stages
    relus, masks = 2 * 50 * 64 * 4, 2 * 50 * 64 // 8
    assert stage.saved_bytes_full_precision == relus
    assert stage.saved_bytes == relus + masks


def test_recompilations_say_why():
    model = compiled(MLP(), torch.randn(50, 32))
    with torch.no_grad():
        model(torch.randn(50, 32))
    explanation = explain(model)
    assert [v.why for v in explanation.variants] == ["first call with inputs of this kind"] * 2
    assert explanation.variants[1].stages[0].saved == ()


class Undecidable(nn.Module):
    """Python that nobody can record: it looks at the call stack of the interpreter."""

    def forward(self, x: Tensor) -> Tensor:
        if type(x) is not Tensor:
            raise TypeError("a plain tensor, please")
        return x * 2


def test_fallbacks_say_why(capsys):
    model = gqc.compile(Undecidable())
    with pytest.warns(FallbackWarning):
        model(torch.randn(3))
    explanation = explain(model)
    (fallback,) = explanation.fallbacks
    assert "a plain tensor, please" in fallback.reason
    assert "runs in eager full precision" in capsys.readouterr().out


def test_before_the_first_call():
    explanation = explain(gqc.compile(MLP()))
    assert explanation.variants == ()
    assert "MLP has not run yet" in str(explanation)


def test_a_model_that_was_not_compiled():
    with pytest.raises(TypeError, match=r"MLP was not compiled; pass the result of gqc\.compile"):
        explain(MLP())


class Normalized(nn.Module):
    """A layer of message passing by torch alone, which needs the degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(32, 16)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        degree = torch.zeros(x.shape[0], device=x.device).index_add(0, target, torch.ones(target.shape[0]))
        h = torch.zeros(x.shape[0], 16).index_add(0, target, self.lin(x)[source])
        return self.lin.weight.sum() * h / degree.clamp(min=1)[:, None]


def test_structure_is_no_island():
    explanation = explain(compiled(Normalized(), torch.randn(50, 32), torch.randint(50, (2, 200))))
    (variant,) = explanation.variants
    assert variant.islands == []
    assert "structure: depends on integer arguments only, computed once a graph" in str(explanation)
    assert "eager island" not in str(explanation)


def test_copies_of_arguments_are_told_apart():
    explanation = explain(compiled(MLP(), torch.randn(50, 32)))
    assert f"{(50 * 32 + 64 * 64) / 1024:.1f} KiB are int8 copies of arguments" in " ".join(str(explanation).split())
    assert {c.tensor for c in explanation.variants[0].stages[0].lifetimes} >= {"input_0"}
