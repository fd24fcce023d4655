"""The fused edge phase of GAT against its reference and against the chain of ops that it stands for."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import native, ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import gat as reference
from gqc.runtime.relation import DST, SRC, from_edges, num_dst, num_src, reverse
from tests.runtime.graph_cases import (
    GRAPHS,
    assert_near,
    assert_sound,
    features,
    graph,
    large_graph,
    on_all_backends,
    quantized,
)

gqc = torch.ops.gqc
SHAPES = [
    (1, 1),
    (1, 3),
    (1, 16),
    (1, 40),
    (2, 33),
    (3, 3),
    (4, 8),
    (4, 32),
    (5, 16),
    (7, 1),
    (8, 1),
    (8, 128),
    (19, 5),
]
GAINING_ISAS = ("avxvnni",)
KINDS = [("int8", "int8"), ("float", "float"), ("int8", "float"), ("float", "int8")]
SEED = torch.tensor([0x1234_5678_9ABC, 7])


class Case(NamedTuple):
    """Arguments of both ops."""

    g: list[Tensor]
    el: Tensor
    er: Tensor
    u: Tensor
    u_scale: Tensor | None
    grad: Tensor
    grad_scale: Tensor | None
    options: tuple[float, float, Tensor | None, int] = (0.2, 0.0, None, 0)

    def forward(self, module: object, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        return module.gat(self.g, self.el, self.er, self.u, self.u_scale, *self.options, dtype)

    def backward(self, module: object, statistics: tuple[Tensor, Tensor], dtype: torch.dtype = torch.float32) -> tuple:
        sides = (self.u, self.u_scale, self.grad, self.grad_scale)
        return module.gat_bwd(self.g, self.el, self.er, *statistics, *sides, *self.options, dtype)

    def both(self, module: object) -> tuple[Tensor, ...]:
        out, absmax, largest, total = self.forward(module)
        return out, absmax, largest, total, *self.backward(module, (largest, total))


def case(
    g: list[Tensor],
    shape: tuple[int, int],
    kinds: tuple[str, str] = ("int8", "int8"),
    p: float = 0.0,
    slope: float = 0.2,
) -> Case:
    def of(kind: str, target: str) -> tuple[Tensor, Tensor | None]:
        return quantized(g, target, shape) if kind == "int8" else (features(g, target, shape), None)

    el, er = torch.randn(num_src(g), shape[0]) * 2, torch.randn(num_dst(g), shape[0]) * 2
    options = (slope, p, SEED if p else None, 65541)
    return Case(g, el, er, *of(kinds[0], "u"), *of(kinds[1], "v"), options)


def exact(x: Case) -> Case:
    """The same with logits in float64, in which the reference computes then."""
    return x._replace(el=x.el.double(), er=x.er.double())


def assert_equal_to_reference(x: Case) -> None:
    got, want = x.both(gqc), exact(x).both(reference)
    names = ("out", "absmax", "max", "sum", "d_u", "absmax of d_u", "d_el and d_er")
    # The sums in d_er may cancel, so what is near is said by the larger of both gradients of logits.
    for name, a, b in zip(names, *((*x[:6], torch.cat(x[6:])) for x in (got, want)), strict=True):
        assert a.dtype is torch.float32, name
        assert_near(a, b, 3e-5)
    assert got[1] == (got[0].abs().amax() if got[0].numel() else 0)
    assert got[5] == (got[4].abs().amax() if got[4].numel() else 0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_reference_for_any_heads_and_width(backend: str, shape: tuple[int, int]) -> None:
    for kinds in KINDS:
        assert_equal_to_reference(case(graph("random"), shape, kinds, p=0.5))


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", GRAPHS)
def test_equals_reference_on_every_kind_of_graph(kind: str, index: torch.dtype) -> None:
    for shape in ((4, 8), (3, 5)):
        assert_equal_to_reference(case(graph(kind, index), shape, p=0.3))


@pytest.mark.parametrize("p", [0.0, 0.5, 0.99999, 1.0])
@pytest.mark.parametrize("slope", [0.2, 0.0, -0.5, 1.0])
def test_equals_reference_for_any_dropout_and_slope(backend: str, p: float, slope: float) -> None:
    for heads in (1, 2, 3, 8, 11):
        assert_equal_to_reference(case(graph("bipartite"), (heads, 6), p=p, slope=slope))


def hubs() -> list[Tensor]:
    """A destination with 9,000 in-edges and a source with 9,000 out-edges, which threads share out."""
    src, dst = torch.randint(0, 40, (20_000,)), torch.randint(0, 50, (20_000,))
    dst[torch.rand(20_000) < 0.45] = 17
    src[torch.rand(20_000) < 0.45] = 5
    return from_edges(src, dst, 40, 50)


@pytest.mark.parametrize("shape", [(4, 8), (3, 5)], ids=str)
def test_equals_reference_with_hubs(backend: str, shape: tuple[int, int]) -> None:
    assert_equal_to_reference(case(hubs(), shape, p=0.25))


def test_a_hub_may_have_parts_without_weight() -> None:
    x = case(hubs(), (2, 8))
    x.el[: len(x.el) // 2] = -float("inf")
    assert_equal_to_reference(x)


def chain(x: Case) -> tuple[Tensor, ...]:
    """What GATConv's calls give, with the same masks: out, d_u, d_el, d_er."""
    g, (slope, p, seed, node) = x.g, x.options
    logits = gqc.sddmm(g, "add", x.el.unsqueeze(-1), x.er.unsqueeze(-1), "u", "v")
    a = gqc.edge_softmax(g, torch.nn.functional.leaky_relu(logits, slope))
    weights, mask = gqc.dropout(a, p, seed, node) if p else (a, None)
    if x.u_scale is None:
        out = gqc.spmm(g, "mul", x.u, weights)
    else:
        out = gqc.qspmm(g, "mul", x.u, x.u_scale, weights, None, torch.float32)[0]
    if x.grad_scale is None:
        d_u = gqc.spmm(reverse(g), "mul", x.grad, weights)
    else:
        d_u = gqc.qspmm(reverse(g), "mul", x.grad, x.grad_scale, weights, None, torch.float32)[0]
    if x.u_scale is None and x.grad_scale is None:
        d_a = gqc.sddmm(g, "dot", x.u, x.grad, "u", "v")
    else:
        d_a = gqc.qsddmm(g, "dot", x.u, x.u_scale, x.grad, x.grad_scale, "u", "v", torch.float32)
    if mask is not None:
        d_a = gqc.dropout_backward(d_a, mask, p)
    d_logits = gqc.edge_softmax_bwd(g, a, d_a)
    d_logits = torch.where(logits > 0, d_logits, d_logits * slope)
    d_el, d_er = (gqc.spmm(h, "copy_rhs", None, d_logits).squeeze(-1) for h in (reverse(g), g))
    return out, d_u, d_el, d_er


