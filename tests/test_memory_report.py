"""What ``gqc.memory_report`` says is what is allocated, and measuring changes nothing."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
import torch
from dgl import add_self_loop
from dgl import graph as graph_of
from dgl.nn import GraphConv
from same import nothing_lost
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import gqc
from gqc.memory_plot import stacked
from gqc.passes.saved_plan import SavedPlan
from gqc.peak import most_allocated

ROWS = 600
CPU = torch.device("cpu")


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(F.relu(self.norm(self.first(x))), 0.2, self.training))


class GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = GraphConv(16, 32), GraphConv(32, 4)

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        return self.conv2(graph, self.conv1(graph, x).relu())


class Positive(nn.Module):
    """The number of rows of its last layer depends on data, which splits it around an island."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        return self.last(h[(h[:, 0] > 0).nonzero().squeeze(1)])


def rows(n: int = ROWS) -> Tensor:
    return torch.randn(n, 32)


def a_graph(nodes: int = ROWS) -> Any:
    return add_self_loop(graph_of(tuple(torch.randint(nodes, (2, 4 * nodes))), num_nodes=nodes))


def allocated(run: Any) -> int:
    """Bytes that are allocated after ``run`` and were not before, as torch's allocator counts them."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = run()
    assert result is not None
    return sum(e.nbytes() for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]")


@pytest.mark.parametrize(("make", "policy"), [(MLP, {"min_size": 0, "keep_output_layer": False}), (GCN, {"bits": 32})])
def test_what_is_saved_is_allocated(make: type[nn.Module], policy: dict[str, Any]) -> None:
    model = gqc.compile(make(), **policy)
    args = (rows(),) if make is MLP else (a_graph(), torch.randn(ROWS, 16))
    out = model(*args)
    report = gqc.memory_report(model, *args)
    assert report.saved_bytes == report.saved_bytes_measured
    held = allocated(lambda: model(*args))
    assert report.saved_bytes == pytest.approx(held - out.nbytes, abs=512)  # BatchNorm's new statistics
    assert report.saved_bytes <= 1.1 * report.saved_bytes_fp32  # masks in 1 bit beside the floats that have them
    if "bits" not in policy:
        assert report.saved_bytes < 0.5 * report.saved_bytes_fp32
        assert {e.how for e in report.entries} >= {"as is", "int8 operand"}
    assert report.saved_bytes < report.peak_bytes < 3 * report.saved_bytes_eager
    assert report.device == "cpu"


def test_what_eager_saves() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    report = gqc.memory_report(gqc.compile(model, bits=32), rows())
    assert report.saved_bytes_eager == 4 * ROWS * 64
    assert report.peak_bytes_eager > report.saved_bytes_eager
    text = str(report)
    assert "saved: " in text
    assert "eager 150.0 KiB" in text


def test_nothing_changes() -> None:
    model = gqc.compile(MLP(), min_size=0, seed=3)
    optimizer = torch.optim.Adam(model.parameters())
    x = rows()
    model(x).sum().backward()
    optimizer.step()
    step = gqc.state_of(model).seed.step
    with nothing_lost(model, optimizer):
        gqc.memory_report(model, x, loss_fn=lambda out: out.square().mean())
        gqc.memory_report(model, x)
    assert gqc.state_of(model).seed.step == step


def test_eager_islands_count() -> None:
    x = rows()
    report = gqc.memory_report(gqc.compile(Positive(), bits=32), x)
    assert report.saved_bytes == report.saved_bytes_measured
    assert any("an eager island" in e.reason for e in report.entries)


def test_a_call_of_other_sizes_is_measured_at_its_own() -> None:
    model = gqc.compile(MLP(), bits=32)
    model(rows(40)).sum().backward()
    report = gqc.memory_report(model, rows())
    assert report.saved_bytes == report.saved_bytes_measured > 4 * ROWS * 64
    assert gqc.state_of(model).num_variants == 1


def test_the_peak_is_what_is_allocated_at_one_time() -> None:
    size = 1 << 20
    assert size <= most_allocated(lambda: torch.empty(size, dtype=torch.uint8), CPU) < 1.1 * size

    def in_turn() -> None:
        for _ in range(3):
            torch.empty(size, dtype=torch.uint8)

    def together() -> None:
        assert len([torch.empty(size, dtype=torch.uint8) for _ in range(3)]) == 3

    assert size <= most_allocated(in_turn, CPU) < 1.1 * size
    assert 3 * size <= most_allocated(together, CPU) < 3.1 * size


def test_the_plot_stacks_what_is_saved(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    report = gqc.memory_report(gqc.compile(MLP(), min_size=0), rows())
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(gqc.GqcError, match=r"MemoryReport\.plot needs matplotlib"):
            report.plot(tmp_path / "none.png")
    pytest.importorskip("matplotlib")
    report.plot(tmp_path / "saved.svg")
    assert (tmp_path / "saved.svg").stat().st_size > 1000
    bars = stacked(report.model, report.entries, report.saved_bytes_eager).axes[0].patches
    assert sum(bar.get_height() for bar in bars) * 2**20 == pytest.approx(
        report.saved_bytes_eager + sum(e.before + e.after for e in report.entries)
    )


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(TypeError, match=r"pass the result of gqc\.compile"):
        gqc.memory_report(MLP(), rows())
    model = gqc.compile(MLP())
    with pytest.raises(TypeError, match="missing a required argument"):
        gqc.memory_report(model)
    with torch.no_grad(), pytest.raises(gqc.GqcError, match="no output of MLP has a gradient"):
        gqc.memory_report(model, rows())
    with pytest.raises(gqc.GqcError, match=r"gqc\.memory_report: loss_fn returned a tensor of shape"):
        gqc.memory_report(model, rows(), loss_fn=lambda out: out)
    with pytest.raises(TypeError, match=r"gqc\.memory_report: loss_fn='mse' must be a function of the model's result"):
        gqc.memory_report(model, rows(), loss_fn="mse")


def entries_of(model: nn.Module, *args: Any, **policy: Any) -> dict[str, SavedPlan]:
    return {entry.name: entry for entry in gqc.memory_report(gqc.compile(model, **policy), *args).entries}


@pytest.mark.parametrize(
    ("bits", "skip", "relus"),
    [(8, (), 2), (32, (), 2), (8, ("fuse_pointwise", "fuse_products"), 1)],
    ids=["int8", "exact", "as on a GPU"],
)
def test_masks_in_bits_have_the_shape_of_the_mask(
    bits: int, skip: tuple[str, ...], relus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the bits do not fill their last byte."""
    monkeypatch.setattr(sys.modules["gqc.passes.fuse_kernels"], "LEFT_ALONE", () if skip else ("cpu",))
    layers = [nn.Linear(32, 36), nn.ReLU(), nn.Linear(36, 36), nn.ReLU(), nn.Linear(36, 4), nn.Sigmoid()]
    n = 603
    entries = entries_of(nn.Sequential(*layers, nn.Dropout()), rows(n), bits=bits, min_size=0, skip=skip)
    masks = [entry for entry in entries.values() if entry.how == "mask in 1 bit"]
    assert sorted(entry.shape for entry in masks) == [(n, 4)] * (bits == 8) + [(n, 36)] * relus
    for entry in masks:
        assert entry.dtype == "bool"
        assert entry.before == n * entry.shape[1]
        assert n * entry.shape[1] / 8 <= entry.after <= n * -(-entry.shape[1] // 8)


def test_copies_of_what_the_caller_holds_spare_nothing() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x[:, :16]).tanh())

    x = rows()
    report = gqc.memory_report(gqc.compile(Part(), min_size=0, keep_output_layer=False), x)
    copies = {entry.shape: entry for entry in report.entries if entry.how == "int8 operand"}
    assert copies[ROWS, 16].before == copies[64, 64].before == 0  # a view of the input, a weight
    assert "which the caller holds" in copies[ROWS, 16].reason
    assert copies[ROWS, 64].before == 4 * ROWS * 64
    assert report.saved_bytes_fp32 == report.saved_bytes_eager == 4 * ROWS * 64
