"""Policy.cuda_graph: replayed steps are those that run op by op, whatever the caller does with models and results."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import dgl
import pytest
import torch
from dgl.nn import GATConv, GraphConv, SAGEConv
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

import gqc
from gqc.cuda_graph import refusal, stage
from gqc.cuda_graph.capture import FIRST_BACKWARD
from gqc.seed import SeedSource
from tests.fake_graphs import FakeRecorder

NODES, WIDTH = 40, 8


class Net(nn.Module):
    def __init__(self, first: nn.Module, last: nn.Module, dropout: float = 0.5) -> None:
        super().__init__()
        self.first, self.norm, self.last, self.dropout = first, nn.BatchNorm1d(16), last, nn.Dropout(dropout)

    def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
        h = self.dropout(self.norm(self.first(graph, x).flatten(1)).relu())
        return self.last(graph, h).flatten(1)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: Net(GraphConv(WIDTH, 16), GraphConv(16, 4)),
    "gat": lambda: Net(GATConv(WIDTH, 4, 4), GATConv(16, 4, 1)),
    "sage": lambda: Net(SAGEConv(WIDTH, 16, "mean"), SAGEConv(16, 4, "mean")),
}


class Rows(nn.Module):
    """A model without a graph, that compiles fast."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu())


class Graphs:
    """Compares a compiled model with itself without its CUDA graphs."""

    off = False

    def same(self, model: nn.Module, run: Callable[[nn.Module], Any], seed: int = 0) -> None:
        """Both ways, what ``run`` returns is the same bit by bit, and so are state, gradients and generator."""
        before = copy.deepcopy(model.state_dict())
        results = []
        for self.off in (True, False):
            model.load_state_dict(before)
            model.zero_grad()
            torch.manual_seed(seed)
            with gqc.state_of(model).seed.kept() if self.off else nullcontext():
                results.append((run(model), copy.deepcopy(model.state_dict()), gradients(model), torch.get_rng_state()))
        torch.testing.assert_close(results[1], results[0], rtol=0, atol=0, equal_nan=True)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    """Tensors of the CPU are recorded from the second call on, and seeds are counted in their memory."""
    graphs, why_not_now = Graphs(), stage.GraphedStage._why_not_now
    for module in (refusal, stage):
        monkeypatch.setattr(module, "recorder_for", lambda device: FakeRecorder())
    monkeypatch.setattr(stage, "WARM_UPS", 1)
    monkeypatch.setattr(stage.GraphedStage, "_why_not_now", lambda s: "off" if graphs.off else why_not_now(s))
    monkeypatch.setattr(SeedSource, "counts_on", lambda source, device: source.seed is not None)
    return graphs


def a_graph(nodes: int = NODES) -> dgl.DGLGraph:
    src, dst = torch.randint(nodes, (2, 4 * nodes))
    return dgl.add_self_loop(dgl.graph((src, dst), num_nodes=nodes))


def rows(n: int = NODES) -> Tensor:
    return torch.randn(n, WIDTH)


def compiled(model: nn.Module, **options: Any) -> nn.Module:
    return gqc.compile(model, **{"min_size": 0, "cuda_graph": True, **options})


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def usage(model: nn.Module, variant: int = 0) -> Any:
    (part,) = gqc.explain(model).variants[variant].stages
    return part.cuda_graph


def train(*calls: tuple[Any, ...], steps: int = 5) -> Callable[[nn.Module], list[Tensor]]:
    def run(model: nn.Module) -> list[Tensor]:
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        outputs = []
        for _ in range(steps):
            for call in calls:
                optimizer.zero_grad()
                outputs.append(model(*call))
                outputs[-1].square().mean().backward()
                optimizer.step()
        return outputs  # kept while later steps are replayed

    return run


COMPRESSED = {"bits": 32, "save_bits": gqc.SaveBits(2, min_size=0)}


@pytest.mark.parametrize(("name", "options"), [("gcn", {}), ("gat", {"seed": 3}), ("sage", COMPRESSED)])
def test_training_is_the_same(graphs: Graphs, name: str, options: dict[str, Any]) -> None:
    model = compiled(MODELS[name](), **options)
    graphs.same(model, train((a_graph(), rows())))
    used = usage(model)
    assert (used.refusal, used.recordings, used.forwards, used.backwards) == ("", 1, 4, 3)
    assert dict(used.launched) == {"off": 5, stage.WARMING_UP: 1, FIRST_BACKWARD: 1}
    graphs.same(model, train((a_graph(), rows()), (a_graph(), rows())))  # as many nodes and edges, at other addresses
    assert used.recordings < usage(model).recordings <= 4
    graphs.same(model, train((a_graph(30), rows(30)), (a_graph(), rows())))
    again = usage(model)
    assert again.forwards >= used.forwards + 10
    assert again.backwards >= used.backwards + 10


