"""The compiled model behaves as the module that it came from."""

from __future__ import annotations

import copy
import io
from collections import namedtuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gqc

Pair = namedtuple("Pair", "left right")


class MLP(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 4)
        self.dropout = dropout

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        h = F.relu(self.norm(self.first(x))) * scale
        return self.last(F.dropout(h, self.dropout, self.training))

    def width(self) -> int:
        return self.last.in_features


def pair_of(model: nn.Module, **options) -> tuple[nn.Module, nn.Module]:
    eager = copy.deepcopy(model)
    return eager, gqc.compile(model, bits=32, **options)


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(model: nn.Module, compiled: nn.Module, *args, **kwargs) -> None:
    expected, actual = model(*args, **kwargs), compiled(*args, **kwargs)
    torch.testing.assert_close(actual, expected)
    want, got = gradients(model, expected.sin().sum()), gradients(compiled, actual.sin().sum())
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(dict(compiled.named_buffers()), dict(model.named_buffers()))


def test_train_and_eval_are_two_variants():
    model, compiled = pair_of(MLP())
    for rows in (5, 9):
        assert_same(model.train(), compiled.train(), torch.randn(rows, 8))
    for rows in (5, 9):
        assert_same(model.eval(), compiled.eval(), torch.randn(rows, 8))
    assert gqc.state_of(compiled).num_variants == 2


def test_dropout_follows_the_same_random_numbers():
    model, compiled = pair_of(MLP(dropout=0.5))
    x = torch.randn(64, 8)
    torch.manual_seed(3)
    expected = model(x)
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(x), expected)


def test_state_is_shared_with_the_original():
    model = MLP()
    compiled = gqc.compile(model)
    assert isinstance(compiled, MLP)
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert all(a is b for a, b in zip(compiled.parameters(), model.parameters(), strict=True))
    assert compiled.width() == 16
    compiled.eval()
    assert not model.training
    assert not gqc.is_compiled(model)


def test_replaced_and_frozen_parameters_are_seen():
    model, compiled = pair_of(MLP())
    x = torch.randn(6, 8)
    assert_same(model, compiled, x)
    weight = torch.randn(16, 8)
    model.first.weight = nn.Parameter(weight)
    compiled.first.weight = nn.Parameter(weight.clone())
    assert_same(model, compiled, x)
    model.first.weight.requires_grad_(False)
    compiled.first.weight.requires_grad_(False)
    assert_same(model, compiled, x)
    compiled.load_state_dict(MLP().state_dict())
    model.load_state_dict(compiled.state_dict())
    assert_same(model, compiled, x)


def test_state_dict_round_trip():
    model, compiled = pair_of(MLP())
    buffer = io.BytesIO()
    torch.save(compiled.state_dict(), buffer)
    buffer.seek(0)
    other = MLP()
    other.load_state_dict(torch.load(buffer))
    torch.testing.assert_close(other.state_dict(), model.state_dict())


def test_deepcopy_is_compiled_and_independent():
    _, compiled = pair_of(MLP())
    clone = copy.deepcopy(compiled)
    assert gqc.is_compiled(clone)
    with torch.no_grad():
        clone.first.weight.zero_()
    assert compiled.first.weight.abs().sum() > 0
    assert_same(copy.deepcopy(gqc.state_of(clone).model), clone, torch.randn(5, 8))


def test_pickling_keeps_model_and_policy():
    compiled = gqc.compile(MLP(), bits=32)
    buffer = io.BytesIO()
    torch.save(compiled, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert gqc.state_of(loaded).policy == gqc.Policy(bits=32)
    x = torch.randn(5, 8)
    torch.testing.assert_close(loaded(x), compiled(x))


def test_keyword_and_constant_arguments():
    model, compiled = pair_of(MLP())
    x = torch.randn(5, 8)
    assert_same(model, compiled, x, scale=2.0)
    assert_same(model, compiled, x=x, scale=0.5)


def test_hooks_run():
    model, compiled = pair_of(MLP())
    for m in (model, compiled):
        m.first.register_forward_hook(lambda module, args, output: output * 3)
        m.register_forward_hook(lambda module, args, output: output + 1)
    x = torch.randn(5, 8)
    assert_same(model, compiled, x)
    for m in (model, compiled):
        m.first.register_forward_hook(lambda module, args, output: output - 2)
    assert_same(model, compiled, x)


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, inputs: dict[str, Tensor], pair: Pair, *, flag: bool = False):
        h = inputs["x"] @ self.weight
        return {"h": h, "pair": Pair(pair.left + h, pair.right), "rows": h.shape[0], "flag": flag, "none": None}


