"""The scripts from end to end on small graphs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from examples import bits, demo, node_classification, sweep, user_pass

ROOT = Path(__file__).resolve().parents[2]


def call(main, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["script", *map(str, arguments)])
    main()


def test_demo_trains_both_and_prints_one_table(tmp_path, monkeypatch, capsys) -> None:
    file = tmp_path / "demo.json"
    call(demo.main, monkeypatch, "--nodes", 600, "--epochs", 3, "--json", file)
    printed = capsys.readouterr().out
    assert "GCN" in printed
    assert "GAT" in printed
    for fp32, int8 in json.loads(file.read_text()).values():
        assert int8["quantized"] > 0
        assert int8["saved_mb"] < fp32["saved_mb"]
        assert int8["kept"]
        for reason in int8["kept"]:
            assert reason.split()[0] in printed


def test_node_classification_trains_every_variant_from_the_same_weights() -> None:
    args = node_classification.parser().parse_args(["--nodes", "400", "--seeds", "2", "--epochs", "2"])
    console = Console(record=True, width=120)
    result = node_classification.run(args, console)
    assert set(result["test_accuracy"]) == set(node_classification.VARIANTS)
    assert all(len(values) == 2 and min(values) >= 0 for values in result["test_accuracy"].values())
    printed = console.export_text()
    for name in node_classification.VARIANTS:
        assert name in printed


def test_node_classification_compares_policies() -> None:
    options = ["--policy", "bits=4,rounding=nearest", "--policy", "min_size=0"]
    args = node_classification.parser().parse_args(["--nodes", "400", "--seeds", "1", "--epochs", "2", *options])
    result = node_classification.run(args, Console(quiet=True))
    assert list(result["test_accuracy"]) == ["fp32", "int8", "bits=4,rounding=nearest", "min_size=0"]


@pytest.mark.parametrize(("options", "text"), [("bits", "not FIELD=VALUE"), ("bit=4", "did you mean 'bits'")])
def test_node_classification_refuses_a_wrong_policy(options, text, capsys) -> None:
    with pytest.raises(SystemExit):
        node_classification.parser().parse_args(["--policy", options])
    assert text in capsys.readouterr().err


def test_node_classification_runs_by_path_too() -> None:
    script = ROOT / "examples" / "node_classification.py"
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, check=True, cwd="/")
    assert "--data-root" in done.stdout


def test_user_pass_trains_with_a_quantized_forward_and_an_exact_backward(monkeypatch, capsys) -> None:
    call(user_pass.main, monkeypatch, "--nodes", 400, "--epochs", 2)
    printed = capsys.readouterr().out
    assert printed.count("test accuracy") == 3
    assert "gradients stay exact" in printed


RESULT = {
    "model": "gcn",
    "data": "cora",
    "seeds": 2,
    "test_accuracy": {"fp32": [80.0, 82.0], "int8": [80.5, 82.5], "int8 nearest": [79.0, 81.0]},
}


def test_sweep_writes_means_differences_and_seeds() -> None:
    rows = sweep.table([RESULT]).splitlines()
    assert "| gcn | Cora | 2 | 81.00 ± 1.41 | 81.50 ± 1.41 | 80.00 ± 1.41 | +0.50 |" in rows
    assert "| gcn | Cora | int8 | 80.5 82.5 |" in rows
    width = rows[0].count("|")
    assert [row.count("|") for row in rows[:3]] == [width] * 3


def test_sweep_keeps_the_page_around_its_markers() -> None:
    page = f"before\n{sweep.BEGIN}\nold\n{sweep.END}\nafter\n"
    once = sweep.rewrite(page, "new")
    assert once == f"before\n{sweep.BEGIN}\nnew\n{sweep.END}\nafter\n"
    assert sweep.rewrite(once, "new") == once
    with pytest.raises(ValueError, match="markers"):
        sweep.rewrite("a page without", "new")
    assert sweep.BEGIN in sweep.PAGE.read_text()


def test_sweep_does_not_repeat_a_pair_that_is_there(tmp_path) -> None:
    (tmp_path / "gcn-cora.json").write_text(json.dumps(RESULT))
    assert sweep.run_pair("gcn", "cora", tmp_path, ["--no-such-option"]) == RESULT


def test_bits_shows_the_rule_beside_the_accuracies_and_trains_once(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(bits, "WIDTHS", (3, 8))
    arguments = ("--nodes", 400, "--seeds", 1, "--epochs", 2, "--results", tmp_path)
    call(bits.main, monkeypatch, *arguments)
    printed = capsys.readouterr().out
    assert "Error_X of the output of conv1, 2 bits 0." in printed
    assert "picked" in printed or "bits: Error_X" in printed
    (file,) = tmp_path.iterdir()
    assert set(json.loads(file.read_text())) == {"fp32", "3", "8"}

    file.write_text(json.dumps({"fp32": [80.0], "3": [79.5], "8": [81.0]}))
    call(bits.main, monkeypatch, *arguments)
    printed = capsys.readouterr().out
    assert "-0.50" in printed
    assert "+1.00" in printed
