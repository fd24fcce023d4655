"""Sums over in-edges of products by the type of the edge: against the reference, exact where operands are int8."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import native, ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import typed_spmm as reference
from gqc.runtime.relation import from_edges, num_dst, num_edges, num_src
from tests.runtime.backends import CUDA
from tests.runtime.graph_cases import (
    GRAPHS,
    assert_near,
    assert_same_with_gradients,
    assert_sound,
    features,
    graph,
    large_graph,
    on_all_backends,
    quantized,
)
from tests.runtime.test_gat import hubs

GAINING_ISAS = ("avxvnni", "amx")
gqc = torch.ops.gqc
SIZES = [(1, 1, 1), (3, 6, 4), (2, 64, 130), (20, 70, 9)]
"""Types, features of a source, features of the result."""


def random_types(g: list[Tensor], types: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(0, types, (num_edges(g),), dtype=dtype)


def int8_stack(*shape: int) -> tuple[Tensor, Tensor]:
    return torch.randint(-127, 128, shape, dtype=torch.int8), torch.rand(()) * 0.1


def assert_same(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor], backend: str) -> None:
    assert got[0].dtype is want[0].dtype
    if backend == CUDA:  # sums messages in float32
        assert_near(got[0], want[0], 1e-5 if want[0].dtype is torch.float32 else 1e-2)
    else:
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(got[1], got[0].float().abs().amax() if got[0].numel() else torch.zeros(()))


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_float_product_and_its_gradients(backend: str, kind: str, index: torch.dtype) -> None:
    g = graph(kind, index)
    types = random_types(g, 3, torch.int32)
    assert_same_with_gradients(
        lambda u, b: gqc.typed_spmm(g, u, b, types, None),
        lambda u, b: reference.typed_spmm(g, u, b, types),
        [features(g, "u", (6,)), torch.randn(3, 6, 5)],
        1e-4,
    )


@pytest.mark.parametrize(("types", "inner", "columns"), SIZES)
def test_float_products_of_all_sizes(isa: str, types: int, inner: int, columns: int) -> None:
    g = graph("hub")
    by = random_types(g, types)
    u, b = features(g, "u", (inner,)), torch.randn(types, columns, inner).transpose(1, 2)
    want = reference.typed_spmm(g, u.double(), b.double(), by)
    assert_near(gqc.typed_spmm(g, u, b, by, None), want, 1e-4)
    u, b = u.bfloat16(), b.bfloat16()  # rounded before, as a hub's sum may lose its leading digits
    half = gqc.typed_spmm(g, u, b, by, None)
    assert half.dtype is torch.bfloat16
    assert_near(half, reference.typed_spmm(g, u.double(), b.double(), by), 1e-2)


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_int8_product_on_every_graph(backend: str, kind: str, index: torch.dtype) -> None:
    g = graph(kind, index)
    arguments = (g, *quantized(g, "u", (7,)), *int8_stack(3, 7, 5), random_types(g, 3), None, torch.float32)
    assert_same(gqc.qtyped_spmm(*arguments), reference.qtyped_spmm(*arguments), backend)
    arguments = (g, *quantized(g, "u", (7,)), *quantized(g, "v", (5,)), random_types(g, 3), 3, torch.float32)
    assert_same(gqc.qtyped_spmm_bwd_b(*arguments), reference.qtyped_spmm_bwd_b(*arguments), backend)


@pytest.mark.parametrize(("types", "inner", "columns"), SIZES)
def test_int8_products_of_all_sizes(isa: str, types: int, inner: int, columns: int) -> None:
    g = graph("random")
    by = random_types(g, types)
    u, (b, scale), grad = quantized(g, "u", (inner,)), int8_stack(types, columns, inner), quantized(g, "v", (columns,))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        arguments = (g, *u, b.transpose(1, 2), scale, by, None, dtype)
        want = reference.qtyped_spmm(*arguments)
        assert_same(gqc.qtyped_spmm(*arguments), want, isa)
        assert_same(gqc.qtyped_spmm(g, *u, b.transpose(1, 2).contiguous(), scale, by, None, dtype), want, isa)
        arguments = (g, *u, *grad, by, types, dtype)
        assert_same(gqc.qtyped_spmm_bwd_b(*arguments), reference.qtyped_spmm_bwd_b(*arguments), isa)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_weights_of_edges(backend: str, shape: tuple[int, ...]) -> None:
    g = graph("random")
    types, weights = random_types(g, 3), features(g, "e", shape)
    assert_same_with_gradients(
        lambda u, b, e: gqc.typed_spmm(g, u, b, types, e),
        lambda u, b, e: reference.typed_spmm(g, u, b, types, e),
        [features(g, "u", (6,)), torch.randn(3, 6, 5), weights],
        1e-4,
    )
    arguments = (g, *quantized(g, "u", (7,)), *int8_stack(3, 7, 5), types, weights, torch.float32)
    assert_same(gqc.qtyped_spmm(*arguments), reference.qtyped_spmm(*arguments), backend)


@pytest.mark.parametrize(("edges", "width"), [(3000, 100), (20_000, 15)])
def test_sums_of_a_hub_do_not_overflow(isa: str, edges: int, width: int) -> None:
    """270,000 products of 127 * 127 and more do not fit an int32."""
    sources = 5
    dst = torch.where(torch.arange(edges) % 10 == 0, torch.arange(edges) % 70, 33)
    g = from_edges(torch.randint(0, sources, (edges,)), dst, sources, 70)
    scale = torch.tensor(1.0)
    u, b = torch.full((sources, width), 127, dtype=torch.int8), torch.full((2, width, 3), -127, dtype=torch.int8)
    arguments = (g, u, scale, b, scale, random_types(g, 2), None, torch.float32)
    got, _ = gqc.qtyped_spmm(*arguments)
    want = (dst == 33).sum() * width * -127 * 127
    assert got[33, 0] == want.float()
    assert want < -(2**31)
    assert_same(gqc.qtyped_spmm(*arguments), reference.qtyped_spmm(*arguments), isa)


@pytest.mark.parametrize("types", [1, 40])
def test_a_hub_is_added_up_in_parts(types: int) -> None:
    g = hubs()
    by, weights = random_types(g, types), features(g, "e", (1,))
    u, b = quantized(g, "u", (21,)), int8_stack(types, 21, 37)
    for e in (None, weights):
        arguments = (g, *u, *b, by, e, torch.float32)
        want = reference.qtyped_spmm(*arguments)
        for got in on_all_backends(lambda arguments=arguments: gqc.qtyped_spmm(*arguments), native.isas()):
            assert_same(got, want, "")
    assert_same_with_gradients(
        lambda u, b, e: gqc.typed_spmm(g, u, b, by, e),
        lambda u, b, e: reference.typed_spmm(g, u, b, by, e),
        [features(g, "u", (21,)), torch.randn(types, 21, 37), weights],
        1e-4,
    )


def test_gradient_of_a_type_with_many_edges_does_not_overflow(isa: str) -> None:
    edges = 140_000
    g = from_edges(torch.zeros(edges, dtype=torch.int64), torch.zeros(edges, dtype=torch.int64), 1, 1)
    x, scale = torch.full((1, 2), 127, dtype=torch.int8), torch.tensor(1.0)
    types = torch.zeros(edges, dtype=torch.int64)
    got, absmax = gqc.qtyped_spmm_bwd_b(g, x, scale, -x, scale, types, 2, torch.float32)
    assert absmax == torch.tensor(127 * 127 * edges).float()
    assert absmax > 2**31
    assert (got[0] == -absmax).all()
    assert not got[1].any()


@pytest.mark.parametrize("make", [large_graph, hubs])
def test_results_depend_on_no_thread_count_or_instruction_set(make: Callable[[], list[Tensor]]) -> None:
    g = make()
    types = random_types(g, 5)
    u, grad, b = quantized(g, "u", (65,)), quantized(g, "v", (40,)), int8_stack(5, 65, 40)
    isas = native.isas()
    for call in (
        lambda: gqc.qtyped_spmm(g, *u, *b, types, None, torch.float32),
        lambda: gqc.qtyped_spmm_bwd_b(g, *u, *grad, types, 5, torch.float32),
    ):
        first, *others = on_all_backends(call, isas)
        for other in others:
            torch.testing.assert_close(other, first, rtol=0, atol=0)
    matrices = torch.randn(5, 65, 40)
    for call in (
        lambda: gqc.typed_spmm(g, u[0].float(), matrices, types, None),
        lambda: gqc.typed_spmm_bwd_b(g, u[0].float(), grad[0].float(), types, 5, None),
    ):
        first, *others = on_all_backends(call, isas[-1:])
        assert all(torch.equal(other, first) for other in others)


def test_nan_scales_give_nan(backend: str) -> None:
    g = graph("random")
    nan, types = torch.tensor(float("nan")), random_types(g, 2)
    zeros = torch.zeros(num_src(g), 3, dtype=torch.int8)
    out, absmax = gqc.qtyped_spmm(g, zeros, nan, *int8_stack(2, 3, 4), types, None, torch.float32)
    assert out.isnan().all()
    assert absmax.isnan()
    grad = quantized(g, "v", (4,))
    out, absmax = gqc.qtyped_spmm_bwd_b(g, zeros, nan, *grad, types, 2, torch.float32)
    assert out.isnan().all()
    assert absmax.isnan()


def test_types_changed_in_place_are_read_again() -> None:
    g = graph("random")
    types, u, b = random_types(g, 2), features(g, "u", (4,)), torch.randn(2, 4, 3)
    gqc.typed_spmm(g, u, b, types, None)
    types.copy_(1 - types)
    assert_near(gqc.typed_spmm(g, u, b, types, None), reference.typed_spmm(g, u, b, types), 1e-5)


def test_refusals_say_what_is_wrong() -> None:
    g = graph("random")
    u, b, types = features(g, "u", (3,)), torch.randn(2, 3, 4), random_types(g, 2)
    with pytest.raises(KernelError, match=r"an edge has type 2, and there are matrices for 2"):
        gqc.typed_spmm(g, u, b, torch.full_like(types, 2), None)
    with pytest.raises(KernelError, match=r"rows \[40, 3\] times matrices \[2, 4, 4\]"):
        gqc.typed_spmm(g, u, torch.randn(2, 4, 4), types, None)
    with pytest.raises(KernelError, match=r"give an integer for each of 200 edges"):
        gqc.typed_spmm(g, u, b, types[:3], None)
    with pytest.raises(KernelError, match=r"give one floating-point number for each of 200 edges"):
        gqc.typed_spmm(g, u, b, types, torch.ones(200, 4))
    with pytest.raises(KernelError, match=r"needs int8 values and got torch.float32"):
        gqc.qtyped_spmm(g, u, torch.ones(()), b, torch.ones(()), types, None, torch.float32)
    with pytest.raises(KernelError, match=r"features of shape \[5, 4\] for a graph with 40 destination nodes"):
        gqc.typed_spmm_bwd_b(g, u, torch.randn(5, 4), types, 2, None)


def test_opcheck() -> None:
    g = graph("bipartite")
    types, grad = random_types(g, 2), torch.randn(num_dst(g), 4)
    u, b = features(g, "u", (3,)).requires_grad_(), torch.randn(2, 3, 4, requires_grad=True)
    assert_sound(gqc.typed_spmm.default, g, u, b, types, None)
    assert_sound(gqc.typed_spmm_bwd_b.default, g, u.detach(), grad, types, 2, None)
    q = quantized(g, "u", (3,))
    assert_sound(gqc.qtyped_spmm.default, g, *q, *int8_stack(2, 3, 4), types, None, torch.float32)
    assert_sound(gqc.qtyped_spmm_bwd_b.default, g, *q, *quantized(g, "v", (4,)), types, 2, torch.float32)
