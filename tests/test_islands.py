"""Parts of a model that run eagerly between compiled ones: hooks, layers that no graph can hold, caches."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gqc
from tests.same import assert_same, one_warning, pair, step


class MLP(nn.Module):
    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(8, 16), inner or nn.Identity(), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(self.first(x).relu()))


class ViaNumpy(nn.Module):
    """Scales by a number that it reads from its own activations."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(h) * float(h.detach().numpy().std())


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        return h * self.calls


def rows(n: int = 20) -> Tensor:
    return torch.randn(n, 8)


def islands(compiled: nn.Module) -> list[str]:
    return [island.name for variant in gqc.explain(compiled).variants for island in variant.islands]


def test_a_layer_that_cannot_be_captured_trains_between_compiled_ones() -> None:
    eager, compiled = pair(MLP(ViaNumpy()))
    optimizers = [torch.optim.SGD(m.parameters(), 0.01) for m in (eager, compiled)]
    for n in (20, 7, 20):
        assert_same(eager, compiled, rows(n))
        for optimizer in optimizers:
            optimizer.step()
    assert islands(compiled) == ["inner"]
    assert compiled.inner.calls == 3
    (variant,) = gqc.explain(compiled).variants
    assert "NumPy" in variant.islands[0].reason


def test_int8_on_both_sides_of_an_island() -> None:
    eager, compiled = pair(MLP(ViaNumpy()), bits=8, min_size=0)
    x = rows(200)
    (expected, want), (actual, got) = step(eager, x), step(compiled, x)
    assert 0 < (actual - expected).norm() < 0.1 * expected.norm()
    for name, gradient in want.items():
        assert (got[name] - gradient).norm() < 0.2 * gradient.norm() + 1e-3, name


def test_a_layer_that_counts_its_calls() -> None:
    eager, compiled = pair(MLP(Counts()))
    for _ in range(4):
        assert_same(eager, compiled, rows())
        assert compiled.inner.calls == eager.inner.calls
    assert islands(compiled) == ["inner"]


def test_what_the_first_call_caches_does_not_keep_a_layer_out_of_the_graph() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale: tuple[Tensor, ...] | None = None

        def forward(self, h: Tensor) -> Tensor:
            if self.scale is None:
                self.scale = (h.detach().abs().mean(0) + 1,)
            return h / self.scale[0]

    eager, compiled = pair(MLP(Cached()))
    for n in (20, 7, 20):
        assert_same(eager, compiled, rows(n))
    torch.testing.assert_close(compiled.inner.scale, eager.inner.scale)
    assert (gqc.state_of(compiled).num_variants, islands(compiled)) == (1, [])
    eager.inner.scale = compiled.inner.scale = None
    for n in (7, 20):
        assert_same(eager, compiled, rows(n))


def test_lazy_layers_draw_what_they_draw_in_eager() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm, self.dropout = nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.dropout(self.norm(self.linear(x)))

    eager, compiled = Lazy(), gqc.compile(Lazy(), bits=32)
    for n in (20, 7, 20):
        assert_same(eager, compiled, rows(n))
    assert gqc.state_of(compiled).num_variants == 1


def test_a_scripted_layer() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(nn.Sequential(nn.Linear(16, 16), nn.ReLU()))
    eager = MLP(scripted)
    compiled = gqc.compile(eager, bits=32)
    for n in (20, 7):
        assert_same(eager, compiled, rows(n))
    assert islands(compiled) == ["inner"]


def test_a_decision_on_what_an_island_computes() -> None:
    class Decides(MLP):
        def forward(self, x: Tensor) -> Tensor:
            h = self.inner(self.first(x).relu())
            return self.last(h) if h.sum() > 0 else h

    eager, compiled = pair(Decides(ViaNumpy()))
    with one_warning("decision depends on 'inner', which runs eagerly"):
        for _ in range(3):
            assert_same(eager, compiled, rows())
    assert compiled.inner.calls == 3


def test_dropout_that_decides_is_not_repeated() -> None:
    class Decides(MLP):
        def forward(self, x: Tensor) -> Tensor:
            h = self.inner(self.first(x))
            return self.last(h) if h[0, 0] == 0 else h

    eager, compiled = pair(Decides(nn.Dropout(0.5)))
    with one_warning("random numbers"):
        for _ in range(4):
            assert_same(eager, compiled, rows())


# ---- hooks


