"""Every convolution through gqc.compile without quantization: joint graph, passes and partition change no number."""

import copy
import re

import pytest
import torch

dgl = pytest.importorskip("dgl")

from dgl_cases import CASES, MODES, SIZES, Case, in_modes  # noqa: E402
from dgl_compare import assert_same, run, tensors  # noqa: E402

from gqc.capture import read_call  # noqa: E402
from gqc.compile import compile, state_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_advice")

TABLE = "DGL convolutions, compiled once, equal to eager on graphs of three sizes"


# Training is tested of all; evaluation of a dropout, a norm and attention, as test_convs.py captures all in both.
EVALUATED = {"EdgeConv(batch norm)", "GATConv(dropout)", "RelGraphConv(basis, dropout)"}
assert {case.name for case, training in MODES if not training} > EVALUATED


@in_modes(lambda case, training: not training and case.name not in EVALUATED)
def test_compiled_equals_eager(case: Case, training: bool, coverage_row):
    coverage_row(TABLE, case.name, "FAILED")
    model = case.build().train(training)
    eager = copy.deepcopy(model)
    compiled = compile(model, bits=32)
    for size in SIZES:
        pair = []
        for module in (eager, compiled):
            args, kwargs = case.inputs(size), case.kwargs(size)
            leaves = [x for x in read_call(args, kwargs).flat if x.requires_grad and x.is_leaf]
            pair.append(run(lambda m=module, a=args, k=kwargs: m(*a, **k), module, leaves))
        assert_same(*pair, rtol=1e-7, atol=1e-7)
    state = state_of(compiled)
    assert state.num_variants == 1
    assert not state.fallbacks
    coverage_row(TABLE, case.name, "split around an eager island" if case.islands else "one graph")


# One of each way in which a layer meets autocast: products, attention, reductions, a recurrence, typed weights, norms,
# an island, and layers that DGL refuses to run.
IN_EACH_RUN = {
    *("AGNNConv", "APPNPConv", "CFConv", "ChebConv(lambda)", "ChebConv(lambda as a list)", "DenseSAGEConv"),
    *("DotGatConv", "EdgeConv(batch norm)", "GATConv", "GATv2Conv", "GINConv(max)", "GINConv(mean, edge weight)"),
    *("GMMConv(mean)", "GatedGraphConv(1 type)", "GraphConv(both)", "GraphConv(block)", "NNConv(mean)"),
    *("RelGraphConv(basis, wide)", "RelGraphConv(bdd, layer norm)", "SAGEConv(mean, block)", "SAGEConv(pool)"),
    *("SAGEConv(lstm)", "SGConv(norm, edge weight)"),
}
assert {case.name for case in CASES} > IN_EACH_RUN
AUTOCAST = [pytest.param(c, id=c.name, marks=[] if c.name in IN_EACH_RUN else [pytest.mark.slow]) for c in CASES]


@pytest.mark.parametrize("case", AUTOCAST)
def test_compiled_under_autocast(case: Case):
    """bfloat16 keeps 8 bits, so the truth is full precision; where DGL refuses to mix dtypes, so must gqc."""
    torch.set_default_dtype(torch.float32)
    model = case.build().eval()
    true = model(*case.inputs(SIZES[0]), **case.kwargs(SIZES[0]))
    eager, refusal = copy.deepcopy(model), ""
    compiled = compile(model, bits=32)
    with torch.autocast("cpu", torch.bfloat16):
        try:
            expected = eager(*case.inputs(SIZES[0]), **case.kwargs(SIZES[0]))
        except Exception as error:
            refusal = str(error)
        if refusal:
            with pytest.raises(Exception, match=re.escape(refusal)):
                compiled(*case.inputs(SIZES[0]), **case.kwargs(SIZES[0]))
            return
        got = compiled(*case.inputs(SIZES[0]), **case.kwargs(SIZES[0]))
    assert not state_of(compiled).fallbacks
    for exact, a, b in zip(tensors(true), tensors(expected), tensors(got), strict=True):
        assert b.dtype == a.dtype
        torch.testing.assert_close(b.float(), exact, rtol=0.0, atol=0.1 * exact.abs().max().item())
