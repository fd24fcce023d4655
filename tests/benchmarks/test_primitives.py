"""The benchmarks of single kernels run, call what they name, and compute shares of ceilings as they say."""

from __future__ import annotations

import importlib
import io
import sys

import pytest
import torch
from rich.console import Console

from benchmarks import primitives_all, primitives_chains
from benchmarks.ceilings import Contestant, table
from benchmarks.chains import CHAINS
from benchmarks.halves import compiled_halves, halves
from benchmarks.timer import Timing

COMPILING = ("primitives_loss", "primitives_chains")
"""Those that wait for Inductor."""

NAMED = {
    "primitives": "int8 X' dY",
    "primitives_dense": "X' dY, bf16x3",
    "primitives_saved": "project from",
    "primitives_low_bits": "SDDMM dot",
    "primitives_graph": "gradient of max",
    "primitives_edges": "max of edges, backward",
    "primitives_attention": "GATv2, float32, backward",
    "primitives_typed": "float32, of the matrices",
    "primitives_loss": "half of the rows, gqc, backward",
    "primitives_chains": "int8 sum, gqc after, int8",
}


@pytest.mark.parametrize("module", [m for m in NAMED if m not in COMPILING])
def test_tables(module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    run(module, monkeypatch)
    assert NAMED[module] in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("module", COMPILING)
def test_tables_with_inductor(module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    run(module, monkeypatch)
    assert NAMED[module] in capsys.readouterr().out


def run(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", [module, *primitives_all.MODULES[module](0.001), "--rounds", "1"])
    importlib.import_module(f"benchmarks.{module}").main()


def test_all_of_them_are_in_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(primitives_all.MODULES) == {*NAMED, "openmp"}
    calls: list[tuple[str, list[str], str]] = []
    monkeypatch.setattr(primitives_all, "run_module", lambda *arguments: calls.append(arguments))
    options = "--only primitives_typed primitives_dense --scale 0.5 --rounds 2"
    monkeypatch.setattr(sys, "argv", ["primitives_all", *options.split()])
    primitives_all.main()
    assert calls == [
        ("benchmarks.primitives_typed", ["--scale", "0.5", "--rounds", "2"], "tuned"),
        ("benchmarks.primitives_dense", ["--rows", "84672", "--rounds", "2"], "tuned"),
    ]


def test_a_share_is_what_the_ceilings_need_over_what_it_took() -> None:
    seconds = {"rows, 8 ahead": 2.0, "rows, 16 ahead": 1.0, "copy": 1.0, "kernel": 4.0, "free": 1.0}
    group = {
        "rows, 8 ahead": Contestant(print, 10**9, ceiling="rows"),
        "rows, 16 ahead": Contestant(print, 10**9, ceiling="rows"),
        "copy": Contestant(print, 4 * 10**9, ceiling="copy"),
        "kernel": Contestant(print, {"rows": 2 * 10**9, "copy": 4 * 10**9}, operations=8 * 10**9),
        "free": Contestant(print, 10**9),
    }
    timings = {name: Timing((value, value + 1)) for name, value in seconds.items()}
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table("title", group, timings))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in console.export_text().splitlines()]
    assert [row for row in rows if row] == [
        ["rows, 16 ahead", "1000.00 / 1500.00", "1.0", "", ""],
        ["copy", "1000.00 / 1500.00", "4.0", "", ""],
        ["kernel", "4000.00 / 4500.00", "1.5", "2", "75 %"],
        ["free", "1000.00 / 1500.00", "1.0", "", ""],
    ]


@pytest.mark.parametrize("name", CHAINS)
def test_programs_compute_what_the_chains_do(name: str) -> None:
    chain, rows, width = CHAINS[name], 50, 24
    x, grad = torch.randn(rows, width, requires_grad=True), torch.randn(rows, width)
    inputs = [x, *chain.others(rows, width)]
    forward, backward = primitives_chains.own_halves(chain, inputs, grad, torch.tensor([1, 2]))
    out, gradients = forward()[0], backward()
    if "dropout" not in name:
        expected_forward, expected_backward = halves(chain.function, inputs, grad)
        torch.testing.assert_close(out, expected_forward())
        torch.testing.assert_close(gradients, list(expected_backward()))
        return
    # The numbers drawn differ: what is kept is twice what an evaluation gives, about half of it.
    full = chain.function(*inputs, training=False)
    kept = out != 0
    torch.testing.assert_close(out[kept], 2 * full[kept])
    assert 0.4 < (kept.sum() / (full != 0).sum()) < 0.6
    (expected,) = torch.autograd.grad(full, x, 2 * grad * kept)
    torch.testing.assert_close(gradients[0], expected)


def test_halves_repeat() -> None:
    x, grad = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3)
    forward, backward = halves(torch.exp, [x], grad)
    for _ in range(2):
        torch.testing.assert_close(forward(), x.exp())
        torch.testing.assert_close(backward(), (grad * x.exp(),))


@pytest.mark.slow
def test_compiled_halves_repeat() -> None:
    x, grad = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3)
    forward, backward = compiled_halves(lambda x: (x.exp() + 1).sin(), [x], grad)
    for _ in range(2):
        torch.testing.assert_close(forward(), (x.exp() + 1).sin())
        torch.testing.assert_close(backward(), (grad * (x.exp() + 1).cos() * x.exp(),))
