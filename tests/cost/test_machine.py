"""Measured constants are kept for the machine they were measured on, and for no other."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import gqc
from gqc.cli import main
from gqc.cost import BUILT_IN, CostModel, machine, tune
from gqc.runtime import native


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_what_was_saved_is_used() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert machine.costs() == BUILT_IN[native.isa()]
        path = machine.save(CostModel(call=12.5))
        assert machine.costs() == CostModel(call=12.5)
    assert path.parent.name == "gqc"
    assert list(path.parent.iterdir()) == [path]


def test_threads_and_instruction_sets_have_files_of_their_own() -> None:
    machine.save(CostModel(call=12.5))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert machine.costs() == BUILT_IN[native.isa()]
    finally:
        torch.set_num_threads(threads)
    with native.use_isa("portable"):
        assert machine.costs() == BUILT_IN["portable"]
    assert machine.costs() == CostModel(call=12.5)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:-20], "is damaged"),
        (lambda text: "[]", "is damaged"),
        (lambda text: text.replace("12.5", '"fast"'), "expected a number of us > 0"),
        (lambda text: text.replace('"call"', '"cal"'), "has other constants than this gqc"),
        (lambda text: json.dumps(json.loads(text) | {"machine": {"processor": "6502"}}), "another machine.*6502"),
    ],
)
def test_a_file_of_no_use_is_reported_and_ignored(damage, message: str) -> None:
    path = machine.save(CostModel(call=12.5))
    path.write_text(damage(path.read_text()))
    with pytest.warns(gqc.TuneWarning, match=rf"{path.name}[\s\S]*{message}[\s\S]*gqc doctor --tune"):
        assert machine.costs() == BUILT_IN[native.isa()]


def test_doctor_measures_and_tells_what_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "_SECONDS", 1e-3)
    monkeypatch.setattr("gqc.cli.doctor.FAMILIES", [])
    doctor = lambda *options: CliRunner().invoke(main, ["doctor", *options])  # noqa: E731
    assert f"built in for {native.isa()}" in doctor().output
    tuned = doctor("--tune")
    assert tuned.exit_code == 0, tuned.output
    assert f"measured, in {machine.file()}" in tuned.output
    assert f"int8_gemm {machine.costs().int8_gemm:g} GOP/s" in tuned.output
    assert doctor().output == tuned.output
    machine.file().write_text("")
    damaged = doctor().output
    assert "ignored: " in damaged
    assert f"built in for {native.isa()}" in damaged