@pytest.mark.parametrize("kinds", KINDS, ids=" and ".join)
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_equals_the_chain(isa: str, kinds: tuple[str, str], p: float) -> None:
    for kind, shape in (("hub", (4, 32)), ("isolated", (3, 7)), ("parallel", (8, 16)), ("bipartite", (1, 20))):
        x = case(graph(kind), shape, kinds, p)
        out, _, _, _, d_u, _, *d_logits = x.both(gqc)
        *want, d_el, d_er = chain(x)
        for got, expected in zip((out, d_u, torch.cat(d_logits)), (*want, torch.cat((d_el, d_er))), strict=True):
            assert_near(got, expected, 3e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["el", "er", "u", "grad"])
def test_not_a_number_is_where_it_is_in_the_chain(backend: str, where: str, value: float) -> None:
    x = case(graph("random"), (3, 5), ("float", "float"), p=0.5)
    ends = x.g[SRC if where in ("el", "u") else DST]
    getattr(x, where)[ends.bincount().argmax()] = value  # a node of whose edges dropout leaves some
    out, _, _, _, d_u, _, d_el, d_er = x.both(gqc)
    for got, want in zip((out, d_u, d_el, d_er), chain(x), strict=True):
        assert torch.equal(got.isfinite(), want.isfinite())
        assert_near(got[got.isfinite()], want[want.isfinite()])
    assert where == "grad" or value == -float("inf") or not out.isfinite().all()


