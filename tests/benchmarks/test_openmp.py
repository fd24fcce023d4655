"""The benchmark of two OpenMP runtimes: one process has one of them, the other two, whose threads both are there."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import openmp
from gqc.runtime import native


def test_the_copy_asks_for_another_runtime(tmp_path: Path) -> None:
    runtime = tmp_path / "libany.so"
    runtime.write_bytes(b"runtime")
    library = openmp.bind_to_second(tmp_path, runtime)
    original, copied = native.library_path().read_bytes(), library.read_bytes()
    assert openmp.NEEDED in original
    assert openmp.NEEDED not in copied
    assert copied.replace(openmp.OTHER, openmp.NEEDED) == original
    assert (tmp_path / "libgomp.so.2").read_bytes() == b"runtime"


def test_table() -> None:
    records = [{"rows": 1000, "pair": "relu, quantize", "torch": [1, 2, 3], "gqc": [1, 1, 1], "turns": [3, 3, 6]}]
    found = {"runtimes": ["/lib/one.so", "/lib/two.so"], "threads": 5, "records": records}
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(openmp.table("title", found))
    text = console.export_text()
    assert "title, 5 threads" in text
    assert "/lib/two.so" in text
    row = next(line for line in text.splitlines() if "relu" in line)
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    assert cells == ["1,000", "relu, quantize", "2000.000", "1000.000", "3000.000", "1.50"]


@pytest.mark.slow
def test_the_second_runtime_has_threads_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    args = argparse.Namespace(rows=[500], rounds=1)
    (one,) = openmp.runtimes()
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    shared = openmp.run_child(args, None, tmp_path / "one")
    apart = openmp.run_child(args, Path(one), tmp_path / "two")
    assert shared["runtimes"] == [one]
    assert sorted(apart["runtimes"]) == sorted([one, str(tmp_path / "two" / "libgomp.so.2")])
    assert apart["threads"] == shared["threads"] + 1
    assert [record["pair"] for record in apart["records"]] == [record["pair"] for record in shared["records"]]
