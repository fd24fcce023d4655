"""The memory benchmarks measure what they say, and everybody computes the same network."""

import json
import sys

import pytest
import torch
from rich.console import Console

from benchmarks import memory, memory_recommenders, plot
from benchmarks.graphs import node_data
from benchmarks.memory import CONTESTANTS
from benchmarks.peers import EAGER, Setting
from benchmarks.saving import Contest, Made, saved_bytes
from examples.recommendation.datasets import amazon_book
from examples.recommendation.models import MODELS


def test_contestants_compute_the_same_network() -> None:
    contest = memory.contest(Setting("sage", node_data("arxiv", scale=0.002), hidden=32, layers=3, dropout=0.0), None)
    assert contest.names == list(CONTESTANTS)
    expected = contest.make(EAGER)[1]()
    for name in ("checkpoint", "DGL bf16 autocast", "gqc save_bits=1"):
        step, forward = contest.make(name)
        exact = "bf16" not in name
        tolerance = 1e-4 if exact else 0.1 * expected.abs().max().item()
        torch.testing.assert_close(forward().float(), expected, rtol=0, atol=tolerance)
        assert min(step()) > 0


def test_saved_bytes_are_counted() -> None:
    x = torch.randn(1000, 64, requires_grad=True)
    assert saved_bytes(lambda: x.exp()) == 0  # the result itself
    assert saved_bytes(lambda: x.exp().sin()) == x.nbytes


def test_tables_records_and_the_plot(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    file = tmp_path / "memory.json"
    options = "--model gcn --scale 0.01 --hidden 64 --layers 3 --rounds 1 --threads 1 --no-dropout"
    names = ["checkpoint", "gqc bits=32", "gqc save_bits=2"]
    monkeypatch.setattr(sys, "argv", ["memory", *options.split(), "--json", str(file), "--contestant", *names])
    memory.main()
    records = {record["contestant"]: record for record in json.loads(file.read_text())}
    assert set(records) == {EAGER, *names} <= set(CONTESTANTS)
    saved = {name: record["saved_bytes"] for name, record in records.items()}
    assert 9 * saved["gqc save_bits=2"] < saved["gqc bits=32"] <= saved[EAGER]
    assert saved["checkpoint"] < saved[EAGER]
    peaks = {name: record["most_allocated"] for name, record in records.items()}
    assert saved["gqc save_bits=2"] < peaks["gqc save_bits=2"] < peaks["gqc bits=32"]
    assert records[EAGER]["time_ratio"] == records["gqc bits=32"]["time_of_exact"] == 1
    assert "gqc save_bits=2" in capsys.readouterr().out
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(sys, "argv", ["plot", str(file), str(tmp_path / "memory.svg")])
    plot.main()
    assert (tmp_path / "memory.svg").stat().st_size > 1000


def test_who_cannot_run_is_named_unless_it_is_ours(capsys) -> None:
    def make(name: str) -> Made:
        if name != "base":
            raise RuntimeError("no bfloat16\nhere")
        x = torch.ones(8, requires_grad=True)
        return lambda: x.exp().sum().backward(), lambda: x.exp().sin()

    def records(*names: str) -> list[dict[str, object]]:
        return Contest("title", {"model": "any"}, make, ["base", *names]).measure(1, Console(), of_processor=True)

    (record,) = records("bf16 autocast")
    assert (record["contestant"], record["clock"], record["model"]) == ("base", "processor", "any")
    assert "bf16 autocast cannot run: RuntimeError: no bfloat16\n" in capsys.readouterr().out
    with pytest.raises(RuntimeError, match="no bfloat16"):
        records("gqc bits=32")


@pytest.mark.parametrize("model", MODELS)
def test_recommenders_have_the_same_loss(model: str) -> None:
    contest = memory_recommenders.contest(model, amazon_book(400), None, batch=64, width=16, layers=2)
    names = [memory_recommenders.EAGER, "checkpoint", "PyTorch bf16 autocast"]
    assert contest.names[:3] == names
    losses, saved = [], []
    for name in names:
        step, forward = contest.make(name)
        torch.manual_seed(1)  # the same dropout
        losses.append(forward().item())
        saved.append(saved_bytes(forward))
        assert step() > 0
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] == pytest.approx(losses[0], rel=0.02)
    assert losses[2] != losses[0]
    assert max(saved[1:]) < saved[0]


def test_recommenders_are_measured_by_one_command(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    file = tmp_path / "recommenders.json"
    options = "--scale 400 --model kgat --batch 64 --width 16 --layers 1 --rounds 1 --threads 1 --of-processor"
    few = "gqc save_bits=2"
    monkeypatch.setattr(
        sys, "argv", ["memory_recommenders", *options.split(), "--json", str(file), "--contestant", few]
    )
    memory_recommenders.main()
    records = json.loads(file.read_text())
    assert [record["contestant"] for record in records] == ["PyTorch fp32", few]
    assert {(r["model"], r["batch"], r["clock"]) for r in records} == {("kgat", 64, "processor")}
    assert 5 * records[1]["saved_bytes"] < records[0]["saved_bytes"]
    assert "KGAT, 1 layers, width 16, batches of 64" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["memory_recommenders", "--data", "lastfm"])
    with pytest.raises(SystemExit):
        memory_recommenders.main()
    assert "--data-root" in capsys.readouterr().err
    pytest.importorskip("matplotlib")
    assert plot.memory(records).axes[0].get_xlabel() == "step, times as long as PyTorch fp32"