def test_structured_inputs_and_outputs():
    model, compiled = pair_of(Structured())
    for rows in (3, 6):
        x, left, right = (torch.randn(rows, 4) for _ in range(3))
        expected = model({"x": x}, Pair(left, right), flag=True)
        actual = compiled({"x": x}, Pair(left, right), flag=True)
        torch.testing.assert_close(actual["h"], expected["h"])
        torch.testing.assert_close(actual["pair"].left, expected["pair"].left)
        assert actual["pair"].right is right
        assert isinstance(actual["pair"], Pair)
        assert (actual["rows"], actual["flag"], actual["none"]) == (rows, True, None)
    assert gqc.state_of(compiled).num_variants == 1


def test_gradient_of_inputs():
    model, compiled = pair_of(MLP())
    x = torch.randn(5, 8)
    grads = []
    for m in (model, compiled):
        leaf = x.clone().requires_grad_()
        m(leaf).sin().sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads)


def test_no_grad_and_inference_mode():
    model, compiled = pair_of(MLP().eval())
    x = torch.randn(5, 8)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out = compiled(x)
            torch.testing.assert_close(out, model(x))
            assert not out.requires_grad
    assert compiled(x).requires_grad


def test_autocast_bf16():
    model, compiled = pair_of(MLP())
    x = torch.randn(32, 8)
    with torch.autocast("cpu", torch.bfloat16):
        expected, actual = model(x), compiled(x)
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
    assert_same(model, compiled, x)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad])
def test_training_loop_matches(optimizer):
    model, compiled = pair_of(MLP())
    x, y = torch.randn(20, 8), torch.randint(4, (20,))
    losses = []
    for m in (model, compiled):
        opt = optimizer(m.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for _ in range(3):
            opt.zero_grad()
            loss = F.cross_entropy(m(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(m.parameters(), 0.5)
            scaler.step(opt)
            scaler.update()
        losses.append(loss.detach())
    torch.testing.assert_close(*losses)


def test_to_another_dtype_compiles_again():
    model, compiled = pair_of(MLP())
    assert_same(model, compiled, torch.randn(5, 8))
    assert compiled.to(torch.float64) is compiled
    assert_same(model.to(torch.float64), compiled, torch.randn(5, 8, dtype=torch.float64))


def test_double_backward_is_refused():
    compiled = gqc.compile(MLP(), bits=32)
    x = torch.randn(5, 8, requires_grad=True)
    with pytest.raises(gqc.GqcError, match="no second derivative"):
        torch.autograd.grad(compiled(x).sum(), x, create_graph=True)


def test_int8_trains_and_seeds_repeat():
    x, y = torch.randn(256, 8), torch.randint(4, (256,))
    start = MLP().state_dict()

    def train(**options) -> list[float]:
        torch.manual_seed(0)
        model = MLP()
        model.load_state_dict(start)
        compiled = gqc.compile(model, min_size=0, **options)
        opt = torch.optim.Adam(compiled.parameters(), lr=0.01)
        losses = []
        for _ in range(5):
            opt.zero_grad()
            loss = F.cross_entropy(compiled(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        return losses

    exact = train(bits=32)
    int8 = train()
    assert int8 == train()
    assert int8 != exact
    assert int8 == pytest.approx(exact, rel=0.05)
    assert train(seed=5) == train(seed=5)
    assert train(seed=5) != train(seed=6)


def test_compiling_twice_replaces_the_policy():
    model = MLP()
    compiled = gqc.compile(gqc.compile(model, bits=32), rounding="nearest")
    assert gqc.state_of(compiled).model is model
    assert gqc.state_of(compiled).policy == gqc.Policy(rounding="nearest")


def test_wrong_options_name_near_misses():
    with pytest.raises(gqc.PolicyError, match="did you mean 'rounding'"):
        gqc.compile(MLP(), roundin="nearest")
    with pytest.raises(gqc.PolicyError, match=r"Policy\.bits=9"):
        gqc.compile(MLP(), bits=9)
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        gqc.compile(lambda x: x)
    with pytest.raises(TypeError, match=r"gqc\.compile"):
        gqc.explain(MLP())
