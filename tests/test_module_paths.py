"""A module that stands at two paths is meant by either."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gqc
from gqc.passes.nodes import origin
from gqc.passes.primitive import marked


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Sequential(nn.Linear(16, 16)), nn.Linear(16, 16)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x).relu()).relu())


@pytest.mark.parametrize(
    ("options", "kept", "bits"),
    [
        ({"keep": ["second"]}, {True}, {8}),
        ({"keep": ["sec*"]}, {True}, {8}),
        ({"keep": ["second.0"]}, {True}, {8}),
        ({"bits": {"second": 4, "*": 6}}, {False}, {4}),
        ({"bits": {"first": 4, "second": 5}}, {False}, {4}),
        ({"bits": {"*": 6, "second*": 4}}, {False}, {6}),
    ],
)
def test_second_path(options: dict, kept: set[bool], bits: set[int]) -> None:
    model = gqc.compile(Tied(), min_size=0, keep_output_layer=False, **options)
    with torch.no_grad():
        model(torch.randn(20, 16))
    ((variant,),) = gqc.state_of(model).variants.values()
    primitives = [(origin(node).module, p) for step in variant.steps for node, p in marked(step.joint.graph)]
    tied = [p for module, p in primitives if module == "first.0"]
    assert len(tied) == 2
    assert ({p.kept is not None for p in tied}, {p.bits for p in tied}) == (kept, bits)
    assert [p.kept for module, p in primitives if module == "last"] == [None]
