"""Gathers and scatters along edges become graph ops, with eager's results and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.utils import softmax

import gqc
from gqc.capture import capture
from tests.capture.compare import assert_like_eager, run_captured

NODES, EDGES, IN, OUT = 30, 90, 8, 6
SPMM, SDDMM, SOFTMAX = "spmm", "sddmm", "edge_softmax"
SCATTERS = (
    "scatter_add_",
    "index_add_",
    "index_add",
    "scatter_add",
    "scatter_reduce_",
    "scatter_reduce",
    "index_select",
)


class Function(nn.Module):
    """A model without parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def edges(seed: int = 0, nodes: int = NODES, count: int = EDGES) -> Tensor:
    """Without edges to the last five nodes; some edges are there twice."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(nodes - 5, (2, count), generator=generator)
    index[:, : count // 4] = index[:, count // 4 : 2 * (count // 4)]
    return index


def features(rows: int = NODES, *shape: int) -> Tensor:
    return torch.randn(rows, *(shape or (IN,)), generator=torch.Generator().manual_seed(rows))


def called(graph: torch.fx.Graph) -> list[str]:
    names = (n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "") for n in graph.nodes)
    return [name for name in names if name in (SPMM, SDDMM, SOFTMAX, "spmm_cmp", *SCATTERS)]


def weights() -> Tensor:
    return torch.rand(EDGES, generator=torch.Generator().manual_seed(3)) + 0.1


def types() -> Tensor:
    return torch.randint(3, (EDGES,), generator=torch.Generator().manual_seed(4))


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[Callable[[], Tensor], ...], list[str]]] = {
    "GCNConv": (lambda: pyg.GCNConv(IN, OUT), (), [SPMM]),
    "GCNConv with weights": (lambda: pyg.GCNConv(IN, OUT), (weights,), [SPMM, SDDMM, SDDMM, SPMM]),
    "SAGEConv": (lambda: pyg.SAGEConv(IN, OUT), (), [SPMM]),
    "GINConv": (lambda: pyg.GINConv(nn.Linear(IN, OUT)), (), [SPMM]),
    "GATConv": (lambda: pyg.GATConv(IN, OUT, 2), (), [SDDMM, SOFTMAX, SPMM]),
    "GATv2Conv": (lambda: pyg.GATv2Conv(IN, OUT, 2), (), [SDDMM, SOFTMAX, SPMM]),
    "TransformerConv": (lambda: pyg.TransformerConv(IN, OUT, 2), (), [SDDMM, SOFTMAX, SPMM]),
    "RGCNConv": (lambda: pyg.RGCNConv(IN, OUT, 3), (types,), [SPMM, SPMM, SPMM]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_pyg(name):
    torch.manual_seed(0)
    make, more, expected = LAYERS[name]
    model, rest = make(), [make_tensor() for make_tensor in more]
    captured = capture(model, (features(), edges(), *rest))
    assert called(captured.graph.graph) == expected
    for index in (edges(), edges(1)):
        assert_like_eager(captured, model, (features(), index, *rest), {})


def add_by_index(x: Tensor, index: Tensor) -> Tensor:
    source, target = index
    return torch.zeros_like(x).index_add_(0, target, x[source]).relu_()


def mean(x: Tensor, index: Tensor) -> Tensor:
    wide = index[1].unsqueeze(1).expand(-1, IN)
    messages = x.index_select(0, index[0])
    return x.new_zeros(x.shape).scatter_reduce(0, wide, messages, "mean", include_self=False)


def against_the_edges(x: Tensor, index: Tensor) -> Tensor:
    return torch.zeros(x.shape).index_add(0, index[0], x[index[1]] - x[index[0]])


def several_steps(x: Tensor, index: Tensor) -> Tensor:
    for _ in range(3):
        x = torch.zeros_like(x).index_add(0, index[1], x.index_select(0, index[0]))
    return x


def ends_out_of_order(x: Tensor, index: Tensor) -> Tensor:
    messages = x[index[0]] * 2.0
    return torch.zeros_like(x).index_add(0, index[1].clone(), messages)


def attention_and_weights(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    logits = (x[index[0]] * x[index[1]]).sum(-1)
    attention = softmax(logits, index[1], num_nodes=x.shape[0])
    return torch.zeros_like(x).index_add(0, index[1], x[index[0]] * attention[:, None]), attention


PLAIN: dict[Callable[..., Any], list[str]] = {
    add_by_index: [SPMM],
    mean: [SPMM],
    against_the_edges: [SDDMM, SPMM],
    several_steps: [SPMM, SPMM, SPMM],
    ends_out_of_order: [SDDMM, SPMM],
    attention_and_weights: [SDDMM, SOFTMAX, SPMM],
}


@pytest.mark.parametrize("function", PLAIN, ids=lambda f: f.__name__)
def test_plain_torch(function):
    model = Function(function)
    captured = capture(model, (features(), edges()))
    assert called(captured.graph.graph) == PLAIN[function]
    assert_like_eager(captured, model, (features(), edges()), {})
    assert_like_eager(captured, model, (features(40), edges(2, nodes=40, count=50)), {})


def written_messages(x: Tensor, index: Tensor) -> Tensor:
    messages = x[index[0]]
    messages[:, 0] = 7.0
    return torch.zeros_like(x).index_add(0, index[1], messages)


def written_rows(x: Tensor, index: Tensor) -> Tensor:
    rows = x * 1.0
    messages = rows[index[0]]
    rows.zero_()
    return torch.zeros_like(x).index_add(0, index[1], messages) + rows


def written_weights(x: Tensor, index: Tensor) -> Tensor:
    weights = x[index[1], 0].clone()
    messages = x[index[0]] * weights[:, None]
    weights.zero_()
    return torch.zeros_like(x).index_add(0, index[1], messages) + weights.sum()


def written_index(x: Tensor, index: Tensor) -> Tensor:
    source = index[0].clone()
    messages = x[source]
    source[0] = 0
    return torch.zeros_like(x).index_add(0, index[1], messages + x[source])


def into_more_than_zeros(x: Tensor, index: Tensor) -> Tensor:
    return torch.ones_like(x).index_add(0, index[1], x[index[0]])


def softmax_of_other_rows(x: Tensor, index: Tensor) -> Tensor:
    logits = x[index[0]]
    largest = torch.zeros_like(x).scatter_reduce(
        0, index[0, :, None].expand(-1, IN), logits.detach(), "amax", include_self=False
    )
    exponential = (logits - largest[index[1]]).exp()
    return exponential / (torch.zeros_like(x).index_add(0, index[1], exponential) + 1e-16)[index[1]]


@pytest.mark.parametrize(
    "function",
    [written_messages, written_rows, written_weights, written_index, into_more_than_zeros, softmax_of_other_rows],
    ids=lambda f: f.__name__,
)
def test_what_only_looks_like_it_stays_right(function):
    captured = capture(Function(function), (features(), edges()))
    assert SOFTMAX not in called(captured.graph.graph)
    torch.testing.assert_close(run_captured(captured, (features(), edges())), function(features(), edges()))


def test_what_stays_a_scatter_and_why():
    def pooled(x: Tensor, index: Tensor, batch: Tensor) -> Tensor:
        largest = x.new_zeros(x.shape).scatter_reduce(
            0, index[1][:, None].expand(-1, IN), x[index[0]], "amax", include_self=False
        )
        return torch.zeros(3, IN).index_add(0, batch, largest)

    call = features().requires_grad_(), edges(), torch.arange(NODES) % 3
    captured = capture(Function(pooled), call)
    assert [(d.primitive, d.action, d.reason) for d in captured.messages] == [
        ("scatter_reduce", "left", "a maximum's gradient is PyTorch's: it is shared among equal messages"),
        ("index_add", "left", "no rows are gathered along the same edges"),
    ]
    assert_like_eager(captured, Function(pooled), call, {})
    with torch.no_grad():
        captured = capture(Function(pooled), call)
        assert called(captured.graph.graph) == ["spmm_cmp", "index_add"]
        torch.testing.assert_close(captured.graph(*call)[0], pooled(*call))


def test_edges_that_depend_on_floats_stay_as_they_are():
    def nearest(x: Tensor) -> Tensor:
        index = torch.cdist(x, x).topk(3, largest=False).indices
        target = torch.arange(NODES).repeat_interleave(3)
        return torch.zeros_like(x).index_add(0, index.flatten(), x[target])

    captured = capture(Function(nearest), (features(),))
    assert SPMM not in called(captured.graph.graph)
    assert "computed from floats" in captured.messages[0].reason


class Net(nn.Module):
    def __init__(self, conv: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv(IN, IN), conv(IN, OUT)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, index).relu(), index)


def gradients(model: nn.Module, x: Tensor, index: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out = model(x, index)
    wanted = [x, *model.parameters()]
    return [out.detach(), *torch.autograd.grad(out, wanted, torch.ones_like(out).cumsum(0) / len(out))]


def assert_close(model: nn.Module, compiled: nn.Module, index: Tensor, tolerance: float) -> None:
    want, got = (gradients(m, features(), index) for m in (model, compiled))
    for a, b in zip(want, got, strict=True):
        torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance * float(1 + a.abs().max()))
    assert not gqc.state_of(compiled).fallbacks


def test_steps_with_other_edges_and_none():
    torch.manual_seed(0)
    model = pyg.SAGEConv(IN, OUT)
    compiled = gqc.compile(model, bits=32)
    index = edges()
    for new in (index, edges(1), torch.empty(2, 0, dtype=torch.int64)):
        assert_close(model, compiled, new, 1e-5)
    index[1] = index[1].flip(0)  # in place, so the same tensor in a new version
    torch.testing.assert_close(compiled(features(), index), model(features(), index))


def test_attention_in_int8():
    torch.manual_seed(0)
    model = Net(lambda i, o: pyg.GATConv(i, o, dropout=0.0))
    compiled = gqc.compile(model, min_size=0, rounding="nearest")
    assert_close(model, compiled, edges(), 0.3)
    (stage,) = gqc.explain(compiled).variants[0].stages
    assert {"gemm", "spmm"} <= {d.primitive for d in stage.decisions("quantized")}
    kept = {d.primitive: d.reason for d in stage.decisions("kept") if (d.module, d.half) == ("conv2", "forward")}
    assert kept["spmm"] == "output layer: no primitive follows"
    assert kept["edge_softmax"] == "softmax runs in full precision"
    reports = {r.name: r for r in stage.reports}
    assert [d.primitive for d in reports["find_messages"].decisions] == ["edge_softmax", "sddmm", "spmm"] * 2
    assert [d.half for d in reports["fuse_attention"].decisions] == ["forward", "backward"] * 2


def test_switched_off():
    compiled = gqc.compile(Function(add_by_index), skip=["find_messages"])
    torch.testing.assert_close(compiled(features(), edges()), add_by_index(features(), edges()))
    (stage,) = gqc.explain(compiled).variants[0].stages
    assert "find_messages" in stage.skipped
    assert not stage.decisions("found")


def test_an_index_out_of_range_raises_as_in_eager():
    model = Function(add_by_index)
    compiled = gqc.compile(model)
    bad = edges()
    bad[0, 3] = NODES
    compiled(features(), edges())
    with pytest.raises(IndexError) as eager:
        model(features(), bad)
    with pytest.raises(IndexError) as ours:
        compiled(features(), bad)
    assert str(ours.value) == str(eager.value)
