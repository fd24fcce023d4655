"""What a user may change between two calls of a compiled model, which must see it."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import dgl
import pytest
import torch
from dgl.nn import GATConv, GraphConv, SAGEConv
from torch import Tensor, nn
from torch.nn import functional as F

import gqc
from tests.same import assert_same, assert_same_error, one_warning, pair, step


class GCN(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.conv1, self.norm, self.conv2 = GraphConv(8, 16, **options), nn.BatchNorm1d(16), GraphConv(16, 4, **options)

    def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
        return self.conv2(graph, self.norm(self.conv1(graph, x)).relu())


class Function(nn.Module):
    """Two layers, a buffer, and a function of them and the arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.linear, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("buffer", torch.zeros(8))
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def rows(n: int = 12) -> Tensor:
    return torch.randn(n, 8)


def a_graph(nodes: int = 40) -> dgl.DGLGraph:
    src, dst = torch.randint(nodes, (2, 4 * nodes))
    return dgl.add_self_loop(dgl.graph((src, dst), num_nodes=nodes))


# ---- sizes


@pytest.mark.parametrize("sizes", [(5, 1, 0, 7, 1, 0, 2), (1, 0, 5, 1), (0, 1, 5, 0)])
def test_every_number_of_rows(sizes: tuple[int, ...]) -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(8, 4), nn.BatchNorm1d(4).eval()

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.linear(x)).log_softmax(1) / len(x)

    eager, compiled = pair(Head().eval())
    for n in sizes:
        assert_same(eager, compiled, rows(n))
    assert gqc.state_of(compiled).num_variants == 3


def test_another_number_of_columns() -> None:
    eager, compiled = pair(Function(lambda m, x: m.linear.weight.sum() * x.sum(1) / x.shape[1]))
    for shape in ((5, 8), (5, 6), (5, 1), (1, 1), (0, 3), (4, 8)):
        assert_same(eager, compiled, torch.randn(shape))


@pytest.mark.parametrize(
    ("conv", "bits"),
    [
        (lambda: GraphConv(8, 4, allow_zero_in_degree=True), 32),
        (lambda: GATConv(8, 4, 2, allow_zero_in_degree=True), 32),
        (lambda: SAGEConv(8, 4, "mean"), 8),
        (lambda: GATConv(8, 4, 2, allow_zero_in_degree=True), 8),
    ],
)
def test_the_smallest_graphs(conv: Callable[[], nn.Module], bits: int) -> None:
    eager, compiled = pair(conv().eval(), bits=bits, min_size=0)
    loop, lonely, nothing = dgl.graph(([0], [0])), dgl.graph(([], []), num_nodes=1), dgl.graph(([], []), num_nodes=0)
    for graph in (a_graph(), loop, lonely, nothing, dgl.graph(([], []), num_nodes=5), a_graph(3)):
        x = rows(graph.num_nodes())
        if bits == 32:
            assert_same(eager, compiled, graph, x)
        else:
            (expected, _), (actual, gradients) = step(eager, graph, x), step(compiled, graph, x)
            assert (actual - expected).norm() <= 0.1 * expected.norm()
            assert all(gradient.isfinite().all() for gradient in gradients.values())


# ---- modules


def test_replaced_modules_and_forwards() -> None:
    eager, compiled = pair(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)))

    def change(apply: Callable[[Any], Any]) -> None:
        for model in (eager, compiled):
            torch.manual_seed(5)
            apply(model)
        assert_same(eager, compiled, rows())
        assert_same(eager, compiled, rows(7))

    change(lambda m: None)
    change(lambda m: m.__setitem__(1, nn.ELU()))
    change(lambda m: m.__setitem__(0, nn.Linear(8, 8)))
    change(lambda m: setattr(m[0], "forward", lambda x: F.linear(x, m[0].weight) * 2))
    change(lambda m: m.append(nn.Linear(8, 2)))
    change(lambda m: m.__delitem__(0))
    change(
        lambda m: setattr(m[1], "weight", nn.Parameter(torch.randn(6, 8))) or setattr(m[1], "bias", None) or m.pop(2)
    )
    change(lambda m: setattr(m, "forward", lambda x: x * m[1].weight.sum()))
    assert compiled(rows()).shape == (12, 8)