def test_scales_of_nan_and_of_nothing(backend: str) -> None:
    x = case(graph("isolated"), (2, 9))
    out, absmax, *_, d_u, d_u_absmax, d_el, _ = x._replace(
        u_scale=torch.tensor(float("nan")), grad_scale=torch.tensor(float("nan"))
    ).both(gqc)
    assert out.isnan().all()
    assert d_u.isnan().all()
    assert absmax.isnan()
    assert d_u_absmax.isnan()
    assert d_el[5:9].isnan().any()
    zero = x._replace(u=torch.zeros_like(x.u), u_scale=torch.zeros(()))
    out, absmax, *_, d_el, d_er = zero.both(gqc)
    for got in (out, absmax, d_el, d_er):
        assert not got.any()


def test_the_gradients_of_a_softmax_sum_to_nothing() -> None:
    """With a slope of 1 a destination's logits move together, which changes no attention."""
    x = case(graph("random"), (4, 32), p=0.4, slope=1.0)
    *_, _, _, d_el, d_er = x.both(gqc)
    assert d_er.abs().max() < 1e-5 * d_el.abs().max()


def test_does_not_depend_on_threads() -> None:
    for g in (large_graph(), hubs()):
        x = case(g, (4, 24), p=0.5)
        results = on_all_backends(lambda x=x: x.both(gqc))
        for i in range(0, len(results), 3):
            for other in results[i + 1 : i + 3]:
                assert all(torch.equal(a, b) for a, b in zip(other, results[i], strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_last(dtype: torch.dtype) -> None:
    x = case(graph("random"), (4, 8), p=0.5)
    out, absmax, *statistics = x.forward(gqc, dtype)
    single = x.forward(gqc)
    assert torch.equal(out, single[0].to(dtype))
    assert absmax == out.float().abs().max()
    d_u, absmax, *_ = x.backward(gqc, tuple(statistics), dtype)
    assert torch.equal(d_u, x.backward(gqc, tuple(statistics))[0].to(dtype))
    assert absmax == d_u.float().abs().max()
    rounded = x._replace(u=x.u.to(dtype), u_scale=None)
    assert torch.equal(rounded.forward(gqc)[0], x._replace(u=x.u.float(), u_scale=None).forward(gqc)[0])


def test_ops_are_sound() -> None:
    x = case(graph("bipartite"), (4, 6), p=0.5)
    arguments = (x.g, x.el, x.er, x.u, x.u_scale, *x.options, torch.float32)
    assert_sound(gqc.gat.default, *arguments)
    statistics = gqc.gat(*arguments)[2:]
    sides = (x.u, x.u_scale, x.grad, x.grad_scale)
    assert_sound(gqc.gat_bwd.default, x.g, x.el, x.er, *statistics, *sides, *x.options, torch.bfloat16)


def test_refuses_arguments_that_do_not_fit() -> None:
    x = case(graph("random"), (4, 6))
    with pytest.raises(KernelError, match=r"\[39, 4\] .* 40 source nodes"):
        x._replace(el=x.el[1:]).forward(gqc)
    with pytest.raises(KernelError, match=r"they must be \[nodes, heads\]"):
        x._replace(er=x.er[:, 1:]).forward(gqc)
    with pytest.raises(KernelError, match="int8 without a scale"):
        x._replace(u_scale=None).forward(gqc)
    with pytest.raises(KernelError, match="float32 with this scale"):
        x._replace(u=x.u.float()).forward(gqc)
    with pytest.raises(KernelError, match="got float64"):
        exact(x).forward(gqc)
    with pytest.raises(KernelError, match=r"p=1\.5 is no probability"):
        x._replace(options=(0.2, 1.5, SEED, 0)).forward(gqc)
    with pytest.raises(KernelError, match="dropout needs a seed"):
        x._replace(options=(0.2, 0.5, None, 0)).forward(gqc)
    with pytest.raises(KernelError, match=r"sum is none that gqc\.gat returned"):
        x.backward(gqc, (x.er, x.er[1:]))
    with pytest.raises(KernelError, match="has no gradient"):
        x._replace(el=x.el.requires_grad_()).forward(gqc)
