"""What the tracer must get right in plain PyTorch: sizes, values, gradients, side effects and failures."""

from __future__ import annotations

import gc
import random
import weakref
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_like_eager, run_captured
from torch import Tensor, nn
from torch.nn import functional as F

from gqc.capture import capture, read_call
from gqc.errors import CaptureError
from gqc.joint import build_joint


class Function(nn.Module):
    """A linear layer, then any function of its result and the other arguments."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.fn = fn

    def forward(self, x: Tensor, *rest: Any, **named: Any) -> Any:
        return self.fn(self.linear(x), *rest, **named)


def rows(n: int, width: int = 4) -> Tensor:
    return torch.randn(n, width)


def check(model: nn.Module, *calls: tuple[Any, ...]) -> Any:
    """Capture on the first call; compare with eager on all."""
    captured = capture(model, calls[0])
    for call in calls:
        assert_like_eager(captured, model, call, {})
    return captured


# ---- sizes


@pytest.mark.parametrize(
    "fn",
    [
        lambda h: h / len(h),
        lambda h: h + torch.tensor([h.size(0)]),
        lambda h: h + torch.tensor(h.size(0), dtype=torch.float32),
        lambda h: h * torch.tensor([[1, h.shape[0]], [2, 3]]).sum(),
        lambda h: torch.cat([h, torch.zeros(h.size(0), 2)], 1).reshape(-1),
        lambda h: h.new_zeros(2 * len(h) + 1, 3).sum() + h[: len(h) // 2],
        lambda h: h / int(h.shape[0]) ** 0.5,
        lambda h: (h * h.numel(), [h.size(0), 3 * len(h) - 1]),
        lambda h: h.T @ h.mT.H + torch.view_as_complex(h.reshape(-1, 2)).imag.sum(),
    ],
)
def test_sizes_stay_symbolic(fn: Callable[[Tensor], Any]) -> None:
    captured = check(Function(fn), (rows(5),), (rows(9),))
    assert captured.guards.check([rows(31)]) is None


def test_a_size_that_python_fixed_is_guarded() -> None:
    model = Function(lambda h: sum(h[i] for i in range(h.size(0))))
    captured = check(model, (rows(5),))
    assert "5" in captured.guards.check([rows(6)])


def test_sizes_that_must_be_equal_are_guarded() -> None:
    captured = check(Function(lambda h, y: h * y), (rows(5), rows(5, 6)), (rows(8), rows(8, 6)))
    assert captured.guards.check([rows(8), rows(7, 6)]) is not None


def test_equal_sizes_are_not_merged_by_chance() -> None:
    check(Function(lambda h, y: (h, y.sum(0))), (rows(5), rows(5)), (rows(6), rows(8)))


def test_equal_sizes_that_an_equation_ties_are_one() -> None:
    def twice(h: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return torch.cat([h, h]) * torch.cat([y, z])

    equal = check(Function(twice), (rows(5), rows(5, 6), rows(5, 6)), (rows(8), rows(8, 6), rows(8, 6)))
    assert equal.guards.check([rows(8), rows(7, 6), rows(9, 6)]) is not None
    (product,) = (n for n in equal.graph.graph.nodes if getattr(n.target, "__name__", n.target) == "mul")
    assert len(product.meta["val"].shape[0].node.expr.free_symbols) == 1
    other = check(Function(twice), (rows(8), rows(7, 6), rows(9, 6)), (rows(8), rows(6, 6), rows(10, 6)))
    assert other.guards.check([rows(8), rows(8, 6), rows(8, 6)]) is None
    assert other.guards.check([rows(8), rows(7, 6), rows(8, 6)]) is not None


def test_a_branch_on_a_size_is_guarded() -> None:
    model = Function(lambda h: h * 2 if h.size(0) > 6 else h)
    assert check(model, (rows(5),), (rows(4),)).guards.check([rows(7)]) is not None
    assert check(model, (rows(7),), (rows(40),)).guards.check([rows(6)]) is not None


@pytest.mark.parametrize("n", [0, 1])
def test_no_rows_and_one_row_have_captures_of_their_own(n: int) -> None:
    model = Function(lambda h: torch.zeros(3, 6).index_add(0, torch.arange(len(h)) % 3, h))
    check(model, (rows(n),))
    assert capture(model, (rows(5),)).guards.check([rows(n)]) is not None


@pytest.mark.parametrize(
    "fn",
    [
        lambda h, i: h[i > 2],
        lambda h, i: h[i.nonzero().view(-1)].sum(0),
        lambda h, i: torch.zeros(int(i.max()) + 1, 6).index_add(0, i, h),
        lambda h, i: h.new_zeros(i.max().item() + 1, 6).index_add_(0, i, h),
        lambda h, i: i.unique().float(),
        lambda h, i: h.repeat_interleave(i, dim=0),
        lambda h, i: torch.bincount(i).float() + h.sum(),
        lambda h, i: h[i[0] : i[1] + 3] * 2,
        lambda h, i: h.masked_select(h > 0),
        lambda h, i: F.one_hot(i, 9).float() @ torch.ones(9, 6) + h,
        lambda h, i: h[: i[1:2].tolist()[0] - 1],
    ],
)
def test_sizes_that_depend_on_data(fn: Callable[[Tensor, Tensor], Any]) -> None:
    calls = [(rows(n), torch.arange(n) * 3 % 8) for n in (6, 13, 10)]
    check(Function(fn), *calls)


def test_zero_or_one_selected_row_is_not_built_in() -> None:
    model = Function(lambda h, i: h[i > 6].sum(0) + h)
    calls = [(rows(n), torch.arange(n)) for n in (5, 8, 9, 30)]
    check(model, *calls)


def test_a_branch_on_a_data_dependent_size_is_guarded() -> None:
    def fn(h: Tensor, i: Tensor) -> Tensor:
        chosen = h[i > 6]
        return h if chosen.size(0) == 0 else h + chosen.mean(0)

    few, many = (rows(5), torch.arange(5)), (rows(12), torch.arange(12))
    model = Function(fn)
    assert check(model, few).guards.check(list(many)) is not None
    assert check(model, many, (rows(9), torch.arange(9))).guards.check(list(few)) is not None


def test_structure_is_computed_once_a_graph() -> None:
    model = Function(lambda h, e: (h * 0).index_add(0, e[1][e[0] != e[1]], h[e[0][e[0] != e[1]]]))
    edges = torch.randint(0, 7, (2, 30))
    captured = check(model, (rows(7), edges))
    assert captured.islands == []
    structure = next(n.target for n in captured.graph.graph.nodes if n.name == "island_structure")
    first, again = structure(edges), structure(edges)
    assert all(a is b for a, b in zip(first, again, strict=True))
    edges[0, 0] = (edges[1, 0] + 1) % 7
    assert structure(edges)[0] is not first[0]
    with torch.inference_mode():
        unversioned = edges.clone()
    assert structure(unversioned)[0] is not structure(unversioned)[0]


def test_structure_of_a_graph_stays_while_a_batch_changes() -> None:
    def fn(h: Tensor, edges: Tensor, nodes: Tensor) -> Tensor:
        return (h * edges.sort().values.float()[:, None])[nodes.flip(0) + edges[0]]

    edges = torch.randint(3, (5,))
    batches = [torch.tensor([0, 1]), torch.tensor([1, 0])]
    captured = capture(Function(fn), (rows(5), edges, batches[0]))
    structure = next(n.target for n in captured.graph.graph.nodes if n.name == "island_structure")
    (factors, picked), (same_factors, others) = (structure(edges, batch) for batch in batches)
    assert same_factors is factors
    assert torch.equal(picked, batches[0].flip(0) + edges[0])
    assert torch.equal(others, batches[1].flip(0) + edges[0])


def test_structure_that_is_written_to_after_it_was_made() -> None:
    def fn(h: Tensor, nodes: Tensor, edges: Tensor) -> Tensor:
        order = nodes.sort(stable=True).indices
        back = torch.full_like(order, -1)
        back[order] = torch.arange(len(order))
        return h[order].cumsum(0)[back] * edges.sort().values[:1]

    captured = check(Function(fn), (rows(5), torch.tensor([3, 1, 4, 0, 2]), torch.arange(6)))
    assert any(n.name == "island_structure" for n in captured.graph.graph.nodes)


# ---- values


def test_a_branch_on_values_is_guarded() -> None:
    model = Function(lambda h, i: h * 2 if (i == 0).any() else h)
    some, none = torch.tensor([0, 3, 1]), torch.tensor([4, 3, 1])
    captured = check(model, (rows(3), some))
    assert captured.guards.check([rows(3), none]) is not None
    assert not captured.guards.expensive
    assert check(model, (rows(3), none)).guards.check([rows(3), some]) is not None


def test_a_value_guard_sees_a_tensor_changed_in_place() -> None:
    index = torch.tensor([0, 3, 1])
    captured = check(Function(lambda h, i: h * 2 if (i == 0).any() else h), (rows(3), index))
    index.add_(1)
    assert captured.guards.check([rows(3), index]) is not None


def test_a_branch_on_activations_is_checked_at_each_call() -> None:
    model = Function(lambda h: h * 2 if (h > 0).any() else h)
    captured = check(model, (rows(3),))
    assert captured.guards.expensive
    with torch.no_grad():
        model.linear.weight.zero_()
        model.linear.bias.fill_(-1.0)
    assert captured.guards.check([rows(3)]) is not None


def test_a_value_read_after_a_write_in_place() -> None:
    def fn(h: Tensor, i: Tensor) -> Tensor:
        counts = torch.zeros(4, dtype=torch.long)
        counts[0] = 1
        counts.index_add_(0, i, torch.ones_like(i))
        return h * 3 if bool((counts > 2).any()) else h

    captured = check(Function(fn), (rows(3), torch.tensor([0, 0, 1])))
    assert captured.guards.check([rows(3), torch.tensor([1, 2, 3])]) is not None


def test_a_decision_on_random_numbers_is_refused() -> None:
    with pytest.raises(CaptureError, match="random"):
        capture(Function(lambda h: h * 2 if torch.rand(()) > 0.5 else h), (rows(3),))


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_random_numbers_from_elsewhere_are_refused(draw: Callable[[], float]) -> None:
    with pytest.raises(CaptureError, match=r"Python or NumPy"):
        capture(Function(lambda h: h * draw()), (rows(3),))


# ---- gradients


def test_no_grad_and_detach() -> None:
    def fn(h: Tensor) -> Tensor:
        with torch.no_grad():
            scale = h.abs().max() + 1
            shifted = h - scale
        return h / scale + shifted * h + h.detach() * h.data

    check(Function(fn), (rows(5),), (rows(7),))


class Doubled(torch.autograd.Function):
    """Its gradient is not the gradient of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None


