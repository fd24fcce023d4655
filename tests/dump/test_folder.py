"""Where dumps go, what stays there, and what happens when that fails."""

from __future__ import annotations

import json
import os
import re
import warnings
from pathlib import Path

import networkx
import pytest
import torch
from torch import Tensor, nn

import gqc
from gqc.dump import write_dump
from gqc.passes import Insert
from gqc.passes.int8_copies import lifetimes
from gqc.passes.report import Report


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.last = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu())


def texts(folder: Path) -> dict[str, str]:
    return {str(f.relative_to(folder)): f.read_text() for f in folder.rglob("*") if f.is_file()}


def train(model: nn.Module) -> None:
    model(torch.randn(10, 8)).sum().backward()


def test_a_variant_has_a_folder(tmp_path):
    model = gqc.compile(MLP(), min_size=0, dump=tmp_path)
    train(model)
    with torch.no_grad():
        model.eval()(torch.randn(10, 8))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index.html", "variant1_train", "variant2_eval"]
    titles = re.findall(r"<h2>(.*?) <small>", (tmp_path / "index.html").read_text())
    assert titles == ["Variant 1: training mode", "Variant 2: evaluation mode, without gradients"]
    stage = tmp_path / "variant1_train" / "stage1"
    programs, diffs = sorted(stage.glob("*.py")), sorted(stage.glob("*.diff"))
    assert len(programs) == len(diffs) + 2  # the first graph and the halves have none
    assert [p.name[:3] for p in programs] == [f"{i:02}_" for i in range(len(programs))]
    assert programs[0].name == "00_joint.py"
    assert programs[-1].name.endswith("_halves.py")
    assert {"reasons.json", "errors.json", "graph.graphml", "index.html"} <= {p.name for p in stage.iterdir()}


def test_reasons_are_those_of_explain(tmp_path):
    model = gqc.compile(MLP(), min_size=0, dump=tmp_path)
    train(model)
    ((variant,),) = gqc.state_of(model).variants.values()
    decided = json.loads((tmp_path / "variant1_train/stage1/reasons.json").read_text())
    expected = [(r.name, d.node, d.action, d.reason) for r in variant.steps[0].reports for d in r.decisions]
    assert [(d["pass"], d["node"], d["action"], d["reason"]) for d in decided["decisions"]] == expected
    assert {"gemm"} <= {d["kind"] for d in decided["decisions"]}
    forward = [d for d in decided["decisions"] if d["half"] == "forward" and d["kind"] == "gemm"]
    assert all(d["line"].startswith("test_folder.py:") for d in forward)
    after = {d["node"]: d["node_after"] for d in decided["decisions"] if d["action"] == "quantized"}
    assert after["addmm"] == "addmm_int8_fused"
    kept = {d["node"]: d["node_after"] for d in decided["decisions"] if d["action"] == "kept"}
    assert kept
    assert all(name == final for name, final in kept.items())
    names = {n.name for n in variant.steps[0].joint.graph.nodes}
    assert {d["node_after"] for d in decided["decisions"]} - {None} <= names
    copies = lifetimes(variant.steps[0].joint)
    assert [c["tensor"] for c in decided["int8_copies"]] == [c.tensor for c in copies]
    assert next(c for c in decided["int8_copies"] if c["tensor"] == "first_weight")["tensor_module"] == "first"
    first, nodes = texts(tmp_path)["variant1_train/stage1/00_joint.py"], decided["numbers"]["simplify"]["nodes before"]
    assert sum(" | " in line or line.endswith("  # ") for line in first.splitlines()) == nodes
    saved = sum(s["nbytes"] for s in decided["saved"])
    assert saved == sum(s.nbytes() for s in variant.steps[0].saved)


def test_the_policy_is_told(tmp_path):
    own = Insert(lambda joint, policy: Report("mine"), after="simplify", name="mine")
    policy = gqc.Policy(bits={"first": 4}, rounding="nearest", min_size=0, keep=("last",), passes=(own,))
    train(gqc.compile(MLP(), policy, dump=tmp_path))
    told = json.loads((tmp_path / "variant1_train/stage1/reasons.json").read_text())["policy"]
    assert told["bits"] == {"first": 4}
    assert told["passes"] == ["mine"]
    text = "bits={'first': 4}, rounding='nearest', keep_output_layer=True, attention_logits='fp32', min_size=0, "
    for name in ("00_joint.py", "index.html"):
        assert f"{text}keep=['last'], passes=['mine']" in (tmp_path / "variant1_train/stage1" / name).read_text()
    assert "min_size=0" in (tmp_path / "index.html").read_text()


