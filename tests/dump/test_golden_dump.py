"""What a dump says about a GCN, a GAT and an RGCN, as text that a reviewer reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "dump"


def normalised(text: str) -> str:
    """Without the numbers of source lines, which move from one release of DGL to the next."""
    return re.sub(r"(\w+\.py):\d+", r"\1", text)


def contents(stage: Path) -> dict[str, str]:
    """The golden files of a stage: the graph after all passes, its halves, how it came to be, and why."""
    *_, final, halves = sorted(stage.glob("[0-9][0-9]_*.py"))
    diffs = [f.read_text() for f in sorted(stage.glob("*.diff"))]
    found = {"final.txt": final.read_text(), "halves.txt": halves.read_text(), "diffs.txt": "".join(diffs)}
    found["reasons.json"] = (stage / "reasons.json").read_text()
    return {name: normalised(text) for name, text in found.items()}


@pytest.mark.parametrize("name", ["gcn", "gat", "rgcn"])
def test_dump(name, dumped, request):
    _, folder = dumped(name)
    golden = GOLDEN / name
    actual = contents(folder / "stage1")
    if request.config.option.update_golden:
        golden.mkdir(parents=True, exist_ok=True)
        for file, text in actual.items():
            (golden / file).write_text(text)
    for file, text in actual.items():
        path = golden / file
        assert path.exists(), f"{path} is missing: run pytest --update-golden"
        assert text == path.read_text(), f"{path} differs: if that is meant, run pytest --update-golden and review it"
