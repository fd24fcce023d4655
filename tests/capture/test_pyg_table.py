"""Every PyG conv and model of the table, captured once, equals eager on graphs of two sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("torch_geometric")

from compare import assert_like_eager, with_gradients
from pyg_cases import CASES, Sample

from gqc.capture import capture
from gqc.errors import CaptureError

TABLE = "capture of PyG and plain PyTorch (dense inputs)"


@pytest.mark.parametrize("name", CASES)
def test_capture_equals_eager(name: str, coverage_row: Callable[[str, str, str], None]) -> None:
    case = CASES[name]
    coverage_row(TABLE, name, "FAILED")
    model = case.build()
    (args, kwargs), _ = with_gradients(case.call(Sample(60, 240, 0)))
    if case.eager is not None:
        with pytest.raises(CaptureError) as error:
            capture(model, args, kwargs)
        coverage_row(TABLE, name, f"eager: {case.eager}")
        assert error.value.location
        return
    captured = capture(model, args, kwargs)
    for size in (Sample(60, 240, 0), Sample(77, 310, 1)):
        assert_like_eager(captured, model, *case.call(size))
    islands = ", ".join(f"{island.name} ({island.reason})" for island in captured.islands)
    coverage_row(TABLE, name, f"islands: {islands}" if islands else "one graph")


def test_capture_leaves_no_trace() -> None:
    case = CASES["GCN[batch norm, jumping knowledge]"]
    model = case.build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    capture(model, *case.call(Sample(60, 240, 0)))
    assert torch.equal(generator, torch.get_rng_state())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