def test_a_forward_that_is_put_back() -> None:
    eager, compiled = pair(nn.Linear(8, 8))
    original = compiled.forward
    compiled.forward = lambda x: x * 3
    torch.testing.assert_close(compiled(x := rows()), x * 3)
    compiled.forward = original
    assert_same(eager, compiled, x)
    assert gqc.state_of(compiled).num_variants == 2


def test_tied_parameters_that_are_untied() -> None:
    eager, compiled = pair(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    for model in (eager, compiled):
        model[1].weight = model[0].weight
    assert_same(eager, compiled, rows())
    weight = torch.randn(8, 8)
    for model in (eager, compiled):
        model[1].weight = nn.Parameter(weight.clone())
    assert_same(eager, compiled, rows())
    for model in (eager, compiled):
        model[1].weight = model[0].weight
    assert_same(eager, compiled, rows())


def test_attributes_and_what_is_in_them() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.factor, self.activation, self.table = nn.Linear(8, 8), 2, F.relu, torch.ones(8)
            self.factors, self.named, self.tables = [0.5, 2.0], {"a": [1.0]}, [torch.ones(8)]

        def forward(self, x: Tensor) -> Tensor:
            for factor in self.factors:
                x = self.activation(self.linear(x)) * factor * self.factor
            return x * self.named["a"][0] * self.table * self.tables[0]

    changes: list[Callable[[Any], Any]] = [
        lambda m: None,
        lambda m: setattr(m, "factor", 3),
        lambda m: setattr(m, "activation", torch.tanh),
        lambda m: m.table.mul_(2),
        lambda m: setattr(m, "table", torch.full((8,), 0.3)),
        lambda m: m.factors.append(0.1),
        lambda m: m.named["a"].__setitem__(0, 0.5),
        lambda m: m.tables.__setitem__(0, torch.full((8,), 0.4)),
    ]
    eager, compiled = pair(Scaled())
    for change in changes:
        change(eager), change(compiled)
        assert_same(eager, compiled, rows())


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: setattr(m, "last", m.linear(x)) or m.other(m.last),
        lambda m, x: m.linear(x) + (m.mean if hasattr(m, "mean") else setattr(m, "mean", x.mean(0)) or m.mean),
        lambda m, x: m.linear(x) * (setattr(m, "buffer", m.buffer * 0.9 + x.detach().mean(0)) or m.buffer),
        lambda m, x: m.linear(x) * m.buffer.mul_(0.9).add_(x.detach().mean(0)),
    ],
)
def test_what_forward_keeps_in_the_model(function: Callable[..., Any]) -> None:
    eager, compiled = pair(Function(function))
    for n in (5, 7, 5):
        assert_same(eager, compiled, rows(n))
    for name in ("last", "mean"):
        torch.testing.assert_close(getattr(compiled, name, None), getattr(eager, name, None))
    assert type(compiled.buffer) is Tensor
    assert gqc.state_of(compiled).fallbacks == {}


def test_a_buffer_that_the_first_call_registers() -> None:
    def function(module: nn.Module, x: Tensor) -> Tensor:
        if "late" not in module._buffers:
            module.register_buffer("late", torch.ones(x.shape[1]))
        return module.linear(x) * module.late.mul_(0.5)

    eager, compiled = pair(Function(function))
    for n in (5, 7, 5):
        assert_same(eager, compiled, rows(n))
    assert gqc.state_of(compiled).num_variants == 1


def test_checkpoints_and_copies_between_calls() -> None:
    graph, x = a_graph(), rows(40)
    eager, compiled = pair(GCN())
    assert_same(eager, compiled, graph, x)
    for assign in (False, True):
        state = GCN().state_dict()
        eager.load_state_dict(copy.deepcopy(state), assign=assign)
        compiled.load_state_dict(copy.deepcopy(state), assign=assign)
        assert_same(eager, compiled, graph, x)
    clone = copy.deepcopy(compiled)
    assert gqc.is_compiled(clone)
    assert_same(copy.deepcopy(eager), clone, graph, x)
    assert_same(eager, compiled, graph, x)
    assert gqc.state_of(compiled).num_variants == 1


