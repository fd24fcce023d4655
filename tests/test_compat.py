"""`import gqc` makes DGL importable; each test runs in a Python of its own because imports happen once."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

# importlib.util.find_spec("pandas") must answer None for a hidden package, as it does for one that is not installed.
HIDE_PACKAGES = """
import importlib.machinery, sys
_find = importlib.machinery.PathFinder.find_spec
def _hidden(name, path=None, target=None):
    return None if name.partition(".")[0] in {packages!r} else _find(name, path, target)
importlib.machinery.PathFinder.find_spec = staticmethod(_hidden)
"""


def run(code: str, tmp_path: Path, hide: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DGL")} | {"HOME": str(tmp_path)}
    hidden = HIDE_PACKAGES.format(packages=hide) if hide else ""
    return subprocess.run(
        [sys.executable, "-c", hidden + code], capture_output=True, text=True, env=environment, timeout=120
    )


needs_dgl = pytest.mark.skipif(importlib.util.find_spec("dgl") is None, reason="DGL is not installed")


@needs_dgl
def test_dgl_imports_and_leaves_the_home_alone(tmp_path):
    done = run("import gqc, dgl; print(dgl.graph(([0], [1])).num_edges())", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"
    assert "backend not selected" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@needs_dgl
def test_gqc_leaves_the_import_of_dgl_to_the_user(tmp_path):
    done = run("import gqc, sys; print([name for name in sys.modules if name.split('.')[0] == 'dgl'])", tmp_path)
    assert done.stdout == "[]\n", done.stderr


@needs_dgl
def test_dgl_imports_after_an_attempt_without_gqc_failed(tmp_path):
    done = run(
        """
try:
    import dgl
    failed = False
except Exception:
    failed = True
import gqc, dgl
print(failed, dgl.graph(([0], [1])).num_edges())
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] in ("True 1", "False 1")


USES_OF_GRAPHBOLT = [
    "gb.ItemSet([1])",
    "gb.FusedCSCSamplingGraph.from_csc",
    "gb.expand_indptr(1)",
    "type('Mine', (gb.MiniBatch,), {})",
    "__import__('dgl.graphbolt.impl').graphbolt.impl.OnDiskDataset('.')",
]


@needs_dgl
def test_using_graphbolt_says_why_and_what_to_install(tmp_path):
    code = f"""
import gqc, dgl, dgl.graphbolt as gb
if isinstance(gb, gqc.compat._StandInModule):
    for use in {USES_OF_GRAPHBOLT!r}:
        try:
            eval(use)
        except ImportError as error:
            print(error)
    print(isinstance(1, gb.FusedCSCSamplingGraph), hasattr(gb, '__file__'))
"""
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    if not done.stdout:
        pytest.skip("this torch has a GraphBolt of its own")
    *messages, harmless = done.stdout.splitlines()
    assert len(messages) == len(USES_OF_GRAPHBOLT)
    for message in messages:
        assert message.startswith("dgl.graphbolt.")
        assert "compiled for torch 2.0.0" in message
        assert "pip install torch==" in message
    assert harmless == "False False"


@needs_dgl
def test_missing_requirements_of_dgl_are_named(tmp_path):
    done = run("import gqc, dgl", tmp_path, hide=("pandas", "packaging"))
    message = done.stderr.strip().splitlines()[-1]
    assert "gqc.compat.DGLMissing: DGL is installed, but `import dgl` needs" in message
    assert "pip install packaging pandas" in message


def test_without_dgl_gqc_imports_and_says_what_to_install(tmp_path):
    code = """
import gqc.compat
try:
    import dgl
except ModuleNotFoundError as error:
    print(error)
try:
    gqc.compat.require_dgl()
except gqc.compat.DGLMissing as error:
    print(error)
"""
    done = run(code, tmp_path, hide=("dgl",))
    plain, ours = done.stdout.splitlines()
    assert plain == "No module named 'dgl'"
    assert ours.startswith("DGL is not installed")
    assert "pip install 'gqc[dgl]'" in ours


@needs_dgl
def test_an_imported_dgl_is_left_alone(tmp_path):
    code = """
import gqc, dgl
before = dgl
from gqc.compat import install, require_dgl
import sys
finders = list(sys.meta_path)
install()
print(require_dgl() is before, finders == sys.meta_path)
"""
    assert run(code, tmp_path).stdout == "True True\n"
