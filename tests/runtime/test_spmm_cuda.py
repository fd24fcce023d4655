"""The CUDA kernels of SPMM against those of the CPU, bit for bit where sums are integers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.cuda import rows as rows_of
from gqc.runtime.relation import from_edges
from tests.emu import emulator
from tests.runtime.backends import CUDA, on_backend
from tests.runtime.graph_cases import assert_near, features, graph, hub_graph, large_graph, quantized

gqc = torch.ops.gqc
Relation = list[Tensor]
WIDTHS = [1, 3, 7, 16, 33, 64, 100, 128, 200, 528]
WEIGHTS = ["none", "int8", "float", "int8 a head", "float a head", "int8 a feature"]


def on_both(function: Callable[[], tuple[Tensor, ...]]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Results on the emulated GPU and on the CPU."""
    with on_backend(CUDA):
        got = function()
    return got, function()


def assert_equal(function: Callable[[], tuple[Tensor, ...]]) -> None:
    got, want = on_both(function)
    for x, y in zip(got, want, strict=True):
        assert torch.equal(x, y)


def weight(g: Relation, kind: str, width: int) -> tuple[Tensor | None, Tensor | None]:
    heads = next(heads for heads in (4, 3, 1) if width % heads == 0)
    shape = {"a head": (heads, 1), "a feature": (heads, width // heads)}.get(kind.partition(" ")[2], (1, 1))
    if kind == "none":
        return None, None
    return quantized(g, "e", shape) if kind.startswith("int8") else (features(g, "e", shape), None)


def weighted(g: Relation, u: Tensor, u_scale: Tensor | None, e: Tensor | None, e_scale: Tensor | None) -> Callable:
    """The sum of ``u`` with weights of several heads, as ``(out, absmax)`` or ``(out,)``."""
    heads = 1 if e is None else e.shape[1]
    u, op = u.view(u.shape[0], heads, -1), "copy_lhs" if e is None else "mul"
    if u_scale is None and e_scale is None:
        return lambda: (gqc.spmm(g, op, u, e),)
    return lambda: gqc.qspmm(g, op, u, u_scale, e, e_scale, torch.float32)


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("width", WIDTHS)
def test_int8_sums_of_every_width_and_weight(width: int, kind: str) -> None:
    g = hub_graph(torch.int32) if width <= 128 else graph("hub", torch.int32)
    function = weighted(g, *quantized(g, "u", (width,)), *weight(g, kind, width))
    if "float" not in kind:
        return assert_equal(function)
    got, want = on_both(function)
    assert_near(got[0], want[0])
    assert got[1] == got[0].abs().max()


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("width", WIDTHS)
def test_float32_sums_of_every_width_and_weight(width: int, kind: str) -> None:
    g = hub_graph() if width <= 128 else graph("hub")
    function = weighted(g, features(g, "u", (width,)), None, *weight(g, kind, width))
    got, want = on_both(function)
    assert_near(got[0], want[0])


@pytest.mark.parametrize("weight_shape", [None, (1, 1), (4, 1), (4, 16)])
@pytest.mark.parametrize("shape", [(1,), (7,), (64,), (4, 16), (128,)])
def test_packed_sums(shape: tuple[int, ...], weight_shape: tuple[int, ...] | None) -> None:
    if weight_shape is not None and len(shape) == 1:
        weight_shape = shape if weight_shape == (4, 16) else (1,)
    g = hub_graph()
    packed, scale = gqc.quantize_int4(features(g, "u", shape), None, None, 0, 4, False)
    e = None if weight_shape is None else features(g, "e", weight_shape)
    op = "copy_lhs" if e is None else "mul"
    got, want = on_both(lambda: gqc.qspmm_int4(g, op, packed, scale, list(shape), e, torch.float32))
    if e is None:
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])
    else:
        assert_near(got[0], want[0])


@pytest.mark.parametrize("offset", [1, 4, 8])
def test_features_at_any_address(offset: int) -> None:
    g = graph("random")
    memory = torch.randint(-127, 128, (40 * 64 + offset,), dtype=torch.int8)
    u = memory[offset:].view(40, 64)
    assert_equal(lambda: gqc.qspmm(g, "copy_lhs", u, torch.ones(()), None, None, torch.float32))
    memory = torch.randn(40 * 64 + offset)
    got, want = on_both(lambda: (gqc.spmm(g, "copy_lhs", memory[offset:].view(40, 64), None),))
    assert_near(got[0], want[0])


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_sums_of_edge_features_in_edge_order(index: torch.dtype) -> None:
    """Incidence SPMM: edges sorted by destination have the identity for edge ids."""
    dst = torch.randint(0, 50, (5000,)).sort().values.to(index)
    g = from_edges(torch.randint(0, 50, (5000,)).to(index), dst, 50, 50)
    for shape in ((1,), (8,), (4, 16)):
        e, scale = quantized(g, "e", shape)
        assert_equal(lambda e=e, scale=scale: gqc.qspmm(g, "copy_rhs", None, None, e, scale, torch.float32))
        got, want = on_both(lambda shape=shape: (gqc.spmm(g, "copy_rhs", None, torch.ones(5000, *shape)),))
        assert torch.equal(got[0], want[0])


@pytest.mark.parametrize("reducer", ["sum", "mean", "max", "min"])
def test_segment_reduce_of_short_empty_and_long_runs(reducer: str) -> None:
    pytest.importorskip("dgl")
    from gqc.capture.dgl.segments import segment_reduce

    lengths = torch.cat([torch.tensor([0, 1, 2500, 0, 33]), torch.randint(0, 9, (40,)), torch.zeros(1)]).long()
    for shape in ((1,), (7,), (3, 16)):
        x = torch.randn(int(lengths.sum()), *shape)
        got, want = on_both(lambda x=x: (segment_reduce(lengths, x, reducer),))
        assert_near(got[0], want[0])
        if reducer in ("max", "min"):
            assert torch.equal(got[0], want[0])


@pytest.mark.parametrize("width", [1, 47, 64])
def test_float32_sums_have_one_order(width: int) -> None:
    g, results = hub_graph(), []
    u, e = features(g, "u", (width,)), features(g, "e", (1,))
    for seed in (1, 2):
        torch.manual_seed(seed)  # of the order in which the emulator runs threads and blocks
        with on_backend(CUDA):
            results.append(gqc.spmm(g, "mul", u, e))
    assert torch.equal(*results)


def test_shares_of_any_size_give_the_same_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    g = large_graph()
    for width in (5, 32):
        u, scale = quantized(g, "u", (width,))
        for cost in (1, 7, 300):
            monkeypatch.setattr(rows_of, "_LEAST_COST", cost)
            assert_equal(lambda u=u, scale=scale: gqc.qspmm(g, "copy_lhs", u, scale, None, None, torch.float32))


def test_nothing_larger_than_int32_sums_hold_is_added_up_in_them() -> None:
    target = emulator.Emulator(emulator.library())
    shared_out = rows_of.matrix(target, 0, False, 10, 2**31 - 2000, 1)
    assert shared_out.cost <= 131_072
    assert shared_out.cost * shared_out.shares >= 2**31 - 2000 + 4 * 10


def test_refuses_graphs_that_32_bits_do_not_number() -> None:
    with pytest.raises(KernelError, match="up to 2147482624 nodes and edges"):
        rows_of.matrix(emulator.Emulator(emulator.library()), 0, True, 10, 2**31, 1)
