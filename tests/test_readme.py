"""What the README shows runs, and what it says about options is what the code does."""

import dataclasses
import re
from pathlib import Path

import pytest

from gqc import Policy

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()


def test_examples_run_one_after_the_other(capsys) -> None:
    pytest.importorskip("torch_geometric")
    examples = re.findall(r"```python\n(.*?)```", README.split("## Use it")[1], flags=re.DOTALL)
    assert len(examples) == 2
    names: dict[str, object] = {"__name__": "readme"}
    for example in examples:
        exec(example, names)
    assert names["out"].shape == (10_000, 16)
    assert "quantized" in capsys.readouterr().out


def test_every_option_is_listed_with_its_default() -> None:
    listed = dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", README, flags=re.MULTILINE))
    defaults = {field.name: repr(field.default).replace("'", '"') for field in dataclasses.fields(Policy)}
    assert listed == defaults


def test_links_lead_somewhere() -> None:
    root = Path(__file__).resolve().parent.parent
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (root / link).exists()] == []