def test_grad_mode_and_default_dtype() -> None:
    eager, compiled = pair(Function(lambda m, x: m.linear(x) * torch.ones(len(x), 1) * torch.tensor(1.5)))
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            assert_same(eager, compiled, rows())
    torch.set_default_dtype(torch.float64)
    try:
        x = rows().float()
        assert compiled(x).dtype == eager(x).dtype == torch.float64
        assert_same(eager, compiled, x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same(eager, compiled, rows())


# ---- arguments


def test_arguments_changed_in_place() -> None:
    eager, compiled = pair(Function(lambda m, x, y: m.linear(x.mul_(2)) + m.other(y)))

    def check(make: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        ours = torch.randn(12, 16)
        theirs = ours.clone()
        torch.testing.assert_close(step(compiled, *make(ours)), step(eager, *make(theirs)), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours, theirs)

    check(lambda x: (x[:, :8].contiguous(), x[:, 8:]))
    check(lambda x: ((x := x.view(24, 8))[:12], x[12:]))
    assert gqc.state_of(compiled).num_variants == 1
    with one_warning("forward changes it in place"):
        check(lambda x: (x[:, :8], x[:, 8:]))  # not contiguous
        check(lambda x: ((x := x.view(24, 8)), x))
        check(lambda x: ((x := x.view(24, 8))[:12], x[6:18]))


def test_one_tensor_as_two_arguments() -> None:
    eager, compiled = pair(Function(lambda m, x, y: m.linear(x) * m.other(y)))
    ours = rows().requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    step(compiled, ours, ours), step(eager, theirs, theirs)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_parameter_as_an_argument() -> None:
    results = []
    for model in pair(Function(lambda m, w, x: F.linear(m.linear(x), w) + m.linear.weight.sum())):
        torch.manual_seed(0)
        results.append(step(model, model.linear.weight, rows()))
    torch.testing.assert_close(*results)


def test_a_graph_that_grows_and_shrinks() -> None:
    eager, compiled = pair(GCN())
    graph, x = a_graph(), rows(40)
    assert_same(eager, compiled, graph, x)
    graph.add_edges([0, 1, 2], [5, 5, 5])
    assert_same(eager, compiled, graph, x)
    graph.remove_edges(torch.arange(graph.num_edges() - 3, graph.num_edges()))
    assert_same(eager, compiled, graph, x)
    graph.add_nodes(3)
    x = rows(43)
    assert_same_error(eager.eval(), compiled.eval(), graph, x)
    graph.add_edges([40, 41, 42], [40, 41, 42])
    for other in (graph, graph.int(), graph.to("cpu"), dgl.reverse(graph)):
        assert_same(eager, compiled, other, x)
    for formats in (["csc", "csr"], ["coo", "csc"]):
        restricted = graph.formats(formats)
        with torch.no_grad():
            torch.testing.assert_close(compiled(restricted, x), eager(restricted, x), rtol=1e-4, atol=1e-4)


def test_an_edge_index_changed_in_place() -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    for conv in (pyg.GCNConv(8, 4), pyg.GATConv(8, 4), pyg.GCNConv(8, 4, cached=True)):
        eager, compiled = pair(conv)
        x, edge_index = rows(40), torch.randint(40, (2, 150))
        for change in (lambda e: None, lambda e: e[1].fill_(3), lambda e: e[0, :10].fill_(7)):
            change(edge_index)
            assert_same(eager, compiled, x, edge_index)
        assert_same(eager, compiled, x, edge_index[:, :100])
        if not conv._get_name().startswith("GCN") or not conv.cached:
            edge_index[0, 3] = 77
            assert_same_error(eager, compiled, x, edge_index)
            edge_index[0, 3] = -1
            assert_same_error(eager, compiled, x, edge_index)
            edge_index[0, 3] = 1
        assert_same(eager, compiled, x, edge_index)
        assert gqc.state_of(compiled).num_variants == 1


def test_graph_columns_that_forward_writes() -> None:
    def function(module: nn.Module, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
        graph.ndata["h"] = module.linear(x)
        graph.update_all(dgl.function.copy_u("h", "m"), dgl.function.sum("m", "out"))
        graph.ndata.pop("h")
        graph.ndata["seen"].add_(1)
        return graph.ndata["out"]

    eager, compiled = pair(Function(function))
    for nodes in (40, 25, 40):
        ours, x = a_graph(nodes), rows(nodes)
        ours.ndata["seen"] = torch.zeros(nodes)
        theirs = ours.clone()
        theirs.ndata["seen"] = torch.zeros(nodes)
        for _ in range(2):
            torch.testing.assert_close(step(compiled, ours, x), step(eager, theirs, x), rtol=1e-4, atol=1e-4)
            assert list(ours.ndata) == list(theirs.ndata)
            torch.testing.assert_close(dict(ours.ndata), dict(theirs.ndata), rtol=1e-4, atol=1e-4)


def test_blocks_and_batches_of_changing_sizes() -> None:
    class Sampled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = SAGEConv(8, 16, "mean"), SAGEConv(16, 4, "mean")

        def forward(self, blocks: list[Any], x: Tensor) -> Tensor:
            return self.conv2(blocks[1], self.conv1(blocks[0], x).relu())

    class Readout(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = GraphConv(8, 16), nn.Linear(16, 3)

        def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
            with graph.local_scope():
                graph.ndata["h"] = self.conv(graph, x).relu()
                return self.head(dgl.mean_nodes(graph, "h"))

    graph, features = a_graph(200), rows(200)
    sampler = dgl.dataloading.MultiLayerNeighborSampler([4, 4])
    eager, compiled = pair(Sampled())
    for seeds in (range(10), range(50, 80), range(1), range(3)):
        inputs, _, blocks = sampler.sample_blocks(graph, torch.tensor(list(seeds)))
        assert_same(eager, compiled, blocks, features[inputs])
    assert_same_error(eager, compiled, blocks[:1], features[inputs])
    assert gqc.state_of(compiled).num_variants <= 2  # one output row has a capture of its own
    eager, compiled = pair(Readout())
    for size in (3, 5, 1, 2):
        batch = dgl.batch([a_graph(5 + i) for i in range(size)])
        assert_same(eager, compiled, batch, rows(batch.num_nodes()))


# ---- memory


def test_nothing_of_a_call_or_a_model_is_kept() -> None:
    def call(compiled: nn.Module) -> list[weakref.ref[Any]]:
        graph, x = a_graph(), rows(40)
        out = compiled(graph, x)
        out.sum().backward()
        return [weakref.ref(tensor) for tensor in (graph, x, out)]

    model = GCN()
    compiled = gqc.compile(model)
    references = call(compiled) + call(compiled)
    gc.collect()
    assert [reference() for reference in references] == [None] * 6
    references = [weakref.ref(model), weakref.ref(model.conv1.weight)]
    del model, compiled
    gc.collect()
    assert [reference() for reference in references] == [None] * 2


# ---- threads


def test_threads_share_a_compiled_model() -> None:
    eager, compiled = pair(GCN().eval())
    calls = [(a_graph(n), rows(n)) for n in (40, 25)]
    expected = [step(eager, *call)[0].detach() for call in calls]
    failures: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for i in range(6):
                which = (first + i) % 2
                graph, x = calls[which]
                torch.testing.assert_close(compiled(graph, x).detach(), expected[which], rtol=1e-4, atol=1e-4)
        except BaseException as error:
            failures.append(error)

    run([lambda i=i: work(i) for i in range(4)])
    assert failures == []
    assert gqc.state_of(compiled).num_variants == 1


def test_an_eager_model_runs_while_another_thread_compiles() -> None:
    model = GCN().eval()
    graph, x = a_graph(), rows(40)
    expected = model(graph, x).detach()
    done, failures = threading.Event(), []

    def run_eagerly(graph: dgl.DGLGraph) -> None:
        try:
            while not done.is_set():
                torch.testing.assert_close(model(graph, x).detach(), expected)
        except BaseException as error:
            failures.append(error)

    def compile_some(graph: dgl.DGLGraph) -> None:
        try:
            for _ in range(2):
                assert_like(GCN(), graph, x)
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    run([lambda: run_eagerly(graph.clone()), lambda: compile_some(graph.clone()), lambda: compile_some(graph.clone())])
    assert failures == []


def assert_like(model: nn.Module, *args: Any) -> None:
    eager, compiled = pair(model)
    torch.testing.assert_close(step(compiled, *args), step(eager, *args), rtol=1e-4, atol=1e-4)


def run(jobs: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
