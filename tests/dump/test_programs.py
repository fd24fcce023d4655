"""The Python files of a dump run on their own and compute what the graphs compute."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import fx

import gqc
from tests.dump.dump_cases import CASES, load

ROOT = Path(__file__).resolve().parents[2]
ON_FLOATS = ("joint", "simplify", "copy_updated", "scale_after_gemm", "find_primitives", "measure_saved")


def results(program, inputs):
    outputs, gradients = program.joint(**{name: value.clone() for name, value in inputs.items()})
    return [*outputs, *gradients.values()]


def assert_equal(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def files(folder):
    return sorted(folder.glob("[0-9][0-9]_*.py"))


@pytest.mark.parametrize("name", CASES)
def test_every_file_computes_what_its_graph_computes(name, dumped):
    model, folder = dumped(name)
    ((variant,),) = gqc.state_of(model).variants.values()
    stages = [step for step in variant.steps if hasattr(step, "joint")]
    assert [f.name for f in sorted(folder.iterdir())] == [f"stage{i + 1}" for i in range(len(stages))]
    for number, stage in enumerate(stages, 1):
        *passes, halves = map(load, files(folder / f"stage{number}"))
        torch.manual_seed(0)
        inputs = passes[-1].example_inputs()
        final = results(passes[-1], inputs)
        interpreted = fx.Interpreter(stage.joint.module).run(
            *[v.clone() for v in inputs.values()], enable_io_processing=False
        )
        assert_equal([r for r in interpreted if r is not None], final)

        primals = {k: v.clone() for k, v in inputs.items() if not k.startswith("tangent")}
        outputs, saved = halves.forward(**primals)
        gradients = halves.backward(*saved, *[v for k, v in inputs.items() if k.startswith("tangent")])
        assert_equal([*outputs, *gradients.values()], final)

        kept = {k: v for k, v in inputs.items() if k != "seed"}
        captured, *others = (p for p in passes if p.__name__[3:] in ON_FLOATS)
        torch.manual_seed(0)
        expected = results(captured, kept)
        for program in others:
            torch.manual_seed(0)
            torch.testing.assert_close(results(program, kept), expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_files_run_as_scripts(dumped, tmp_path):
    _, folder = dumped("gat")
    every = files(folder / "stage1")
    for file in (every[0], every[-1]):
        done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        assert "output 0" in done.stdout
        assert "gradient of conv1_fc_weight" in done.stdout


def test_constants_have_names(dumped):
    _, folder = dumped("gat")
    text = files(folder / "stage1")[-1].read_text()
    assert re.search(r"= ops.quantize\(input_0, absmax=None, seed=seed, node=\d+, bits=8, stochastic=True\)", text)
    assert re.search(r"= ops.qgemm_pointwise\(\w+, \w+, \w+, \w+, trans_b=True, dtype=torch.", text)
    assert "# ops.qgemm_pointwise(Tensor a, Tensor a_scale," in text


def test_structure_is_labelled(dumped):
    _, folder = dumped("pyg")
    told = json.loads((folder / "stage1" / "reasons.json").read_text())["structure"]
    assert told
    text = files(folder / "stage1")[0].read_text()
    labels = dict(re.findall(r"    (input_\d+),  # .*\| structure, .*, ([\w.]+:\d+)\n", text))
    assert labels == {t["node"]: t["line"] for t in told}
    assert not re.search(r"_[a-z0-9_]{8}\.py:", "".join(labels.values()).replace("message_passing", ""))
    assert "computed once a graph" in (folder.parent / "index.html").read_text()


def test_inputs_are_those_of_the_example(dumped):
    _, folder = dumped("rgcn")
    inputs = load(files(folder / "stage1")[-1]).example_inputs()
    sizes = {tuple(v.shape) for v in inputs.values()}
    assert {(60, 32), (300,), (61,)} <= sizes
    types = next(v for k, v in inputs.items() if v.dtype == torch.int64 and k == "input_9")
    assert types.max() == 2  # types of edges index the weights of 3 relations
