"""GAT's edge phase as one op: which chains are fused, what stays the same and what is no longer saved."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

import gqc
from gqc.joint import SEED
from gqc.passes import partition, run
from gqc.passes.attention_chain import NotFused
from gqc.passes.attention_scores import scores_of
from gqc.passes.nodes import example
from gqc.passes.report import KEPT, REPLACED, Report
from gqc.policy import Policy
from tests.passes.models import MODELS, WIDTH, GATConv, OnRelation, case, graph_and_features, ops, reverse

SKIP = ("fuse_attention",)
SOFTMAX = ops.edge_softmax.default


def decided(model: OnRelation, **options: object) -> Report:
    reports = run(case(model).joint, Policy(min_size=0, **options))
    return next(r for r in reports if r.name == "fuse_attention")


class Attention(OnRelation):
    """A graph attention layer of which subclasses change a part."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, 24) / 4)
        self.left, self.right = (nn.Parameter(torch.randn(3, 8)) for _ in range(2))
        self.out = nn.Linear(24, 5)

    def run(self, g, x):
        h = (x @ self.weight).view(-1, 3, 8)
        left, right = ((h * a).sum(-1, keepdim=True) for a in (self.left, self.right))
        logits = self.activation(ops.sddmm(g, "add", left, right, "u", "v"))
        return self.attend(g, h, ops.edge_softmax(g, logits))

    def activation(self, x):
        return F.leaky_relu(x, 0.3)

    def attend(self, g, h, a):
        return self.out(ops.spmm(g, "mul", h, a).flatten(1))


def test_fuses_every_layer_forward_and_backward():
    for options in ({}, {"bits": 32}, {"rounding": "nearest"}):
        report = decided(MODELS["gat"](), **options)
        assert report.count() == {REPLACED: 4}
        assert "edge_softmax_bwd" in str(report)
    assert decided(Attention()).count() == {REPLACED: 2}


def test_no_tensor_on_edges_is_left_or_saved():
    saved = {}
    for skip in ((), SKIP):
        joint = case(MODELS["gat"]()).joint
        run(joint, Policy(min_size=0, skip=skip))
        halves = partition(joint)
        nodes, edges = 37, 149
        saved[skip] = {n: sum(s.nbytes() for s in halves.saved if n in map(example, s.shape)) for n in (nodes, edges)}
    # Of 3 heads and of 1: the softmax, 4 bytes an edge and head, and the mask of leaky ReLU are gone; of a node and
    # head el, er, the largest logit and the sum have come.
    assert saved[SKIP][edges] == edges * 4 * 4
    assert saved[()][edges] == 0
    assert saved[()][nodes] - saved[SKIP][nodes] == nodes * 4 * 16


class Returned(Attention):
    """As DGL's GATConv with get_attention."""

    def attend(self, g, h, a):
        return super().attend(g, h, a), a


class Twice(Attention):
    def attend(self, g, h, a):
        return super().attend(g, h, a) + super().attend(g, h * 2, a)


class OtherEdges(Attention):
    def attend(self, g, h, a):
        return super().attend(reverse(g), h, a)


class Elu(Attention):
    def activation(self, x):
        return F.elu(x)


class Shifted(Attention):
    """Logits that something else reads too."""

    def activation(self, x):
        return F.leaky_relu(x, 0.3) + 0 * x.detach().amax()


class Wide(Attention):
    """A weight for each feature."""

    def run(self, g, x):
        h = (x @ self.weight).view(-1, 3, 8)
        a = ops.edge_softmax(g, F.leaky_relu(ops.sddmm(g, "add", h, h, "u", "v")))
        return self.attend(g, h, a)


class Keys(OnRelation):
    """Attention whose logits come from the features of both ends; subclasses say how."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.left, self.right, self.values = (nn.Linear(WIDTH, 24) for _ in range(3))
        self.vector = nn.Parameter(torch.randn(1, 3, 8))
        self.out = nn.Linear(24, 5)

    def run(self, g, x):
        k, q, u = (f(x).view(-1, 3, 8) for f in (self.left, self.right, self.values))
        a = ops.edge_softmax(g, self.logits(g, k, q))
        a = F.dropout(a, self.dropout) if self.dropout else a
        return self.out(ops.spmm(g, "mul", u, a).flatten(1))


class V2(Keys):
    """As DGL's GATv2Conv."""

    def logits(self, g, k, q):
        return (F.leaky_relu(ops.sddmm(g, "add", k, q, "u", "v")) * self.vector).sum(-1).unsqueeze(2)


class Flipped(Keys):
    """The same with ends and factors the other way round, and a vector without a node axis."""

    def logits(self, g, k, q):
        return (self.vector[0] * F.leaky_relu(ops.sddmm(g, "add", q, k, "v", "u"), 0.4)).sum(2, keepdim=True)


