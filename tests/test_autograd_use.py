"""What autograd lets a user do around a model: functions of one's own, several backwards, checkpoints, transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dgl import DGLGraph
from dgl import add_self_loop as with_self_loops
from dgl import graph as graph_of
from dgl.nn import GraphConv
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import gqc
from gqc.runtime.buffers import POOL
from tests.same import assert_same, one_warning, pair, step


class GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = GraphConv(8, 16), GraphConv(16, 4)

    def forward(self, graph: DGLGraph, x: Tensor) -> Tensor:
        return self.conv2(graph, self.conv1(graph, x).relu())


class Apply(nn.Module):
    """A function between two layers."""

    def __init__(self, function: Callable[[Tensor], Any] = torch.relu) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(8, 8), nn.Linear(8, 8), function

    def forward(self, x: Tensor) -> Any:
        return self.last(self.function(self.first(x)))


def rows(n: int = 12) -> Tensor:
    return torch.randn(n, 8)


def a_graph(nodes: int = 40) -> DGLGraph:
    return with_self_loops(graph_of(tuple(torch.randint(nodes, (2, 4 * nodes))), num_nodes=nodes))


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters()}


# ---- functions with a backward of their own


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * x * 100, None


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class WithContext(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0] * 5


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 7


@pytest.mark.parametrize("function", [lambda h: Scaled.apply(h, 2.0), StraightThrough.apply, WithContext.apply])
def test_the_backward_of_a_function_is_kept(function: Callable[[Tensor], Tensor]) -> None:
    eager, compiled = pair(Apply(lambda h: function(h)))
    for n in (12, 5):
        assert_same(eager, compiled, rows(n))
    assert gqc.state_of(compiled).fallbacks == {}
    int8 = gqc.compile(eager, min_size=0)
    x = rows(200)
    want, got = step(eager, x)[1], step(int8, x)[1]
    for name, gradient in want.items():
        assert (got[name] - gradient).norm() < 0.3 * gradient.norm() + 1e-3, name


def test_a_function_that_changes_its_input() -> None:
    eager, compiled = pair(Apply(lambda h: InPlace.apply(h + 0)))
    with one_warning(r"autograd\.Function"):
        for n in (12, 5):
            assert_same(eager, compiled, rows(n))


# ---- several forwards and backwards


@pytest.mark.parametrize("bits", [8, 32])
def test_backward_twice(bits: int) -> None:
    models = pair(GCN(), bits=bits, min_size=0)
    graph, x = a_graph(), rows(40)
    twice = []
    for model in models:
        loss = model(graph, x).sin().sum()
        loss.backward(retain_graph=True)
        once = gradients(model)
        loss.backward()
        torch.testing.assert_close(gradients(model), {name: 2 * gradient for name, gradient in once.items()})
        twice.append(gradients(model))
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
    if bits == 32:
        torch.testing.assert_close(*twice, rtol=1e-4, atol=1e-4)


def test_several_forwards_before_one_backward() -> None:
    models = pair(GCN())
    calls = [(a_graph(n), rows(n)) for n in (40, 25)]
    for model in models:
        first, second, third = model(*calls[0]), model(*calls[1]), model(*calls[0])
        third.sum().backward()
        (first.sin().sum() + second.cos().sum()).backward()
    torch.testing.assert_close(gradients(models[1]), gradients(models[0]), rtol=1e-4, atol=1e-4)


def test_accumulated_gradients() -> None:
    models = pair(GCN())
    calls = [(a_graph(n), rows(n)) for n in (40, 25)]
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for set_to_none in (True, False, True):
            for call in calls:
                (model(*call).sin().mean() / 2).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none)
    torch.testing.assert_close(models[1].state_dict(), models[0].state_dict(), rtol=1e-4, atol=1e-4)


def test_outputs_of_which_one_has_no_gradient() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return self.first(x), self.last(x), x.argmax(1)

    eager, compiled = pair(Two())
    x = rows()
    for model in (eager, compiled):
        first, last, index = model(x)
        first.retain_grad()
        first.register_hook(lambda grad: grad * 2)
        first.sum().backward()
        assert not index.requires_grad
        assert last.requires_grad
    torch.testing.assert_close(compiled.first.weight.grad, eager.first.weight.grad)


def test_a_changed_output_does_not_change_the_model() -> None:
    eager, compiled = pair(Apply())
    x = rows()
    for model in (eager, compiled):
        model.zero_grad()
        out = model(x)
        out.add_(1)
        out.sum().backward()
    torch.testing.assert_close(gradients(compiled), gradients(eager))


# ---- what changes between forward and backward


@pytest.mark.parametrize("bits", [8, 32])
def test_an_optimizer_step_before_the_backward_is_noticed(bits: int) -> None:
    _, compiled = pair(Apply(), bits=bits, min_size=0)
    optimizer = torch.optim.SGD(compiled.parameters(), 0.1)
    loss = compiled(rows(40)).sin().sum()
    compiled(rows(40)).sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_input_changed_before_the_backward() -> None:
    eager, compiled = pair(Apply())
    x = rows(40)
    loss = compiled(x).sum()
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    x = rows(400)
    int8 = gqc.compile(eager, min_size=0, keep_output_layer=False)
    exact = step(eager, x)[1]
    loss = (out := int8(x)).sin().mul(0.7).add(out).sum()
    x.add_(1)  # what the backward reads is the int8 copy
    int8.zero_grad()
    loss.backward()
    for name, gradient in gradients(int8).items():
        assert (gradient - exact[name]).norm() < 0.2 * exact[name].norm(), name


# ---- transforms


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_around_a_compiled_model(reentrant: bool) -> None:
    models = pair(GCN())
    graph, x = a_graph(), rows(40)
    results = []
    for model in models:
        leaf = x.clone().requires_grad_()
        checkpoint(lambda x, model=model: model(graph, x), leaf, use_reentrant=reentrant).sin().sum().backward()
        results.append((gradients(model), leaf.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
    assert gqc.state_of(models[1]).fallbacks == {}


def test_checkpointing_rounds_alike_in_both_forwards() -> None:
    compiled = gqc.compile(GCN(), min_size=0)
    graph, x = a_graph(), rows(40)
    results = []
    for run in (compiled, lambda *args: checkpoint(compiled, *args, use_reentrant=False)):
        torch.manual_seed(3)
        compiled.zero_grad()
        out = run(graph, x)
        out.sin().sum().backward()
        results.append((out.detach(), gradients(compiled)))
    torch.testing.assert_close(*results)


def test_saved_tensor_hooks_see_the_call_and_not_the_compilation() -> None:
    eager, compiled = pair(Apply())
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (packed.append(x), x)[1], lambda x: x):
        out = compiled(x := rows())
    assert all(type(tensor) in (Tensor, nn.Parameter) for tensor in packed)
    out.sum().backward()
    eager(x).sum().backward()
    torch.testing.assert_close(gradients(compiled), gradients(eager))


def test_other_parameters_for_one_call() -> None:
    eager, compiled = pair(Apply())
    x = rows()
    assert_same(eager, compiled, x)
    base = {name: p.detach().clone().requires_grad_() for name, p in eager.named_parameters()}
    results = []
    for model in (eager, compiled):
        others = {name: p * 2 for name, p in base.items()}
        out = torch.func.functional_call(model, others, (x,))
        results.append((out, torch.autograd.grad(out.sin().sum(), list(base.values()))))
    torch.testing.assert_close(*results)


def test_function_transforms_run_eagerly() -> None:
    eager, compiled = pair(Apply())
    x, parameters = rows(), {name: p.detach() for name, p in eager.named_parameters()}

    def loss(model: nn.Module) -> Callable[[dict[str, Tensor]], Tensor]:
        return lambda values: torch.func.functional_call(model, values, (x,)).sin().sum()

    with one_warning(r"RuntimeError|functorch"):
        actual = torch.func.grad(loss(compiled))(parameters)
    torch.testing.assert_close(actual, torch.func.grad(loss(eager))(parameters))
    assert_same(eager, compiled, x)


def test_anomaly_mode_and_hooks_on_parameters() -> None:
    eager, compiled = pair(Apply())
    counts = [0, 0]
    for i, model in enumerate((eager, compiled)):

        def count(_: Tensor, i: int = i) -> None:
            counts[i] += 1

        model.first.weight.register_hook(lambda grad: grad * 2)
        model.last.weight.register_post_accumulate_grad_hook(count)
    with torch.autograd.set_detect_anomaly(True):
        assert_same(eager, compiled, rows())
        assert_same(eager, compiled, rows(5))
    assert counts == [2, 2]


# ---- memory of the backward


class _InUse(TorchDispatchMode):
    """Notes how many bytes of the pool are in use after each product."""

    def __init__(self) -> None:
        super().__init__()
        self.after: list[int] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        if op in (torch.ops.aten.mm.default, torch.ops.gqc.qgemm.default):
            self.after.append(POOL.nbytes()[0])
        return result


@pytest.mark.parametrize("policy", [{"bits": 32}, {"min_size": 0}])
def test_the_backward_frees_each_saved_value_after_its_last_reader(policy: dict[str, Any]) -> None:
    layers = [layer for _ in range(3) for layer in (nn.Linear(128, 128), nn.ReLU())]
    model = gqc.compile(nn.Sequential(*layers, nn.Linear(128, 128)), **policy)
    x = torch.randn(8192, 128)
    grad = torch.randn_like(model(x))
    before = POOL.nbytes()[0]
    for keep in (True, False):
        out = model(x)
        saved = POOL.nbytes()[0] - before - out.nbytes
        assert saved >= 3 * x.numel()
        with _InUse() as in_use:
            out.backward(grad, retain_graph=keep)
        left = in_use.after[-1] - before - out.nbytes
        assert (left >= saved) == keep
        if keep:
            once = gradients(model)
            model.zero_grad()
            out.backward(grad)
            torch.testing.assert_close(gradients(model), once)
        del out
        assert POOL.nbytes()[0] == before