Register = Callable[[nn.Module, list[Any]], Any]
HOOKS: dict[str, Register] = {
    "forward": lambda m, log: m.register_forward_hook(lambda m, args, out: (log.append(out.shape), out * 2)[1]),
    "forward, no result": lambda m, log: m.register_forward_hook(lambda m, args, out: log.append(out.sum().item())),
    "forward, in place": lambda m, log: m.register_forward_hook(lambda m, args, out: (out.mul_(3), None)[1]),
    "forward with keywords": lambda m, log: m.register_forward_hook(lambda m, a, k, out: out * 2, with_kwargs=True),
    "forward, on gradient": lambda m, log: m.register_forward_hook(
        lambda m, args, out: out.register_hook(lambda grad: (log.append(grad.shape), grad * 3)[1]) and None
    ),
    "before forward": lambda m, log: m.register_forward_pre_hook(lambda m, args: (log.append(1), (args[0] * 2,))[1]),
    "backward": lambda m, log: m.register_full_backward_hook(
        lambda m, ins, outs: (log.append(outs[0].shape), tuple(None if g is None else g * 2 for g in ins))[1]
    ),
    "before backward": lambda m, log: m.register_full_backward_pre_hook(lambda m, outs: tuple(g * 2 for g in outs)),
}


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize(
    ("kind", "where"), [(kind, where) for kind in HOOKS for where in ("inner", "") if where or "in place" not in kind]
)
def test_hooks_run_at_each_call(kind: str, where: str) -> None:
    eager, compiled = pair(MLP(nn.Linear(16, 16)))
    logs: list[list[Any]] = [[], []]
    handles = [
        HOOKS[kind](m.get_submodule(where) if where else m, log) for m, log in zip((eager, compiled), logs, strict=True)
    ]
    for n in (20, 7, 20):
        assert_same(eager, compiled, rows(n))
    assert logs[1][-3:] == pytest.approx(logs[0][-3:]) if kind == "forward, no result" else logs[1][-3:] == logs[0][-3:]
    assert gqc.state_of(compiled).fallbacks == {}
    expected = [] if not where else [where if "backward" in kind else f"hook of {where}"]
    assert islands(compiled) == expected
    for handle in handles:
        handle.remove()
    assert_same(eager, compiled, rows())
    assert islands(compiled) == expected
    assert gqc.state_of(compiled).num_variants == 2


def test_a_hook_never_gets_a_fake_tensor() -> None:
    seen: list[Tensor] = []
    _, compiled = pair(MLP(nn.Linear(16, 16)))
    compiled.inner.register_forward_hook(lambda module, args, out: seen.append(out))
    for n in (20, 7):
        compiled(rows(n))
    assert all(type(x) is Tensor for x in seen)
    assert [x.shape[0] for x in seen[-2:]] == [20, 7]


def test_weight_norm_stays_in_the_graph() -> None:
    eager, compiled = pair(MLP(nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))))
    for n in (20, 7):
        assert_same(eager, compiled, rows(n))
    assert islands(compiled) == []


# ---- compiled models inside models


def test_a_compiled_layer_of_an_eager_model() -> None:
    eager = MLP(MLPBlock())
    other, inner = pair(eager)[0], gqc.compile(eager.inner, bits=32)
    other.load_state_dict(eager.state_dict())
    eager.inner = inner
    for n in (20, 7):
        assert_same(other, eager, rows(n))
    assert gqc.state_of(inner).num_variants == 1


def test_a_compiled_layer_of_a_compiled_model() -> None:
    model = MLP(gqc.compile(MLPBlock(), bits=32))
    reference = MLP(MLPBlock())
    reference.load_state_dict(model.state_dict())
    compiled = gqc.compile(model, bits=32)
    for n in (20, 7):
        assert_same(reference, compiled, rows(n))
    assert (gqc.state_of(compiled).num_variants, gqc.state_of(model.inner).num_variants) == (1, 0)
    assert list(compiled.state_dict()) == list(reference.state_dict())


def test_a_compiled_layer_inside_an_island() -> None:
    class Outer(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, h: Tensor) -> Tensor:
            return self.inner(h) * float(h.detach().numpy().std())

    reference, model = MLP(Outer(MLPBlock())), MLP(Outer(gqc.compile(MLPBlock(), bits=32)))
    reference.load_state_dict(model.state_dict())
    compiled = gqc.compile(model, bits=32)
    for n in (20, 7):
        assert_same(reference, compiled, rows(n))
    assert islands(compiled) == ["inner"]
    assert gqc.state_of(model.inner.inner).num_variants == 1


class MLPBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.norm(self.linear(h)).relu()
