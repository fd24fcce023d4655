import json
import sys

import pytest

from benchmarks import overhead, step
from benchmarks.peers import EAGER, INT8


@pytest.mark.parametrize("model", ["gcn", "gat", "sage"])
def test_step_times_all_contestants(model, tmp_path, monkeypatch, capsys) -> None:
    file = tmp_path / "step.json"
    options = f"--model {model} --nodes 300 --rounds 2 --malloc default --threads 1 --json {file}"
    monkeypatch.setattr(sys, "argv", ["step", *options.split()])
    step.main()
    records = {record["contestant"]: record for record in json.loads(file.read_text())}
    assert {EAGER, INT8, "gqc bits=32"} <= set(records)
    assert records[EAGER]["speedup"] == 1
    assert records[INT8]["first_call_s"] > records[INT8]["median_ms"] / 1e3
    printed = capsys.readouterr().out
    assert all(name in printed for name in records)
    # DGL's GATConv mixes dtypes under autocast; the table goes without and says so.
    assert ("DGL bf16 autocast" in records) == (model != "gat")
    assert ("cannot run gat" in printed) == (model == "gat")


def test_overhead_times_training_and_evaluation() -> None:
    measured = overhead.measure("gcn", rounds=2)
    assert set(measured) == {"training step", "evaluation"}
    assert all(set(timings) == {EAGER, INT8} for timings in measured.values())
