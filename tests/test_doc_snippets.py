"""The snippets of the pages run one after the other, as copied into one file, and print what the pages show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import gqc
from gqc.runtime import native

DOCS = Path(__file__).resolve().parents[1] / "docs"


def run(text: str) -> dict[str, object]:
    names: dict[str, object] = {"__name__": "copied"}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(block, "copied.py", "exec"), names)
    return names


def rows(text: str) -> list[list[str]]:
    """The cells of the rows of tables."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line.startswith("│")]


def percent(row: list[str]) -> float:
    return float(row[4].removesuffix("%"))


def test_debugging(capsys: pytest.CaptureFixture[str]) -> None:
    if native.isa() not in ("avx512", "amx"):
        pytest.skip("what is stored in which type, and so named, depends on instructions: the page shows AVX-512's")
    page = (DOCS / "debugging.md").read_text()
    run(page)
    printed = rows(capsys.readouterr().out)
    shown = rows(page)
    *errors, culprit = shown
    assert culprit == printed[-1]
    assert [percent(row) for row in errors] == sorted(map(percent, errors), reverse=True)
    found = {tuple(row[:4]): percent(row) for row in printed if len(row) == 7}
    for row in errors:
        assert percent(row) == pytest.approx(found[tuple(row[:4])], rel=0.1), row


def test_a_pass_of_your_own() -> None:
    page = (DOCS / "passes.md").read_text()
    model = run(page.split("## Write your own pass")[1])["model"]
    assert isinstance(model, nn.Module)
    model(torch.randn(100, 64)).sum().backward()
    kept = [
        d for r in gqc.explain(model).variants[0].stages[0].reports if r.name == "keep_gradients" for d in r.decisions
    ]
    assert kept
    assert {d.half for d in kept} == {"backward"}


def test_memory(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "memory.md").read_text()
    run(page)
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("saved: ")]
    assert printed == re.findall(r"^saved: .*$", page, flags=re.MULTILINE)