def test_the_backward_of_an_autograd_function_is_kept() -> None:
    check(Function(lambda h: Doubled.apply(h, 10.0) + h), (rows(5),), (rows(7),))


def test_an_autograd_function_that_needs_real_tensors_is_an_island() -> None:
    class ViaNumpy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return torch.from_numpy(np.tanh(x.detach().numpy()))

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 5

    captured = check(Function(lambda h: ViaNumpy.apply(h) + h), (rows(5),), (rows(7),))
    assert [island.name for island in captured.islands] == ["ViaNumpy"]


apply_doubled = Doubled.apply


def test_an_alias_of_apply_is_recorded() -> None:
    assert check(Function(lambda h: apply_doubled(h, 10.0)), (rows(5),), (rows(7),)).islands == []


def test_gradients_of_arguments() -> None:
    check(Function(lambda h, y: h.sum() * y), (rows(5), rows(3)), (rows(6), rows(4)))


@pytest.mark.parametrize("enabled", [False, True])
def test_autocast_outside_is_baked_in(enabled: bool) -> None:
    model = Function(lambda h: h @ torch.ones(6, 2))
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        captured = capture(model, (rows(5),))
    result = run_captured(captured, (rows(7),))
    assert result.dtype == (torch.bfloat16 if enabled else torch.float32)


