"""Training on another device than the CPU, with DGL graphs that stay there. The device "meta" takes a GPU's place."""

from __future__ import annotations

import gc
import random
import weakref

import dgl
import dgl.function as fn
import dgl.nn
import pytest
import torch
from torch import Tensor, nn

import gqc
from gqc.capture.dgl import ADAPTER
from gqc.capture.dgl.index import TracedIndex
from gqc.capture.placement import device_of_call
from gqc.errors import CaptureError, KernelError
from gqc.keys import mode_key, module_key
from gqc.runtime.relation import SRC, from_edges
from gqc.runtime.structure import relations
from gqc.seed import SeedSource

META = torch.device("meta")
NODES, WIDTH = 500, 64


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = dgl.nn.GraphConv(WIDTH, WIDTH, norm="both", allow_zero_in_degree=True)
        self.attention = dgl.nn.GATConv(WIDTH, 16, 4, allow_zero_in_degree=True)
        self.out = nn.Linear(WIDTH, 7)

    def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
        h = torch.dropout(self.conv(graph, x).relu(), 0.5, self.training)
        return self.out(self.attention(graph, h).flatten(1))


class Weighted(nn.Module):
    """Reads all of its inputs from the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, graph: dgl.DGLGraph) -> Tensor:
        with graph.local_scope():
            graph.ndata["h"] = self.linear(graph.ndata["x"])
            graph.update_all(fn.u_mul_e("h", "w", "m"), fn.sum("m", "h"))
            return graph.ndata["h"]


@pytest.fixture(autouse=True)
def dgl_knows_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    """DGL has contexts for the CPU and CUDA only."""
    context_of = dgl.backend.to_backend_ctx
    monkeypatch.setattr(TracedIndex, "ctx", property(lambda index: index.relations[0][SRC].device))
    monkeypatch.setattr(dgl.backend, "to_backend_ctx", lambda c: c if isinstance(c, torch.device) else context_of(c))


@pytest.fixture
def graph() -> dgl.DGLGraph:
    graph = dgl.rand_graph(NODES, 6 * NODES)
    graph.ndata["x"], graph.edata["w"] = torch.randn(NODES, WIDTH), torch.rand(graph.num_edges(), 1)
    return graph


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"bits": 4}, {"rounding": "nearest"}])
def test_whole_step_stays_on_the_device_of_model_and_features(graph: dgl.DGLGraph, options: dict[str, object]) -> None:
    model = Net()
    compiled = gqc.compile(model, **options).to(META)
    x = torch.randn(NODES, WIDTH, device=META, requires_grad=True)
    out = compiled(graph, x)
    out.square().sum().backward()
    assert (out.device, out.shape) == (META, (NODES, 7))
    assert {t.grad.device for t in (x, *model.parameters())} == {META}
    (variant,) = gqc.explain(compiled).variants
    assert any(stage.decisions("quantized") for stage in variant.stages)
    other = dgl.rand_graph(90, 200)
    assert compiled(other, torch.randn(90, WIDTH, device=META)).shape == (90, 7)


def test_columns_of_the_graph_follow(graph: dgl.DGLGraph) -> None:
    compiled = gqc.compile(Weighted()).to(META)
    out = compiled(graph)
    out.sum().backward()
    assert out.device == META
    assert compiled.linear.weight.grad.device == META
    assert graph.device.type == graph.ndata["x"].device.type == "cpu"


def test_relations_are_copied_once_and_die_with_the_structure(graph: dgl.DGLGraph) -> None:
    copied = relations(graph, META)
    assert relations(graph.local_var(), META) is copied
    assert {part.device for part in copied[0]} == {META}
    assert relations(graph, torch.device("cpu")) is relations(graph)
    watched = weakref.ref(copied[0][0])
    del copied
    graph.add_edges(torch.tensor([0]), torch.tensor([1]))
    gc.collect()
    assert watched() is None
    assert relations(graph, META)[0][SRC].shape[0] == graph.num_edges()


def test_columns_are_copied_again_only_when_they_change(graph: dgl.DGLGraph) -> None:
    name = "n.0.x"
    first = ADAPTER.tensors(graph, META)[name]
    assert first.device == META
    assert ADAPTER.tensors(graph, META)[name] is first
    graph.ndata["x"].add_(1)
    assert ADAPTER.tensors(graph, META)[name] is not first
    graph.ndata["x"] = graph.ndata["x"].requires_grad_()
    assert ADAPTER.tensors(graph, META)[name].grad_fn is not None


def test_what_cannot_be_captured_says_so_itself(graph: dgl.DGLGraph) -> None:
    class Noisy(Net):
        def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
            return super().forward(graph, x) * random.random()

    compiled = gqc.compile(Noisy()).to(META)
    for _ in range(2):
        with pytest.raises(CaptureError, match="draws random numbers from Python"):
            compiled(graph, torch.randn(NODES, WIDTH, device=META))


def test_model_on_another_device_than_its_features_raises_as_eager_does() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 7))
    x = torch.randn(NODES, WIDTH, device=META)
    for called in (model, gqc.compile(model)):
        with pytest.raises(RuntimeError, match=r"meta.*cpu|cpu.*meta"):
            called(x)


def test_ops_refuse_tensors_of_two_devices() -> None:
    src, dst = torch.randint(9, (2, 30))
    g = from_edges(src, dst, 9, 9)
    with pytest.raises(KernelError, match=r"gqc.spmm got tensors on cpu and on meta: move the model and all"):
        torch.ops.gqc.spmm(g, "copy_lhs", torch.randn(9, 4, device=META), None)


def test_device_of_call() -> None:
    on_cpu, on_meta = nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), nn.Linear(2, 2, device=META)
    assert device_of_call(on_cpu, (torch.ones(1), {"a": [torch.ones(1)]}), {}) is None
    assert device_of_call(on_cpu, (torch.ones(1, device=META),), {}) is None
    assert device_of_call(nn.ReLU(), (1, {"a": [torch.ones(1, device=META)]}), {}) == META
    assert device_of_call(nn.ReLU(), (torch.ones(1),), {"x": torch.ones(1, device=META)}) == META
    assert device_of_call(nn.Sequential(nn.ReLU(), on_meta), (), {}) == META


def test_keys_tell_devices_and_autocast_of_cuda_apart() -> None:
    model, key = nn.BatchNorm1d(3), mode_key()
    keys = [module_key(model), module_key(model.to(META)), module_key(nn.Linear(1, 1))]
    assert keys[0] != keys[1]
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        assert mode_key() != key
    finally:
        torch.set_autocast_enabled("cuda", before)
    assert mode_key() == key


def test_seeds_of_a_gpu_are_counted_in_its_memory() -> None:
    source = SeedSource(7)
    assert source(META).device == META
    source._next[META] = counter = torch.tensor([7, 5])  # memory that can be read
    seeds = [source(META) for _ in range(3)]
    assert [s.tolist() for s in seeds] == [[7, 5], [7, 6], [7, 7]]
    assert source._next[META] is counter  # raised in place, as a CUDA graph needs it
    assert [source(torch.device("cpu")).tolist() for _ in range(2)] == [[7, 0], [7, 1]]
    assert SeedSource(None)(META).device == META