# ---- what a caller may do with results


def steps(model: nn.Module, *step: Callable[[nn.Module], Any], times: int = 4) -> list[Any]:
    results = []
    for _ in range(times):
        for run in step:
            results.append(run(model))
    return [*results, gradients(model)]


def test_results_are_the_callers(graphs: Graphs) -> None:
    model = compiled(Rows(), keep_output_layer=False)
    x = rows().requires_grad_()

    def step(model: nn.Module) -> Any:
        out = model(x)
        (gradient,) = torch.autograd.grad(out.sin().sum(), x)
        with torch.no_grad():
            out.add_(1)
        return out, gradient

    graphs.same(model, lambda model: steps(model, step))
    assert usage(model).backwards == 2


def test_gradients_accumulate(graphs: Graphs) -> None:
    model = compiled(Rows())
    x, y = rows(), rows()
    accumulate = (lambda m: m(x).sin().sum().backward(), lambda m: m(y).cos().sum().backward())
    graphs.same(model, lambda model: steps(model, *accumulate))
    assert usage(model).backwards >= 4


def test_forwards_before_a_backward_do_not_overwrite_what_it_reads(graphs: Graphs) -> None:
    model = compiled(Rows())
    x, y = rows(), rows()

    def step(model: nn.Module) -> Any:
        first, second = model(x), model(x)
        (first.sin().sum() + second.cos().sum()).backward()
        first, _ = model(x), model(y)
        first.sin().sum().backward()
        return first, second

    graphs.same(model, lambda model: steps(model, step))
    used = usage(model)
    assert (used.launched[stage.NEEDED], used.forwards, used.backwards) == (6, 9, 6)

    def of_two_sizes(model: nn.Module) -> Any:
        first, second = model(x), model(x[:20])
        first.sin().sum().backward()
        second.sin().sum().backward()
        third, fourth = model(x[:20]), model(x)
        (third.sin().sum() + fourth.cos().sum()).backward()

    graphs.same(model, lambda model: steps(model, of_two_sizes))
    again = usage(model)
    assert (again.recordings, again.launched[stage.NEEDED], again.forwards) == (used.recordings + 1, 6, 9 + 15)


def test_a_forward_without_backward_blocks_nothing(graphs: Graphs) -> None:
    model = compiled(Rows())
    x = rows()
    graphs.same(model, lambda model: steps(model, lambda m: m(x).detach(), lambda m: m(x).sum().backward()))
    assert usage(model).launched[stage.NEEDED] == 0
    kept = [model(x) for _ in range(3)]
    assert usage(model).launched[stage.NEEDED] == 2
    torch.testing.assert_close(kept[1], kept[0], rtol=0.1, atol=0.1)


def test_backward_twice(graphs: Graphs) -> None:
    model = compiled(Rows())
    x = rows()

    def step(model: nn.Module) -> Any:
        loss = model(x).sin().sum()
        loss.backward(retain_graph=True)
        between = model(x).detach()
        loss.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
        return loss.detach(), between

    graphs.same(model, lambda model: steps(model, step))
    used = usage(model)
    assert used.launched[stage.NEEDED] == 3
    assert used.backwards == 5


def test_double_backward_and_changed_parameters_are_refused(graphs: Graphs) -> None:
    model = gqc.compile(Rows(), cuda_graph=True, bits=32)
    x = rows().requires_grad_()
    for _ in range(4):
        model(x).sum().backward()
    with pytest.raises(gqc.GqcError, match="no second derivative"):
        torch.autograd.grad(model(x).sum(), x, create_graph=True)
    loss = model(x).sum()
    with torch.no_grad():
        model.last.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert usage(model).backwards == 2


def test_checkpointing_and_saved_tensor_hooks_run_op_by_op(graphs: Graphs) -> None:
    model = compiled(Rows())
    x = rows().requires_grad_()
    graphs.same(
        model, lambda model: steps(model, lambda m: checkpoint(m, x, use_reentrant=False).sin().sum().backward())
    )
    with torch.autograd.graph.save_on_cpu():
        graphs.same(model, lambda model: steps(model, lambda m: m(x).sin().sum().backward()))
    assert usage(model).launched[stage.HOOKS] >= 8


# ---- what may move


def test_inputs_are_copied_when_they_move_and_not_kept(graphs: Graphs) -> None:
    model = compiled(Rows())
    places, last = [], []

    def step(model: nn.Module) -> Any:
        x = rows().requires_grad_()  # not where the last one is
        last[:] = [x]
        places.append(StorageWeakRef(x.untyped_storage()))
        model(x).sin().sum().backward()
        return x.grad

    graphs.same(model, lambda model: steps(model, step, times=6))
    last.clear()
    gc.collect()  # what a failing capture of another test has left in cycles may hold them
    assert all(place.expired() for place in places)
    assert usage(model).recordings == 1
    x = rows().requires_grad_()
    place = StorageWeakRef(x.untyped_storage())
    one = gqc.compile(Rows(), cuda_graph=True, bits=32)  # reads x where it stands
    for _ in range(4):
        one(x).sum().backward()
    assert usage(one).backwards == 2
    del x
    assert place.expired()


