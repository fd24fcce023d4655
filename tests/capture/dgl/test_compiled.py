"""Convolutions through gqc.compile without quantization: joint graph, passes and partition change no number."""

import copy

import pytest
import torch

dgl = pytest.importorskip("dgl")

from dgl_cases import CASES, SIZES, Case  # noqa: E402
from dgl_compare import assert_same, run  # noqa: E402

from gqc.capture import read_call  # noqa: E402
from gqc.compile import compile, state_of  # noqa: E402

NAMES = (
    "GraphConv(both)",
    "GraphConv(block)",
    "GATConv(dropout)",
    "GINConv(max)",
    "SAGEConv(mean)",
    "SAGEConv(lstm)",
    "GroupRevRes",
    "EdgeConv(batch norm)",
    "RelGraphConv(basis, wide)",
    "HGTConv(norm)",
)
SELECTED = [case for case in CASES if case.name in NAMES]


@pytest.mark.parametrize("case", SELECTED, ids=lambda case: case.name)
def test_compiled_equals_eager(case: Case):
    torch.set_default_dtype(torch.float32)
    model = case.build()
    eager = copy.deepcopy(model)
    compiled = compile(model, bits=32)
    for size in SIZES:
        pair = []
        for module in (eager, compiled):
            args, kwargs = case.inputs(size), case.kwargs(size)
            leaves = [x for x in read_call(args, kwargs).flat if x.requires_grad and x.is_leaf]
            pair.append(run(lambda m=module, a=args, k=kwargs: m(*a, **k), module, leaves))
        assert_same(*pair, rtol=1e-3, atol=2e-4)
    state = state_of(compiled)
    assert state.num_variants == 1
    assert not state.fallbacks


def test_every_selected_case_exists():
    assert len(SELECTED) == len(NAMES)