def test_the_diff_of_a_pass_that_changes_nothing_says_so(tmp_path):
    train(gqc.compile(MLP(), min_size=0, dump=tmp_path))
    stage = tmp_path / "variant1_train/stage1"
    assert (stage / "02_copy_updated.diff").read_text() == (
        "# 02_copy_updated.py is 01_simplify.py: the pass changed nothing\n"
    )
    assert all(f.read_text() for f in stage.glob("*.diff"))


def test_graphml_holds_the_graph(tmp_path):
    model = gqc.compile(MLP(), min_size=0, dump=tmp_path)
    train(model)
    ((variant,),) = gqc.state_of(model).variants.values()
    graph = networkx.read_graphml(tmp_path / "variant1_train/stage1/graph.graphml")
    nodes = variant.steps[0].joint.graph.nodes
    assert {n.name for n in nodes if n.op == "placeholder"} <= set(graph.nodes)
    assert {"addmm_int8_fused()", "relu_out_1", "input_0_int8"} <= set(graph.nodes)
    assert networkx.is_directed_acyclic_graph(graph)
    assert graph.nodes["addmm_int8_fused()"]["line"].startswith("test_folder.py:")
    saved = {name: data["saved"] for name, data in graph.nodes(data=True) if data.get("saved")}
    assert saved == {s.name: s.nbytes() for s in variant.steps[0].saved if s.nbytes()}


def test_two_runs_write_the_same(tmp_path):
    for run in ("one", "two"):
        torch.manual_seed(0)
        train(gqc.compile(MLP(), min_size=0, dump=tmp_path / run))
    one = texts(tmp_path / "one")
    assert "variant1_train/stage1/index.html" in one
    assert one == texts(tmp_path / "two")


def test_an_earlier_run_is_replaced_and_other_files_stay(tmp_path):
    first = gqc.compile(MLP(), min_size=0, dump=tmp_path)
    train(first)
    first.eval()(torch.randn(10, 8))
    mine = tmp_path / "variant2_eval" / "stage1" / "notes.txt"
    mine.write_text("mine")
    (tmp_path / "variant1_train" / "stage1" / "99_other_pass.py").write_text("left over")
    (tmp_path / "data.py").write_text("mine")
    train(gqc.compile(MLP(), min_size=0, dump=tmp_path))
    assert (tmp_path / "variant1_train" / "stage1" / "index.html").is_file()
    assert not (tmp_path / "variant1_train" / "stage1" / "99_other_pass.py").exists()
    assert [p.name for p in (tmp_path / "variant2_eval" / "stage1").iterdir()] == ["notes.txt"]
    assert (tmp_path / "data.py").read_text() == "mine"


