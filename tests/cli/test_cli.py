"""The command ``gqc``: what it writes, how it fails and with which exit codes."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from gqc.cli import main, self_test
from gqc.cli.load import LoadError
from gqc.runtime import native
from gqc.runtime.cuda import origin
from tests.ruff import ruff_complaints

ROOT = Path(__file__).resolve().parents[2]

USER = """
import torch
from torch import nn
from helper import WIDTH

class Net(nn.Sequential):
    pass

def make_model():
    return Net(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 5))

def example_inputs():
    return (torch.randn(50, WIDTH),)

def keywords():
    return {"input": torch.randn(50, WIDTH)}

def list_of_inputs():
    return [torch.randn(50, WIDTH)]

def no_model():
    return 3

def broken():
    raise KeyError("nothing is here")

def with_width(hidden):
    return Net(nn.Linear(hidden, 5))

class Uncaptured(nn.Module):
    def forward(self, input):
        return [input, object()]
"""


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's file, which imports another from its folder."""
    path = tmp_path / "user_file.py"
    path.write_text(USER)
    (tmp_path / "helper.py").write_text("WIDTH = 16\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_rewrite_writes_a_module_that_trains(user: Path, tmp_path: Path) -> None:
    output = tmp_path / "rewritten.py"
    result = run("rewrite", f"{user}:make_model", "--example", f"{user}:keywords", "-o", output, "--set", "min_size=0")
    assert result.exit_code == 0, result.output
    assert f"wrote {output}" in result.stderr
    source = output.read_text()
    assert ruff_complaints(source, tmp_path) == ""
    assert f"{user}:make_model" in source
    assert "min_size=0" in source
    namespace: dict[str, type[torch.nn.Module]] = {}
    exec(compile(source, str(output), "exec"), namespace)
    model = namespace["Net"]()
    model.load_state_dict({name: torch.randn(p.shape) for name, p in model.state_dict().items()}, strict=True)
    model(input=torch.randn(30, 16)).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_rewrite_prints_without_output_and_finds_example_inputs(user: Path) -> None:
    result = run("rewrite", f"{user}:make_model", "--mode", "eval")
    assert result.exit_code == 0, result.output
    assert "class Net(nn.Module):" in result.stdout
    assert "TrainStep" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{user}:nowhere"], 2, "has no 'nowhere'; it defines"),
        (["missing.py:make_model"], 2, "there is no file 'missing.py'"),
        (["{user}"], 2, "is not of the form path/to/file.py:name"),
        (["{user}:make_model", "--set", "bitz=8"], 2, "did you mean 'bits'"),
        (["{user}:make_model", "--set", "bits=8", "--set", "bits=4"], 2, "bits is set twice"),
        (["{user}:make_model", "--set", "bits"], 2, "not of the form field=value"),
        (["{user}:make_model", "--mode", "test"], 2, "'test' is not one of"),
        (["{user}:no_model"], 1, "gives an int, not a torch.nn.Module"),
        (["{user}:make_model", "--example", "{user}:list_of_inputs"], 1, "gives a list, and the arguments of a call"),
        (["{user}:broken"], 1, "{user}:broken raised KeyError: {user}:25: 'nothing is here'"),
        (["{user}:make_model", "--example", "{user}:broken"], 1, "{user}:broken raised KeyError: {user}:25:"),
        (["{user}:with_width"], 1, "{user}:with_width takes hidden: the function is called without arguments"),
        (["{user}:make_model", "--set", "passes=[]"], 2, "passes are Python functions"),
    ],
)
def test_errors_are_one_line_with_an_exit_code(user: Path, arguments: list[str], code: int, message: str) -> None:
    result = run("rewrite", *(a.replace("{user}", str(user)) for a in arguments))
    assert result.exit_code == code, result.output
    assert message.replace("{user}", str(user)) in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit)