def test_parameters_and_buffers_that_move(graphs: Graphs) -> None:
    class Normed(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.norm(x))

    model = compiled(Normed())
    x = rows()
    kept: list[Tensor] = []  # so that no memory comes again: a fake graph would call it freed

    def step(model: nn.Module) -> Any:
        return model(x).sin().sum().backward()

    def loaded(model: nn.Module) -> Any:
        model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}, assign=True)

    def replaced(model: nn.Module) -> Any:
        for parameter in model.parameters():
            kept.append(parameter.data)
            parameter.data = parameter.data * 0.9

    def other_statistics(model: nn.Module) -> Any:
        kept.append(model.norm.running_mean)
        model.norm.running_mean = model.norm.running_mean + 1

    graphs.same(model, lambda model: steps(model, step))
    graphs.same(model, lambda model: [loaded(model), *steps(model, step)])
    used = usage(model)
    assert (used.recordings, used.launched[stage.MOVED]) == (2, 1)
    version = model.norm.running_mean._version
    step(model)
    assert model.norm.running_mean._version == version + 1
    graphs.same(model, lambda model: steps(model, replaced, step, times=5))
    assert usage(model).recordings == 3  # from their second move on, parameters are copied
    graphs.same(model, lambda model: steps(model, other_statistics, step, step, step, times=8))
    used = usage(model)
    assert (used.recordings, used.launched[stage.MOVES] > 0) == (stage.MAX_RECORDINGS, True)


def test_data_that_is_replaced_before_the_backward(graphs: Graphs) -> None:
    model = compiled(Rows(), bits=32)
    x = rows()

    def step(model: nn.Module) -> None:
        model(x).sin().sum().backward()

    def replaced(model: nn.Module) -> None:
        loss = model(x).sin().sum()
        model.last.weight.data = model.last.weight.data * 0.9
        loss.backward()

    graphs.same(model, lambda model: steps(model, step, step, step, replaced, times=1))
    used = usage(model)
    assert (used.forwards, used.backwards, used.launched[stage.MOVED]) == (3, 1, 1)


def test_sizes_that_come_again_are_recorded_up_to_a_bound(graphs: Graphs) -> None:
    model = compiled(Rows())
    calls = [(rows(n),) for n in range(5, 12)]
    with torch.no_grad():
        graphs.same(model, lambda model: [model(rows(n)) for n in range(20, 120)])
        graphs.same(model, lambda model: [model(*call) for call in 3 * calls])
    used = usage(model)
    assert (used.recordings, used.forwards) == (stage.MAX_LAYOUTS, 2 * stage.MAX_LAYOUTS)
    assert used.launched[stage.MANY] == 2 * (len(calls) - stage.MAX_LAYOUTS)
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        model(*calls[0])
    finally:
        torch.set_float32_matmul_precision(precision)
    assert usage(model, 1).launched[stage.WARMING_UP] == 1


# ---- random numbers, modes and threads


@pytest.mark.parametrize("options", [{}, {"seed": 5}])
def test_each_replay_rounds_anew(graphs: Graphs, options: dict[str, Any]) -> None:
    model = compiled(Rows(), keep_output_layer=False, **options)
    x = rows()

    def outputs(model: nn.Module) -> Tensor:
        return torch.stack([model(x).detach() for _ in range(6)])

    graphs.same(model, outputs)
    assert len(outputs(model).unique(dim=0)) == 6
    assert usage(model).forwards == 11


def test_inference_mode_before_training(graphs: Graphs) -> None:
    model = compiled(Rows(), seed=5)
    x = rows()

    def run(model: nn.Module) -> Any:
        with torch.inference_mode():
            before = [model(x) for _ in range(3)]
        model(x).sum().backward()
        return before

    graphs.same(model, run)
    assert usage(model).forwards == 2


def test_threads(graphs: Graphs) -> None:
    model = compiled(Rows(), bits=32)
    given = [rows() for _ in range(4)]
    expected = [gqc.state_of(model).model(x) for x in given]
    failed: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for _ in range(12):
                torch.testing.assert_close(model(given[i]), expected[i])
                out = model(given[i])
                torch.testing.assert_close(torch.autograd.grad(out.sum(), out)[0], torch.ones_like(out))
        except BaseException as error:
            failed.append(error)

    work(0)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert usage(model).forwards > 10
