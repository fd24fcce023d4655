"""The memory benchmark measures what it says, and everybody computes the same network."""

import json
import sys

import pytest
import torch

from benchmarks import memory, plot
from benchmarks.graphs import node_data
from benchmarks.memory import CONTESTANTS, Contest, saved_bytes
from benchmarks.peers import EAGER, Setting


def test_contestants_compute_the_same_network() -> None:
    contest = Contest(Setting("sage", node_data("arxiv", scale=0.002), hidden=32, layers=3, dropout=0.0), None)
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