def test_inspect_writes_the_dump(user: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    result = run("inspect", f"{user}:make_model", "-o", folder, "--set", "min_size=0")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"open {folder / 'index.html'}\n"
    (page,) = folder.glob("variant*/stage1/index.html")
    assert "quantize_operands" in page.read_text()
    (tmp_path / "file").write_text("")
    assert run("inspect", f"{user}:make_model", "-o", tmp_path / "file").exit_code == 2
    assert run("inspect", f"{user}:broken", "-o", folder).exit_code == 1


def test_inspect_says_once_why_there_is_nothing_to_dump(user: Path, tmp_path: Path) -> None:
    result = run("inspect", f"{user}:Uncaptured", "-o", tmp_path / "dump")
    assert result.exit_code == 1
    assert result.output.count("returns an object of type object") == 1, result.output
    assert "returns an object of type object" in (tmp_path / "dump" / "index.html").read_text()


def test_traceback_is_shown_when_asked(user: Path) -> None:
    result = run("rewrite", f"{user}:broken", "--traceback")
    assert result.exit_code == 1
    assert isinstance(result.exception, LoadError)
    assert isinstance(result.exception.__cause__, KeyError)


def test_version_and_unknown_commands() -> None:
    assert metadata.version("gqc") in run("--version").output
    assert run("frobnicate").exit_code == 2


def test_python_m_gqc(user: Path) -> None:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gqc", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    helped = call("--help")
    assert helped.returncode == 0
    assert "rewrite" in helped.stdout
    assert "doctor" in helped.stdout
    broken = call("rewrite", f"{user}:broken")
    assert broken.returncode == 1
    assert broken.stderr.startswith(f"Error: {user}:broken raised KeyError")


def test_doctor_finds_this_machine_well() -> None:
    result = run("doctor")
    assert result.exit_code == 0, result.output
    for text in (torch.__version__, "ISA", "threads", "libgqc_cpu.so", "CUDA", "GPU code", "on cpu", "All is well."):
        assert text in result.output
    for family in self_test.FAMILIES:
        assert any(line.split()[:2] == [family, "ok"] for line in result.output.splitlines()), family


def test_doctor_fails_where_a_kernel_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(inputs: object) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.ones(3), torch.ones(3)), (torch.ones(3), torch.tensor([1.0, 1.0, 1.5]))]

    monkeypatch.setitem(self_test.FAMILIES, "spmm", wrong)
    result = run("doctor")
    assert result.exit_code == 1
    assert "FAILED: differs from its reference by up to 0.5" in result.output


def test_doctor_says_where_the_code_of_gpus_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "FAMILIES", {})
    monkeypatch.setattr("gqc.cli.doctor.FAMILIES", {})
    monkeypatch.setattr(origin, "fatbin", lambda: tmp_path / "gqc_cuda.fatbin")
    monkeypatch.delenv("GQC_CUDA", raising=False)
    assert f"GPU code     by NVRTC from {ROOT / 'csrc' / 'cuda'}\n" in run("doctor").output
    one = bytes.fromhex(
        "50ed55ba 0100 1000 6000000000000000"  # header: 96 bytes of entries
        "0200 0101 20000000 1000000000000000 000000000000000000000000 5a000000"
        + 16 * "00"  # machine code of sm_90
        + "0100 0101 20000000 1000000000000000 000000000000000000000000 78000000"
        + 16 * "00"  # PTX of compute_120
    )
    (tmp_path / "gqc_cuda.fatbin").write_bytes(2 * one)
    assert "GPU code     sm_90, compute_120 in " in run("doctor").output
    monkeypatch.setenv("GQC_CUDA", "ptx")
    assert "GPU code     GQC_CUDA='ptx': choose 'fatbin' or 'nvrtc'" in run("doctor").output


def test_doctor_names_an_instruction_set_that_computes_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gqc.cli.doctor.FAMILIES", {})
    monkeypatch.setattr(native, "wrong_isas", lambda: {"avx1024": "quantize"})
    said = "not avx1024, which this processor runs wrongly, by a test of the kernel quantize"
    assert said in run("doctor").output


def test_doctor_names_a_wrong_isa(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GQC_ISA", "sse1")
    monkeypatch.setattr(native, "_functions", {})
    native._chosen_isa.cache_clear()
    try:
        result = run("doctor")
    finally:
        monkeypatch.undo()
        native._chosen_isa.cache_clear()
    assert result.exit_code == 1
    assert "GQC_ISA='sse1'" in result.output


def test_rewrite_loses_no_file_of_the_user(user: Path, tmp_path: Path) -> None:
    before, notes, rewritten = user.read_text(), tmp_path / "notes.py", tmp_path / "rewritten.py"
    notes.write_text("# mine\n")
    for output, message in (
        (user, "is the file that makes the model"),
        (notes, "was not written by gqc: --force replaces it"),
        (tmp_path / "nowhere" / "x.py", "there is no folder"),
    ):
        refused = run("rewrite", f"{user}:make_model", "-o", output)
        assert refused.exit_code == 2, refused.output
        assert message in " ".join(refused.output.split())
    assert (user.read_text(), notes.read_text()) == (before, "# mine\n")
    for output, options in ((notes, ["--force"]), (rewritten, []), (rewritten, [])):
        assert run("rewrite", f"{user}:make_model", "-o", output, "--mode", "eval", *options).exit_code == 0
    assert notes.read_text().startswith('"""Net, written down by gqc')