class Divided(Keys):
    """As a graph transformer."""

    def logits(self, g, k, q):
        return ops.sddmm(g, "dot", k, q, "u", "v") / 8**0.5


class Multiplied(Keys):
    def logits(self, g, k, q):
        return ops.sddmm(g, "dot", q, k, "v", "u") * 0.3


class Plain(Keys):
    def logits(self, g, k, q):
        return ops.sddmm(g, "dot", k, q, "u", "v")


class ByParameter(Keys):
    """As AGNN: what the dot products are multiplied with is learned."""

    def logits(self, g, k, q):
        return ops.sddmm(g, "dot", k, q, "u", "v") * self.vector.sum()


class Summed(Keys):
    """A vector for each node makes no dot product."""

    def logits(self, g, k, q):
        return (F.leaky_relu(ops.sddmm(g, "add", k, q, "u", "v")) + self.vector).sum(-1, keepdim=True)


class Dropped(Attention):
    def attend(self, g, h, a):
        return super().attend(g, h, F.dropout(a, 0.4))


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (Returned, {}, "its weights are returned"),
        (Twice, {}, "there are 2 sums of features with its weights in the forward"),
        (OtherEdges, {}, "is no sum of weighted features along the same edges"),
        (Elu, {}, "what it reads is no leaky ReLU"),
        (Shifted, {}, "what it reads is no leaky ReLU"),
        (Wide, {}, "has the shape"),
        (ByParameter, {}, "no dot product"),
        (Summed, {}, "none times a vector"),
        (Dropped, {"bits": 32}, "torch draws the mask of its dropout"),
        (Attention, {"bits": 4}, "packed"),
        (Attention, {"skip": ("share_quantized",)}, "read two copies of the gradient"),
    ],
)
def test_says_why_a_chain_stays(model, options, reason):
    report = decided(model(), **options)
    assert report.count() == {KEPT: 1}
    assert reason in report.decisions[0].reason


def test_fuses_dropout_that_gqc_draws():
    assert decided(Dropped()).count() == {REPLACED: 2}


KEYS = [V2, Flipped, Divided, Multiplied, Plain]


def results(model: OnRelation, skip: tuple[str, ...], **options: object) -> list[Tensor]:
    """Output and gradients of a model after the passes, the same call each time."""
    compiled = case(model)
    reports = run(compiled.joint, Policy(min_size=0, skip=skip, **options))
    assert [r.count() for r in reports if r.name == "fuse_attention"] == ([] if skip else [{REPLACED: 2}])
    values = [n.meta["val"] for n in compiled.joint.graph.nodes if isinstance(n.meta.get("val"), Tensor)]
    assert any(x.dim() > 1 and example(x.shape[0]) == 149 for x in values) == bool(skip), "tensors on edges"
    torch.manual_seed(5)
    values = compiled.primals(*graph_and_features(53, 201))
    if any(p.kind == SEED for p in compiled.joint.placeholders):
        values.append(torch.tensor([3, 5]))
    with torch.no_grad():
        got = fx.Interpreter(compiled.joint.module).run(*values, torch.randn(53, 5), enable_io_processing=False)
    return [x for x in got if x is not None]


@pytest.mark.parametrize("kind", KEYS)
def test_attention_with_keys_gives_what_its_chain_gives(kind):
    torch.manual_seed(2)
    if kind in (V2, Divided):
        model, options, tolerance = kind(0.3), {"rounding": "nearest"}, 0.01
    else:
        model, options, tolerance = kind(), {"bits": 32}, 1e-5
    fused, apart = results(model, (), **options), results(model, SKIP, **options)
    assert len(fused) == len(apart) > 8
    for a, b in zip(fused, apart, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()) + 1e-6)


def test_a_gpu_keeps_attention_with_keys():
    scores = scores_of(next(iter(case(V2()).joint.graph.find_nodes(op="call_function", target=SOFTMAX))))
    scores.source.meta["val"] = torch.empty(37, 3, 8, device="meta")
    with pytest.raises(NotFused, match="only the CPU has a kernel"):
        scores.check()


class TwoLayers(nn.Module):
    """DGL's GATConv as users stack it."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        from dgl.nn import GATConv as Conv

        self.conv1 = Conv(WIDTH, 8, 4, feat_drop=0.2, attn_drop=0.4, residual=True, activation=F.elu, **options)
        self.conv2 = Conv(32, 6, 2, attn_drop=0.4, **options)

    def forward(self, g, x: Tensor) -> Tensor:
        return self.conv2(g, self.conv1(g, x).flatten(1)).mean(1)


class TwoOfKeys(nn.Module):
    """DGL's GATv2Conv, then its DotGatConv."""

    def __init__(self, shared: bool = False) -> None:
        super().__init__()
        from dgl.nn import DotGatConv, GATv2Conv

        self.conv1 = GATv2Conv(WIDTH, 8, 4, attn_drop=0.4, residual=True, activation=F.elu, share_weights=shared)
        self.conv2 = DotGatConv(32, 6, 2)

    def forward(self, g, x: Tensor) -> Tensor:
        return self.conv2(g, self.conv1(g, x).flatten(1)).mean(1)


