"""tools.gpu_check: a dry run of all of it, and what it makes of sections that go wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gqc.runtime import native
from gqc.runtime.cuda import LAUNCHERS
from tools.gpu_check import ops, sanitizer, tables
from tools.gpu_check.place import Place
from tools.gpu_check.record import FAILED, MISSING, NO_TIME, OK, Found, Missing, Record, Section

pytest.importorskip("torch_geometric")

LATER = set(native.SIGNATURES) - set(LAUNCHERS)
"""Kernels that have no CUDA form yet."""

ON_THE_CPU = {"quantize_by_guess"}
"""Ways in which the op of another kernel runs there."""


@pytest.mark.slow
def test_a_dry_run_finds_nothing_wrong_and_leaves_out_only_what_needs_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.gpu_check", "--dry", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    results = {r["name"]: r for r in json.loads((tmp_path / "gpu_check.json").read_text())["sections"]}
    missing = [text for result in results.values() for text in result["found"]["missing"]]
    assert "sanitizer: Missing: needs a GPU" in missing
    assert not [text for text in missing if "needs a GPU" not in text and "has no CUDA kernel" not in text]
    if not LATER:
        assert {name for name, result in results.items() if result["status"] != OK} == {"sanitizer"}
    compared = {row["op"] for row in results["ops"]["found"]["rows"]}
    assert compared >= set(native.SIGNATURES) - LATER - ON_THE_CPU
    assert {row["model"] for row in results["training steps"]["found"]["rows"]} == {"gcn", "gat", "sage"}
    assert done.stdout.endswith((tmp_path / "gpu_check.md").read_text() + "\n")


def test_every_kernel_is_compared() -> None:
    inputs = ops.Inputs(small=True)
    compared = {case.op for cases in ops.FAMILIES.values() for case in cases(inputs)}
    assert compared >= set(native.SIGNATURES) - ON_THE_CPU


def _raise(until: float) -> Found:
    raise ValueError("a wrong number")


def _lack(until: float) -> Found:
    raise Missing("no such tool")


def _crash(until: float) -> Found:
    os.kill(os.getpid(), signal.SIGKILL)
    return Found()


def _hang(until: float) -> Found:
    time.sleep(60)
    return Found()


def test_a_section_that_goes_wrong_costs_that_section_only(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.json", 30.0, {"title": "test"})
    for name, run in {"raises": _raise, "lacks": _lack, "crashes": _crash, "hangs": _hang}.items():
        record.run(Section(name, 1.0, run))
    record.run(Section("works", 1.0, lambda until: Found({"answer": 42}, [{"a": 0.12345, "b": "x"}])))
    record._end = time.monotonic()
    record.run(Section("comes too late", 1.0, lambda until: Found()))

    written = json.loads((tmp_path / "record.json").read_text())
    statuses = {result["name"]: result["status"] for result in written["sections"]}
    assert statuses == {
        **{"raises": FAILED, "lacks": MISSING, "crashes": FAILED, "hangs": FAILED, "works": OK},
        "comes too late": NO_TIME,
    }
    text = tables.markdown("a GPU", record.results)
    for line in ("- FAILED: raises: ValueError: a wrong number", "- FAILED: its process ended with -9"):
        assert line in text
    for line in ("- FAILED: not done after 1 s", "- not checked: lacks: Missing: no such tool"):
        assert line in text
    assert "| a | b |\n| --- | --- |\n| 0.123 | x |" in text


@pytest.mark.parametrize("exact", [True, False])
def test_a_device_that_computes_something_else_is_seen(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(20, 8)
    case = ops.Case("", "absmax", (x,), exact)
    assert ops.compare(Place(dry=True), case) == 0
    monkeypatch.setattr(Place, "to", lambda place, tree: (1.001 * x,))
    with pytest.raises(AssertionError):
        ops.compare(Place(dry=True), case)


def test_the_float64_result_is_compared_too() -> None:
    case = ops.Case("", "absmax", (torch.randn(20),), exact=False, in_float64=lambda x: 1.001 * x.abs().max())
    with pytest.raises(AssertionError):
        ops.compare(Place(dry=True), case)


def test_a_sanitizers_summary_is_its_last_one() -> None:
    output = "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
    assert sanitizer.summary(output) == "0 hazards displayed (0 errors, 0 warnings)"
    assert sanitizer.summary("========= ERROR SUMMARY: 3 errors\n") == "3 errors"
    assert sanitizer.summary("") == "no summary"
