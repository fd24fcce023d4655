"""Every convolution of dgl.nn.pytorch: forward, gradients and buffers equal eager on three graph sizes, one capture."""

import re
import warnings

import pytest
import torch
from torch import nn

dgl = pytest.importorskip("dgl")

from dgl_cases import CASES, SIZES, Case  # noqa: E402
from dgl_compare import check, replay, tensors  # noqa: E402

from gqc.capture import capture  # noqa: E402
from gqc.capture.islands import StructureIsland  # noqa: E402

CONVS_WITHOUT_CASE = {
    "CuGraphGATConv": "needs pylibcugraphops",
    "CuGraphRelGraphConv": "needs pylibcugraphops",
    "CuGraphSAGEConv": "needs pylibcugraphops",
    "DenseChebConv": "calls torch.symeig or torch.eig, which torch has removed",
}


@pytest.fixture(autouse=True)
def _no_advice():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def modes(case: Case) -> list[bool]:
    """Training first; evaluation too if the module has a part that tells them apart."""
    parts = case.build().modules()
    differ = any(isinstance(m, nn.BatchNorm1d) or (isinstance(m, nn.Dropout) and m.p > 0) for m in parts)
    return [True, False] if differ else [True]


@pytest.mark.parametrize(
    ("case", "training"),
    [pytest.param(c, t, id=f"{c.name}-{'train' if t else 'eval'}") for c in CASES for t in modes(c)],
)
def test_equals_eager(case: Case, training: bool, coverage):
    model = case.build().train(training)
    captured = check(model, SIZES, case.inputs, case.kwargs, rtol=case.rtol)
    islands = [i for i in captured.islands if not isinstance(i, StructureIsland)]
    assert len(islands) == case.islands, [(i.name, i.reason) for i in islands]
    (coverage.islands if islands else coverage.whole)[case.conv].add(case.variant)


def test_every_convolution_has_a_case():
    covered = {case.conv for case in CASES} | CONVS_WITHOUT_CASE.keys()
    assert set(dgl.nn.pytorch.conv.__all__) <= covered
    assert len(CASES) >= 60


UNDER_AUTOCAST = [
    case
    for case in CASES
    if case.name
    in (
        "GATConv",
        "GATv2Conv",
        "GCN2Conv",
        "GINConv(max)",
        "GraphConv(both)",
        "HGTConv(norm)",
        "NNConv(mean)",
        "RelGraphConv(plain)",
        "SAGEConv(lstm)",
        "SAGEConv(pool)",
    )
]


@pytest.mark.parametrize("case", UNDER_AUTOCAST, ids=lambda case: case.name)
def test_under_autocast(case: Case):
    """bfloat16 keeps 8 bits, so the truth is full precision; where DGL refuses to mix dtypes, so does the capture."""
    torch.set_default_dtype(torch.float32)
    model = case.build().eval()
    expected = model(*case.inputs(SIZES[0]), **case.kwargs(SIZES[0]))
    args, kwargs = case.inputs(SIZES[0]), case.kwargs(SIZES[0])
    with torch.autocast("cpu", torch.bfloat16):
        try:
            model(*args, **kwargs)
        except dgl.DGLError as refusal:
            with pytest.raises(dgl.DGLError, match=re.escape(str(refusal))):
                capture(model, args, kwargs)
            return
        captured = capture(model, args, kwargs)
        got = replay(captured, args, kwargs)
    for a, b in zip(tensors(expected), tensors(got), strict=True):
        scale = a.abs().max().item()
        torch.testing.assert_close(b.float(), a, rtol=0.0, atol=0.08 * scale + 1e-3)