def test_autocast_inside() -> None:
    def fn(h: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            low = h @ torch.ones(6, 2)
        with torch.autocast("cpu", enabled=False):
            return low, h @ torch.ones(6, 2)

    captured = check(Function(fn), (rows(5),), (rows(7),))
    assert [x.dtype for x in run_captured(captured, (rows(5),))] == [torch.bfloat16, torch.float32]


# ---- modules, parameters and state


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.mark.parametrize("train", [True, False])
def test_batch_norm_and_dropout(train: bool) -> None:
    check(network().train(train), (rows(9),), (rows(17),))


def test_the_graph_shares_the_parameters() -> None:
    model = network()
    graph = capture(model, (rows(9),)).graph
    parameters = dict(model.named_parameters())
    captured = dict(graph.named_parameters())
    assert captured.keys() == parameters.keys()
    assert all(captured[name] is p for name, p in parameters.items())


def test_provenance() -> None:
    nodes = capture(network(), (rows(9),)).graph.graph.find_nodes(op="call_function", target=torch._C._nn.linear)
    where = [node.meta["custom"]["gqc"] for node in nodes]
    assert [(w["module"], w["type"]) for w in where] == [("0", "Linear"), ("4", "Linear")]
    assert all(w["line"].startswith("test_core.py:") for w in where)
    assert where[0]["id"] != where[1]["id"]


def test_hooks_and_parametrizations_are_part_of_the_graph() -> None:
    model = network()
    nn.utils.parametrizations.weight_norm(model[0])
    model[2].register_forward_hook(lambda module, args, out: out * 3)
    check(model, (rows(9),), (rows(12),))


def test_recurrent_layers() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.lstm, self.cell = nn.GRU(4, 4, batch_first=True), nn.LSTM(4, 4), nn.GRUCell(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            steps = x[:, None].expand(-1, 3, -1)
            return self.gru(steps)[0].sum(1) + self.lstm(steps.transpose(0, 1))[0][-1] + self.cell(x, x)

    assert check(Recurrent(), (rows(5),), (rows(8),)).islands == []


def test_a_tensor_stored_in_an_attribute_is_stored_at_each_call() -> None:
    class Remembers(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.last = x * 2
            return x + 1

    model = Remembers()
    captured = capture(model, (rows(3),))
    assert not hasattr(model, "last")
    x = rows(5)
    run_captured(captured, (x,))
    torch.testing.assert_close(model.last, x * 2)


def test_a_replaced_buffer_is_replaced_at_each_call() -> None:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return x - self.mean

    check(Average(), (rows(3),), (rows(5),))


def test_attributes_that_forward_reads_are_guarded() -> None:
    model = Function(lambda h: h)
    model.scale, model.unread = 2.0, 1
    model.fn = lambda h: h * model.scale
    captured = check(model, (rows(3),))
    model.unread = 5
    assert captured.guards.check([rows(3)]) is None
    model.scale = 3.0
    assert "scale" in captured.guards.check([rows(3)])


def test_a_changed_dropout_rate_is_noticed() -> None:
    model = network()
    captured = capture(model, (rows(9),))
    model[3].p = 0.1
    assert captured.guards.check([rows(9)]) is not None


# ---- eager islands


class Counts(nn.Module):
    """Changes a Python number at each call, which no graph can do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.calls = 0

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        return {"out": self.linear(x) * self.calls}


class WithIsland(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before, self.inner = nn.Linear(4, 6), inner

    def forward(self, x: Tensor) -> Tensor:
        h = self.before(x).relu()
        return h + self.inner(h)["out"].tanh()


def test_a_submodule_that_cannot_be_captured_is_an_island() -> None:
    model = WithIsland(Counts())
    captured = capture(model, (rows(5),))
    (island,) = captured.islands
    assert (island.name, model.inner.calls) == ("inner", 0)
    assert "calls" in island.reason
    for n in (5, 8):
        x = rows(n)
        expected = model(x)
        model.inner.calls -= 1
        actual = run_captured(captured, (x,))
        torch.testing.assert_close(actual, expected)
        gradients = [torch.autograd.grad(y.sum(), list(model.parameters())) for y in (actual, expected)]
        torch.testing.assert_close(*gradients)
    assert model.inner.calls == 2


def test_an_island_that_returns_another_shape_is_refused() -> None:
    class Grows(nn.Module):
        width = 6

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"out": torch.from_numpy(np.zeros((len(x), self.width), np.float32)) + x.numpy().sum()}

    model = WithIsland(Grows())
    with torch.no_grad():
        captured = capture(model, (rows(5),))
        run_captured(captured, (rows(7),))
        model.inner.width = 1
        with pytest.raises(CaptureError, match="inner"):
            run_captured(captured, (rows(5),))


def test_what_cannot_be_captured_names_module_and_line() -> None:
    with pytest.raises(CaptureError, match="NumPy") as error:
        capture(Function(lambda h: torch.from_numpy(h.detach().numpy())), (rows(3),))
    assert error.value.location.startswith("test_core.py:")


@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (lambda h: h @ torch.ones(7, 2), rows(3)),
        (lambda h: [][h.size(0)], rows(3)),
        (lambda h: h, torch.ones(3, 4, dtype=torch.long)),
        (lambda h: h, torch.ones(3, 5)),
    ],
)
def test_errors_of_the_model_itself_are_unchanged(fn: Callable[[Tensor], Any], x: Tensor) -> None:
    model = Function(fn)
    with pytest.raises((RuntimeError, IndexError)) as eager:
        model(x)
    with pytest.raises(type(eager.value)) as captured:
        capture(model, (x,))
    assert (type(captured.value), str(captured.value)) == (type(eager.value), str(eager.value))


def test_a_failed_capture_leaves_no_trace() -> None:
    model = nn.Sequential(network(), Function(lambda h: torch.from_numpy(h.detach().numpy())))
    model[1].linear = nn.Linear(3, 3)
    model[1].fn = lambda h: torch.from_numpy(h.detach().numpy())
    state = {name: value.clone() for name, value in model.state_dict().items()}
    attributes = {name: dict(vars(m)) for name, m in model.named_modules()}
    originals = nn.Module.__call__, nn.Module.__dict__.get("__getattribute__"), len, torch.autograd.Function.apply
    x = rows(9)
    generator = torch.get_rng_state()
    captured = capture(model, (x,))
    assert [island.name for island in captured.islands] == ["1"]
    assert torch.equal(generator, torch.get_rng_state())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(vars(m) == attributes[name] for name, m in model.named_modules())
    assert originals == (
        nn.Module.__call__,
        nn.Module.__dict__.get("__getattribute__"),
        len,
        torch.autograd.Function.apply,
    )


# ---- results

Pair = namedtuple("Pair", "first second")


def test_results_of_every_kind() -> None:
    def fn(h: Tensor, y: Tensor) -> Any:
        return {"pair": Pair(h, [h * 2, None]), "same": (y, h), "text": "x", "number": 3.5, "rows": h.size(0)}

    model = Function(fn)
    captured = check(model, (rows(5), rows(2)), (rows(6), rows(4)))
    y = rows(4)
    out = run_captured(captured, (rows(6), y))
    assert type(out["pair"]) is Pair
    assert out["pair"].first is out["same"][1]
    assert out["same"][0] is y
    assert (out["pair"].second[1], out["text"], out["number"], out["rows"]) == (None, "x", 3.5, 6)


def test_a_returned_parameter_is_the_parameter() -> None:
    model = Function(lambda h: (h, model.linear.weight))
    assert run_captured(capture(model, (rows(5),)), (rows(5),))[1] is model.linear.weight


def test_an_argument_written_in_place() -> None:
    model = Function(lambda h, out: out.add_(h.detach()))
    captured = capture(model, (rows(3), torch.zeros(3, 6)))
    x, out = rows(5), torch.zeros(5, 6)
    assert run_captured(captured, (x, out)) is out
    torch.testing.assert_close(out, model.linear(x))


def test_a_capture_does_not_keep_the_arguments_alive() -> None:
    x, index = rows(9), torch.arange(9)
    captured = capture(Function(lambda h, i: h[i > 3] * 2 if (i > 2).any() else h), (x, index))
    alive = [weakref.ref(t) for t in (x, index)]
    del x, index
    gc.collect()
    assert captured.guards
    assert [ref() for ref in alive] == [None, None]


# ---- through AOTAutograd


def test_a_joint_graph_comes_from_every_kind_of_node() -> None:
    def fn(h: Tensor, e: Tensor) -> Tensor:
        with torch.no_grad():
            scale = h.norm()
        with torch.autocast("cpu", torch.bfloat16):
            low = h @ torch.ones(6, 6)
        messages = Doubled.apply(h, 10.0)[e[0]] / scale
        return h.new_zeros(len(h), 6).index_add_(0, e[1], messages) + low.float()

    captured = capture(Function(fn), (rows(5), torch.randint(0, 5, (2, 20))))
    joint = build_joint(captured.graph, captured.fakes)
    captured.guards.update()
    call = read_call((rows(7), torch.randint(0, 7, (2, 31))), {})
    assert captured.guards.check(call.flat) is None
    backward = [n for n in joint.module.graph.nodes if n.meta.get("custom") and n.target is torch.ops.aten.mm.default]
    assert {n.meta["custom"]["gqc"]["type"] for n in backward} == {"Linear", "Function"}
