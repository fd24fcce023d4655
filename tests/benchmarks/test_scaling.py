import json
import sys
from pathlib import Path

import pytest

from benchmarks import plot, scaling
from benchmarks.peers import EAGER, INT8


def test_factors_double_along_one_axis() -> None:
    by_axis = {axis: list(scaling.sizes(axis, 4)) for axis in scaling.AXES}
    assert [factor for factor, _ in by_axis["graph"]] == [1, 2, 4]
    for axis, option in (("graph", "scale"), ("edges", "edge_scale"), ("hidden", "hidden")):
        values = [options[option] for _, options in by_axis[axis]]
        assert [value / values[0] for value in values] == [1, 2, 4]
        rest = [{name: value for name, value in options.items() if name != option} for _, options in by_axis[axis]]
        assert rest == [rest[0]] * 3


@pytest.mark.slow
def test_time_and_memory_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setitem(scaling._SMALLEST, "scale", 1 / 200)
    file = tmp_path / "scaling.json"
    options = f"--axis edges --most 1 --rounds 1 --layers 2 --threads 1 --malloc default --json {file}"
    monkeypatch.setattr(sys, "argv", ["scaling", *options.split()])
    scaling.main()
    records = json.loads(file.read_text())
    assert [(r["axis"], r["factor"], r["contestant"]) for r in records] == [("edges", 1, EAGER), ("edges", 1, INT8)]
    assert all(record["peak_bytes"] > 0 and record["median_ms"] > 0 for record in records)
    assert f"{records[1]['speedup']:.2f}x" in capsys.readouterr().out


RECORD = {"median_ms": 2.0, "speedup": 1.5, "before_bytes": 10**6, "peak_bytes": 3 * 10**6}


@pytest.mark.parametrize(
    "records",
    [
        [{**RECORD, "model": "gcn", "malloc": malloc, "contestant": name} for malloc in ("a", "b") for name in "xy"],
        [{**RECORD, "axis": axis, "factor": f, "contestant": name} for axis in "ab" for f in (1, 2) for name in "xy"],
    ],
)
def test_drawings(records: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "in.json").write_text(json.dumps(records))
    monkeypatch.setattr(sys, "argv", ["plot", str(tmp_path / "in.json"), str(tmp_path / "out.svg")])
    plot.main()
    assert (tmp_path / "out.svg").read_text().startswith("<?xml")