def test_a_file_in_the_way_is_an_error_of_compile(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(gqc.DumpError, match=r"taken'.*is a file; name a folder"):
        gqc.compile(MLP(), dump=tmp_path / "taken")
    with pytest.raises(gqc.DumpError, match="is a file"):
        gqc.compile(MLP(), dump=tmp_path / "taken" / "below")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_an_error_of_compile(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(gqc.DumpError, match="no permission"):
        gqc.compile(MLP(), dump=tmp_path)


def test_a_dump_that_fails_leaves_training_alone(tmp_path):
    folder = tmp_path / "dump"
    model = gqc.compile(MLP(), min_size=0, dump=folder)
    folder.rmdir()
    folder.write_text("somebody else's file")
    with pytest.warns(gqc.DumpWarning, match="training goes on"):
        train(model)
    assert gqc.state_of(model).num_variants == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model)


def test_a_graph_that_cannot_be_recorded_leaves_training_alone(tmp_path, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("in the dump")

    monkeypatch.setattr("gqc.dump.stage.take", fail)
    model = gqc.compile(MLP(), min_size=0, dump=tmp_path)
    with pytest.warns(gqc.DumpWarning, match="ZeroDivisionError: in the dump") as caught:
        train(model)
    assert len([w for w in caught if w.category is gqc.DumpWarning]) == 1
    assert gqc.state_of(model).num_variants == 1
    assert list(tmp_path.iterdir()) == []


def test_variable_gives_each_model_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GQC_DUMP", str(tmp_path))
    models = [gqc.compile(MLP(), min_size=0) for _ in range(2)]
    for model in models:
        train(model)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["MLP", "MLP_2", "index.html"]
    assert all((tmp_path / name / "variant1_train/stage1/index.html").is_file() for name in ("MLP", "MLP_2"))
    links = re.findall(r'href="([^"]+/index.html)"', (tmp_path / "index.html").read_text())
    assert links == ["MLP/index.html", "MLP_2/index.html"]
    named = gqc.compile(MLP(), min_size=0, dump=tmp_path / "named")
    train(named)
    assert (tmp_path / "named/variant1_train").is_dir()


def test_without_dump_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv("GQC_DUMP", raising=False)
    monkeypatch.chdir(tmp_path)
    model = gqc.compile(MLP(), min_size=0)
    train(model)
    assert gqc.state_of(model).dumper is None
    assert list(tmp_path.iterdir()) == []


def test_write_dump(tmp_path):
    model = MLP()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    page = write_dump(model, (torch.randn(10, 8),), tmp_path, policy=gqc.Policy(min_size=0))
    assert page == tmp_path / "index.html"
    assert "variant1_train/stage1/index.html" in page.read_text()
    measured = json.loads((tmp_path / "variant1_train/stage1/errors.json").read_text())
    assert "drawn from N(0, 1)" in measured["note"]
    assert {"first.weight", "last.weight"} <= {n["gradient_of"] for n in measured["nodes"]}
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert all(p.grad is None for p in model.parameters())


def test_write_dump_of_a_model_that_runs_eagerly(tmp_path):
    class Seeds(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch.manual_seed(0)
            return x + 1

    with pytest.warns(gqc.FallbackWarning), pytest.raises(gqc.DumpError, match=r"no graph to dump.*seeds"):
        write_dump(Seeds(), (torch.randn(3),), tmp_path)


def test_a_page_of_somebody_else_is_an_error_of_compile(tmp_path):
    (tmp_path / "index.html").write_text("<h1>my site</h1>")
    with pytest.raises(gqc.DumpError, match=r"an index.html that is not a dump's; name another folder"):
        gqc.compile(MLP(), dump=tmp_path)
    assert (tmp_path / "index.html").read_text() == "<h1>my site</h1>"


def test_the_entry_page_tells_what_runs_eagerly(tmp_path):
    class Sometimes(MLP):
        def forward(self, x: Tensor, seed: bool) -> Tensor:
            if seed:
                torch.manual_seed(0)
            return super().forward(x)

    model = gqc.compile(Sometimes(), min_size=0, dump=tmp_path)
    model(torch.randn(10, 8), False)
    entry = tmp_path / "index.html"
    assert "run eagerly" not in entry.read_text()
    with pytest.warns(gqc.FallbackWarning):
        model(torch.randn(10, 8), True)
    assert "Calls that run eagerly" in entry.read_text()
    assert "seed" in entry.read_text().split('id="eager"')[1]
    assert 'href="variant1_train/stage1/index.html"' in entry.read_text()


def test_inputs_have_the_names_of_the_arguments(tmp_path):
    class Mixed(MLP):
        def forward(self, x: Tensor, features: dict[str, Tensor], *rest: Tensor, input: Tensor) -> Tensor:
            return super().forward(x + features["user"] + rest[0]) + input

    one = [torch.randn(10, 8) for _ in range(3)]
    gqc.compile(Mixed(), min_size=0, dump=tmp_path)(one[0], {"user": one[1]}, one[2], input=torch.randn(10, 2))
    text = (tmp_path / "variant1_train/stage1/00_joint.py").read_text()
    assert re.findall(r"input_\d,  # .*\| input (\w+)", text) == ["x", "features_user", "rest_0", "input_1"]
