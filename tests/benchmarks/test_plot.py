"""The picture of a benchmark's steps."""

from __future__ import annotations

import pytest

from benchmarks import plot
from benchmarks.peers import EAGER, INT8


def record(model: str, contestant: str, speedup: float) -> dict[str, object]:
    return {"model": model, "malloc": "tuned", "contestant": contestant, "speedup": speedup, "median_ms": 300 / speedup}


def test_a_panel_a_model_and_a_bar_a_contestant() -> None:
    pytest.importorskip("matplotlib")
    records = [
        record(model, name, speedup) for model in ("gcn", "gat") for name, speedup in ((EAGER, 1.0), (INT8, 3.0))
    ]
    panels = plot.steps(records).axes
    assert [axes.get_title() for axes in panels] == ["gcn, tuned malloc", "gat, tuned malloc"]
    for axes in panels:
        assert [label.get_text() for label in axes.get_yticklabels()] == [EAGER, INT8]
        assert [bar.get_width() for bar in axes.patches] == [1.0, 3.0]
        assert [text.get_text() for text in axes.texts] == ["1.00x, 300 ms", "3.00x, 100 ms"]
