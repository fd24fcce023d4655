"""Every convolution of dgl.nn.pytorch: forward, gradients and buffers equal eager on three graph sizes, one capture."""

import pytest

dgl = pytest.importorskip("dgl")

from dgl_cases import CASES, SIZES, Case, in_every_mode  # noqa: E402
from dgl_compare import check  # noqa: E402

from gqc.capture.islands import StructureIsland  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_advice")

CONVS_WITHOUT_CASE = {
    "CuGraphGATConv": "needs pylibcugraphops",
    "CuGraphRelGraphConv": "needs pylibcugraphops",
    "CuGraphSAGEConv": "needs pylibcugraphops",
    "DenseChebConv": "calls torch.symeig or torch.eig, which torch has removed",
}


@in_every_mode
def test_equals_eager(case: Case, training: bool):
    model = case.build().train(training)
    captured = check(model, SIZES, case.inputs, case.kwargs)
    islands = [i for i in captured.islands if not isinstance(i, StructureIsland)]
    assert len(islands) == case.islands, [(i.name, i.reason) for i in islands]


def test_every_convolution_has_a_case():
    covered = {case.conv for case in CASES} | CONVS_WITHOUT_CASE.keys()
    assert set(dgl.nn.pytorch.conv.__all__) <= covered
    assert len(CASES) >= 60