def step(
    skip: tuple[str, ...], train: bool = True, make: Callable[[], nn.Module] = TwoLayers, **options: object
) -> tuple[list[Tensor], nn.Module]:
    """Output and gradients of a step on a random graph, the same for each call."""
    dgl = pytest.importorskip("dgl")
    torch.manual_seed(3)
    g = dgl.add_self_loop(dgl.graph((torch.randint(60, (300,)), torch.randint(60, (300,)))))
    model = gqc.compile(make().train(train), min_size=0, skip=(*skip, "fuse_products"), **options)
    x = torch.randn(60, WIDTH)
    with torch.set_grad_enabled(train):
        out = model(g, x)
    if train:
        out.square().sum().backward()
    return [out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)], model


@pytest.mark.parametrize("options", [{}, {"bits": 32}, {"keep_output_layer": False}], ids=str)
def test_a_step_of_dgl_is_the_same(options):
    (fused, model), (apart, _) = step((), **options), step(SKIP, **options)
    assert len(fused) == len(apart) > 5
    for a, b in zip(fused, apart, strict=True):
        # A value beside the edge between two integers may be rounded to the other one.
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.01 * float(b.abs().max()) + 1e-6)
    (stage,) = gqc.explain(model).variants[0].stages
    report = next(r for r in stage.reports if r.name == "fuse_attention")
    assert report.count() == ({KEPT: 2} if options.get("bits") == 32 else {REPLACED: 4})


def test_a_step_of_dgl_with_keys_is_the_same():
    options = {"make": TwoOfKeys, "keep_output_layer": False}
    (fused, model), (apart, _) = step((), **options), step(SKIP, **options)
    assert len(fused) == len(apart) == 9
    for a, b in zip(fused, apart, strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.01 * float(b.abs().max()) + 1e-6)
    (stage,) = gqc.explain(model).variants[0].stages
    assert next(r for r in stage.reports if r.name == "fuse_attention").count() == {REPLACED: 4}


def test_full_precision_is_that_of_dgl():
    """With bits=32 and nothing dropped, against DGL itself."""
    dgl = pytest.importorskip("dgl")
    torch.manual_seed(4)
    g = dgl.add_self_loop(dgl.graph((torch.randint(60, (300,)), torch.randint(60, (300,)))))
    net = TwoOfKeys(shared=True)
    net.conv1.attn_drop.p = 0.0
    x, got = torch.randn(60, WIDTH), []
    for model in (gqc.compile(net, bits=32), net):
        model.zero_grad()
        out = model(g, x)
        out.square().sum().backward()
        got.append([out.detach(), *(p.grad.clone() for p in net.parameters())])
    for a, b in zip(*got, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max()) + 1e-6)


def test_full_precision_is_that_of_pyg():
    layers = pytest.importorskip("torch_geometric.nn")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = layers.GATv2Conv(WIDTH, 8, 4, add_self_loops=False)
            self.conv2 = layers.TransformerConv(32, 6, 2)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            return self.conv2(self.conv1(x, edges), edges)

    torch.manual_seed(6)
    net, x, edges, got = Net(), torch.randn(60, WIDTH), torch.randint(60, (2, 300)), []
    compiled = gqc.compile(net, bits=32)
    for model in (compiled, net):
        model.zero_grad()
        out = model(x, edges)
        out.square().sum().backward()
        got.append([out.detach(), *(p.grad.clone() for p in net.parameters())])
    for a, b in zip(*got, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max()) + 1e-6)
    (stage,) = gqc.explain(compiled).variants[0].stages
    assert next(r for r in stage.reports if r.name == "fuse_attention").count() == {REPLACED: 4}


def test_inference_runs_the_forward_alone():
    (fused, model), (apart, _) = step((), train=False), step(SKIP, train=False)
    torch.testing.assert_close(fused[0], apart[0], rtol=0.02, atol=0.01)
    report = next(r for r in gqc.explain(model).variants[0].stages[0].reports if r.name == "fuse_attention")
    assert report.count() == {REPLACED: 2}


def test_attention_of_a_layer_with_several_heads_needs_no_gradient_of_the_features():
    """Where only the logits get a gradient the fused backward still gives it."""

    class Frozen(Attention):
        def attend(self, g, h, a):
            return super().attend(g, h.detach(), a)

    assert decided(Frozen()).count() == {REPLACED: 2}
    assert decided(GATOnly()).count() == {REPLACED: 2}


class GATOnly(OnRelation):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GATConv(WIDTH, 8, 3)

    def run(self, g, x):
        return self.conv(g, x)
