"""Attention with keys and queries against its reference, against autograd and against the chain that it stands for."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gqc.errors import KernelError
from gqc.runtime import native, ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import attend as reference
from gqc.runtime.relation import DST, SRC, num_dst, num_src
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
from tests.runtime.test_gat import KINDS, SEED, hubs

gqc = torch.ops.gqc
GAINING_ISAS = ("avxvnni",)
SHAPES = [(1, 1), (1, 40), (2, 33), (4, 32), (7, 1), (8, 16), (19, 5)]
"""Heads and width."""


class Case(NamedTuple):
    """Arguments of both ops."""

    g: list[Tensor]
    k: Tensor
    q: Tensor
    a: Tensor | None
    factor: float
    u: Tensor
    u_scale: Tensor | None
    grad: Tensor
    grad_scale: Tensor | None
    dropout: tuple[float, Tensor | None, int] = (0.0, None, 0)

    def forward(self, module: object, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        score = (self.k, self.q, self.a, self.factor)
        return module.attend(self.g, *score, self.u, self.u_scale, *self.dropout, dtype)

    def backward(self, module: object, statistics: tuple[Tensor, Tensor], dtype: torch.dtype = torch.float32) -> tuple:
        score = (self.k, self.q, self.a, self.factor)
        sides = (self.u, self.u_scale, self.grad, self.grad_scale)
        return module.attend_bwd(self.g, *score, *statistics, *sides, *self.dropout, dtype)

    def both(self, module: object) -> tuple[Tensor, ...]:
        out, absmax, largest, total = self.forward(module)
        return out, absmax, largest, total, *self.backward(module, (largest, total))


def case(
    g: list[Tensor],
    shape: tuple[int, int],
    additive: bool,
    kinds: tuple[str, str] = ("int8", "int8"),
    p: float = 0.0,
    factor: float = 0.2,
    key_width: int | None = None,
) -> Case:
    def of(kind: str, target: str) -> tuple[Tensor, Tensor | None]:
        return quantized(g, target, shape) if kind == "int8" else (features(g, target, shape), None)

    keys = (shape[0], key_width or shape[1])
    k, q = torch.randn(num_src(g), *keys), torch.randn(num_dst(g), *keys)
    a = torch.randn(keys) / keys[1] ** 0.5 if additive else None
    factor = factor if additive else factor * 3 / keys[1] ** 0.5
    return Case(g, k, q, a, factor, *of(kinds[0], "u"), *of(kinds[1], "v"), (p, SEED if p else None, 65541))


def exact(x: Case) -> Case:
    """The same with keys in float64, in which the reference computes then."""
    return x._replace(k=x.k.double(), q=x.q.double(), a=None if x.a is None else x.a.double())


def assert_equal_to_reference(x: Case) -> None:
    got, want = x.both(gqc), exact(x).both(reference)
    for name, a, b in zip(("out", "absmax", "max", "sum", "d_u", "absmax of d_u"), got, want, strict=False):
        assert a.dtype is torch.float32, name
        assert_near(a, b, 3e-5)
    # The sums in these may cancel, so what is near is said by the larger ones.
    assert_near(torch.cat([x.flatten() for x in got[6:8]]), torch.cat([x.flatten() for x in want[6:8]]), 3e-5)
    assert got[8].shape == want[8].shape == ((0, x.k.shape[2]) if x.a is None else x.a.shape)
    assert_near(got[8], want[8], 1e-4)
    assert got[1] == (got[0].abs().amax() if got[0].numel() else 0)
    assert got[5] == (got[4].abs().amax() if got[4].numel() else 0)


@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_reference_for_any_heads_and_width(isa: str, shape: tuple[int, int], additive: bool) -> None:
    for kinds, key_width in zip(KINDS, (None, 7, None, 20), strict=True):
        assert_equal_to_reference(case(graph("random"), shape, additive, kinds, p=0.5, key_width=key_width))


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", GRAPHS)
def test_equals_reference_on_every_kind_of_graph(kind: str, index: torch.dtype) -> None:
    for additive in (False, True):
        assert_equal_to_reference(case(graph(kind, index), (3, 5), additive, p=0.3))


@pytest.mark.parametrize("additive", [False, True])
def test_equals_reference_for_any_dropout_and_factor(isa: str, additive: bool) -> None:
    for p, factor in ((0.0, 0.0), (0.5, -0.5), (0.99999, 1.0), (1.0, 0.2), (0.0, 1.5)):
        assert_equal_to_reference(case(graph("bipartite"), (2, 6), additive, p=p, factor=factor))


@pytest.mark.parametrize("shape", [(4, 8), (3, 5)], ids=str)
def test_equals_reference_with_hubs(isa: str, shape: tuple[int, int]) -> None:
    for additive in (False, True):
        assert_equal_to_reference(case(hubs(), shape, additive, p=0.25))


def differentiated(x: Case) -> tuple[Tensor, ...]:
    """Output and gradients by autograd over plain operations."""
    u, k, q = (t.double().requires_grad_() for t in (x.u, x.k, x.q))
    a = None if x.a is None else x.a.double().requires_grad_()
    src, dst = x.g[SRC].long(), x.g[DST].long()
    if a is None:
        logits = (k[src] * q[dst]).sum(-1) * x.factor
    else:
        logits = (F.leaky_relu(k[src] + q[dst], x.factor) * a).sum(-1)
    attention = torch.zeros_like(logits)
    for v in dst.unique():
        rows = (dst == v).nonzero()[:, 0]
        attention = attention.index_put((rows,), logits[rows].softmax(0))
    out = torch.zeros(num_dst(x.g), *u.shape[1:], dtype=torch.double).index_add(0, dst, attention[..., None] * u[src])
    inputs = (u, k, q) if a is None else (u, k, q, a)
    return out, *torch.autograd.grad(out, inputs, x.grad.double())


@pytest.mark.parametrize("additive", [False, True])
def test_equals_autograd(additive: bool) -> None:
    x = case(graph("isolated"), (3, 6), additive, ("float", "float"))
    out, _, _, _, d_u, _, d_k, d_q, d_a = x.both(gqc)
    got = (out, d_u, d_k, d_q) if x.a is None else (out, d_u, d_k, d_q, d_a)
    for a, b in zip(got, differentiated(x), strict=True):
        assert_near(a, b.detach(), 3e-5)


@pytest.mark.parametrize("p", [0.3, 1.0])
def test_draws_the_mask_of_dropout(isa: str, p: float) -> None:
    """One source, one feature and a weight of 1 an edge: the output is the mask."""
    g = graph("random")
    shape = (num_dst(g), 3, 1)
    a = gqc.edge_softmax(g, torch.zeros(len(g[SRC]), 3, 1))
    dropped = gqc.dropout(a, p, SEED, 9)[0]
    want = gqc.spmm(g, "copy_rhs", None, dropped)
    ones = torch.ones(num_src(g), 3, 1)
    got = gqc.attend(g, ones, torch.zeros(shape), None, 1.0, ones, None, p, SEED, 9, torch.float32)[0]
    assert_near(got, want, 1e-6)


@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("where", ["k", "q", "u", "grad"])
def test_not_a_number_is_where_it_is_in_the_reference(isa: str, where: str, additive: bool) -> None:
    for value in (float("nan"), float("inf"), -float("inf")):
        x = case(graph("random"), (3, 5), additive, ("float", "float"), p=0.5)
        getattr(x, where)[4] = value
        got, want = x.both(gqc), x.both(reference)
        # A product of 0 and infinity may make NaN of an infinite logit, which has a weight of 0 where it is negative.
        for a, b in zip((got[0], got[4]), (want[0], want[4]), strict=True):
            exact = value != value or where in ("u", "grad")
            assert torch.equal(a.isfinite(), b.isfinite()) or (not exact and not (a.isfinite() & ~b.isfinite()).any())
            assert_near(a[a.isfinite()], b[a.isfinite()])
        for a, b in zip(got[6:], want[6:], strict=True):  # finite only where the reference is
            assert not (a.isfinite() & ~b.isfinite()).any()


@pytest.mark.parametrize("additive", [False, True])
def test_does_not_depend_on_threads(additive: bool) -> None:
    for g in (large_graph(), hubs()):
        x = case(g, (4, 24), additive, p=0.5)
        results = on_all_backends(lambda x=x: x.both(gqc))
        for i in range(0, len(results), 3):
            for other in results[i + 1 : i + 3]:
                assert all(torch.equal(a, b) for a, b in zip(other, results[i], strict=True))


def test_half_precision_is_rounded_last() -> None:
    x = case(graph("random"), (4, 8), True, p=0.5)
    out, absmax, *statistics = x.forward(gqc, torch.bfloat16)
    assert torch.equal(out, x.forward(gqc)[0].to(torch.bfloat16))
    assert absmax == out.float().abs().max()
    d_u, absmax, *_ = x.backward(gqc, tuple(statistics), torch.bfloat16)
    assert torch.equal(d_u, x.backward(gqc, tuple(statistics))[0].to(torch.bfloat16))
    halves = x._replace(k=x.k.half(), q=x.q.half(), a=x.a.half())
    floats = halves._replace(k=halves.k.float(), q=halves.q.float(), a=halves.a.float())
    assert all(torch.equal(a, b) for a, b in zip(halves.both(gqc), floats.both(gqc), strict=True))


@pytest.mark.parametrize("additive", [False, True])
def test_ops_are_sound(additive: bool) -> None:
    x = case(graph("bipartite"), (4, 6), additive, p=0.5, key_width=3)
    arguments = (x.g, x.k, x.q, x.a, x.factor, x.u, x.u_scale, *x.dropout, torch.float32)
    assert_sound(gqc.attend.default, *arguments)
    statistics = gqc.attend(*arguments)[2:]
    sides = (x.u, x.u_scale, x.grad, x.grad_scale)
    score = (x.k, x.q, x.a, x.factor)
    assert_sound(gqc.attend_bwd.default, x.g, *score, *statistics, *sides, *x.dropout, torch.bfloat16)


def test_refuses_arguments_that_do_not_fit() -> None:
    x = case(graph("random"), (4, 6), True)
    with pytest.raises(KernelError, match=r"\[39, 4, 6\] .* 40 source nodes"):
        x._replace(k=x.k[1:]).forward(gqc)
    with pytest.raises(KernelError, match=r"keys \[40, 4, 6\], queries .* must be \[nodes, heads, width\]"):
        x._replace(q=x.q[..., 1:]).forward(gqc)
    with pytest.raises(KernelError, match=r"a vector \[4, 5\]: they must be .* and \[heads, width\]"):
        x._replace(a=x.a[:, 1:]).forward(gqc)
    with pytest.raises(KernelError, match=r"4 heads and features of shape \[40, 3, 6\]"):
        x._replace(u=x.u[:, 1:]).forward(gqc)
    with pytest.raises(KernelError, match="int8 without a scale"):
        x._replace(u_scale=None).forward(gqc)
    with pytest.raises(KernelError, match="got float64"):
        exact(x).forward(gqc)
    with pytest.raises(KernelError, match="dropout needs a seed"):
        x._replace(dropout=(0.5, None, 0)).forward(gqc)
    with pytest.raises(KernelError, match=r"max is none that gqc\.attend returned"):
        x.backward(gqc, (x.grad, x.grad))
    with pytest.raises(KernelError, match="has no gradient"):
        x._replace(k=x.k.requires_grad_()).forward(gqc)
