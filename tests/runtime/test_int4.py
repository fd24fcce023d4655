"""Packed 4-bit values against their references, bit for bit, on every instruction set."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import int4 as reference
from tests.runtime.backends import BACKENDS, on_backend
from tests.runtime.graph_cases import BROADCASTS, GRAPHS, assert_near, features, graph, large_graph, on_all_backends

gqc = torch.ops.gqc
FLOAT, BFLOAT, HALF = torch.float32, torch.bfloat16, torch.float16
FORMS = [(False, False), (False, True), (True, False), (True, True)]


def draw_seed() -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (2,))


def packed(*shape: int) -> Tensor:
    return reference.pack_int4(torch.randint(-7, 8, shape, dtype=torch.int8))


def assert_equal(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> None:
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        assert g.shape == w.shape
        assert torch.equal(g, w) or (g.isnan().all() and w.isnan().all())


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    bits=st.integers(2, 4),
    stochastic=st.booleans(),
    dtype=st.sampled_from([FLOAT, BFLOAT, HALF]),
    backend=st.sampled_from(BACKENDS),
)
def test_quantize_and_unpack_equal_reference(
    shape: list[int], bits: int, stochastic: bool, dtype: torch.dtype, backend: str
) -> None:
    x, seed = torch.randn(shape, dtype=dtype), draw_seed()
    with on_backend(backend):
        values, scale = gqc.quantize_int4(x, None, seed, 3, bits, stochastic)
        assert_equal((values, scale), reference.quantize_int4(x, None, seed, 3, bits, stochastic))
        q, same_scale = gqc.quantize(x, None, seed, 3, bits, stochastic)
        assert_equal((gqc.unpack_int4(values, shape[1:]), scale), (q, same_scale))
    assert torch.equal(reference.unpack_int4(values, shape[1:]), q)


@pytest.mark.parametrize("shape", [(70_001,), (301, 257), (3, 20_011), (1, 1), (9000, 16), (900, 2, 3)])
def test_large_tensors_equal_reference(backend: str, threads: int, shape: tuple[int, ...]) -> None:
    """Rows that end within a block of random bits or within a byte, and rows longer than a thread's turn."""
    x, seed = torch.randn(shape), draw_seed()
    got = gqc.quantize_int4(x, gqc.absmax(x), seed, 1, 4, True)
    assert_equal(got, reference.quantize_int4(x, None, seed, 1, 4, True))
    assert torch.equal(gqc.unpack_int4(got[0], shape[1:]), gqc.quantize(x, None, seed, 1, 4, True)[0])


@pytest.mark.parametrize("dtype", [FLOAT, BFLOAT])
@pytest.mark.parametrize("width", [1, 2, 7, 16, 33, 64])
def test_a_tensor_may_start_anywhere(backend: str, dtype: torch.dtype, width: int) -> None:
    x, seed = torch.randn(100 * width + 1, dtype=dtype)[1:].view(100, width), draw_seed()
    packed, scale = gqc.quantize_int4(x, None, seed, 1, 4, True)
    assert_equal((packed, scale), reference.quantize_int4(x, None, seed, 1, 4, True))
    assert torch.equal(gqc.unpack_int4(packed[1:], [width]), reference.unpack_int4(packed[1:], [width]))


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, 1e-45])
def test_hard_values(backend: str, value: float) -> None:
    x = torch.full((6, 5), value)
    x[2, 3] = -value
    got = gqc.quantize_int4(x, None, None, 0, 4, False)
    assert_equal(got, reference.quantize_int4(x, None, None, 0, 4, False))
    assert got[0].count_nonzero() == 0


def test_levels_are_packed_as_documented() -> None:
    x = torch.tensor([[-7.0, 1.0, 3.0]])
    values, scale = gqc.quantize_int4(x, None, None, 0, 4, False)
    assert values.tolist() == [[0x19, 0x03]]
    assert scale == 1


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(0, 70),
    n=st.integers(0, 70),
    k=st.integers(0, 140),
    form=st.sampled_from(FORMS),
    has_bias=st.booleans(),
    dtype=st.sampled_from([FLOAT, BFLOAT, HALF]),
    backend=st.sampled_from(BACKENDS),
)
def test_qgemm_equals_reference(
    m: int, n: int, k: int, form: tuple[bool, bool], has_bias: bool, dtype: torch.dtype, backend: str
) -> None:
    arguments = gemm_arguments(m, n, k, form, torch.randn(n) if has_bias else None, dtype)
    with on_backend(backend):
        assert_equal(gqc.qgemm_int4(*arguments), reference.qgemm_int4(*arguments))


def gemm_arguments(
    m: int, n: int, k: int, form: tuple[bool, bool], bias: Tensor | None, dtype: torch.dtype
) -> tuple[object, ...]:
    a, b = (k, m) if form[0] else (m, k), (n, k) if form[1] else (k, n)
    return (packed(*a), torch.rand(()), a[1], packed(*b), torch.rand(()), b[1], *form, bias, dtype)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("m", "n", "k"), [(2000, 33, 17), (33, 65, 3001), (3, 2, 140_001)])
def test_qgemm_equals_reference_where_threads_share_the_work(
    backend: str, threads: int, form: tuple[bool, bool], m: int, n: int, k: int
) -> None:
    arguments = gemm_arguments(m, n, k, form, None, FLOAT)
    assert_equal(gqc.qgemm_int4(*arguments), reference.qgemm_int4(*arguments))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("m", "n", "k"), [(140, 35, 66), (31, 130, 77), (48, 64, 128)])
def test_qgemm_operands_may_start_anywhere(backend: str, form: tuple[bool, bool], m: int, n: int, k: int) -> None:
    """Also at the last bytes of their memory, behind which nothing may be read."""
    a, a_scale, a_width, b, b_scale, b_width, *rest = gemm_arguments(m, n, k, form, None, FLOAT)
    for offset in (1, 2, 5):
        x, y = (torch.cat([p.new_full((offset,), 0x77), p.view(-1)])[offset:].view(p.shape) for p in (a, b))
        arguments = (x, a_scale, a_width, y, b_scale, b_width, *rest)
        assert_equal(gqc.qgemm_int4(*arguments), reference.qgemm_int4(*arguments))


@pytest.mark.parametrize("form", FORMS)
def test_a_nan_scale_makes_every_product_nan(backend: str, form: tuple[bool, bool]) -> None:
    a, _, *rest = gemm_arguments(9, 20, 12, form, torch.ones(20), FLOAT)
    out, absmax = gqc.qgemm_int4(a.zero_(), torch.tensor(math.nan), *rest)
    assert out.isnan().all()
    assert absmax.isnan()


KINDS = ["int4 and int4", "int4 and float", "float and int4"]


def edge_operands(g: list[Tensor], kind: str, shapes: tuple, targets: tuple[str, str]) -> list:
    """``lhs, lhs_scale, lhs_features, rhs, ...`` of the operand types that ``kind`` names."""
    out: list = []
    for name, shape, target in zip(kind.split()[::2], shapes, targets, strict=True):
        x = features(g, target, shape)
        if name == "int4":
            out += [*gqc.quantize_int4(x, None, None, 0, 4, False), list(shape)]
        else:
            out += [x, None, None]
    return out


@pytest.mark.parametrize("shapes", [*BROADCASTS, ((3, 7), (3, 1)), ((2, 33), (2, 33))])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
def test_qsddmm_equals_reference_for_every_broadcast(backend: str, op: str, shapes: tuple) -> None:
    g = graph("bipartite")
    for kind in KINDS:
        arguments = [*edge_operands(g, kind, shapes, ("u", "v")), "u", "v", FLOAT]
        want = reference.qsddmm_int4(g, op, *arguments)
        torch.testing.assert_close(gqc.qsddmm_int4(g, op, *arguments), want, rtol=1e-6, atol=1e-7, equal_nan=True)


def as_int8(arguments: list) -> list:
    """Operands of qsddmm for the same values."""
    out: list = []
    for x, scale, shape in (arguments[:3], arguments[3:6]):
        out += [x if shape is None else gqc.unpack_int4(x, shape), scale]
    return out + arguments[6:]


@pytest.mark.parametrize("shape", [(1,), (3,), (8,), (17,), (130,), (4, 8), (3, 5), (3, 33)])
@pytest.mark.parametrize("kind", KINDS)
def test_qsddmm_equals_int8_bit_for_bit(backend: str, kind: str, shape: tuple[int, ...]) -> None:
    g = graph("bipartite", torch.int32)
    for op in ("dot", "add", "sub", "mul", "div"):
        arguments = [*edge_operands(g, kind, (shape, shape), ("v", "u")), "v", "u", BFLOAT]
        got, want = gqc.qsddmm_int4(g, op, *arguments), gqc.qsddmm(g, op, *as_int8(arguments))
        assert torch.equal(got, want) or (op == "div" and torch.equal(got.nan_to_num(7), want.nan_to_num(7)))


@pytest.mark.parametrize("shapes", [((7,), None), ((8,), None), ((33,), (1,)), ((3, 5), (3, 1)), ((40,), (40,))])
@pytest.mark.parametrize("kind", GRAPHS)
def test_qspmm_equals_int8_bit_for_bit(backend: str, kind: str, shapes: tuple) -> None:
    g, (shape, edge_shape) = graph(kind), shapes
    u, scale = gqc.quantize_int4(features(g, "u", shape), None, None, 0, 4, False)
    e = None if edge_shape is None else features(g, "e", edge_shape)
    op = "copy_lhs" if e is None else "mul"
    got = gqc.qspmm_int4(g, op, u, scale, shape, e, FLOAT)
    assert_equal(got, gqc.qspmm(g, op, gqc.unpack_int4(u, shape), scale, e, None, FLOAT))
    assert_near(got[0], reference.qspmm_int4(g, op, u, scale, shape, e, FLOAT)[0])


def test_graph_ops_do_not_depend_on_threads_or_instruction_set() -> None:
    g = large_graph()
    operands = [*edge_operands(g, "int4 and int4", ((3, 25), (3, 25)), ("u", "v")), "u", "v", FLOAT]
    u, scale, shape = operands[:3]
    for run in (
        lambda: gqc.qsddmm_int4(g, "dot", *operands),
        lambda: gqc.qspmm_int4(g, "copy_lhs", u, scale, shape, None, FLOAT)[0],
    ):
        first, *others = on_all_backends(run)
        assert all(torch.equal(other, first) for other in others)


@pytest.mark.parametrize("op", ["add", "dot"])
def test_qsddmm_on_every_kind_of_graph_and_nan(op: str) -> None:
    for kind in GRAPHS:
        g = graph(kind)
        lhs, scale, shape, *rest = [*edge_operands(g, "int4 and int4", ((2, 9), (2, 9)), ("u", "v")), "u", "v", FLOAT]
        torch.testing.assert_close(
            gqc.qsddmm_int4(g, op, lhs, scale, shape, *rest), reference.qsddmm_int4(g, op, lhs, scale, shape, *rest)
        )
        assert gqc.qsddmm_int4(g, op, lhs, torch.tensor(math.nan), shape, *rest).isnan().all()


def test_refusals_say_what_is_wrong() -> None:
    x, one, g = packed(4, 5), torch.ones(()), graph("single")
    with pytest.raises(KernelError, match=r"quantize_int4: bits=5 is outside 2 \.\. 4"):
        gqc.quantize_int4(torch.ones(2, 2), None, None, 0, 5, False)
    with pytest.raises(KernelError, match="a number has no rows"):
        gqc.quantize_int4(torch.ones(()), None, None, 0, 4, False)
    with pytest.raises(
        KernelError, match=r"unpack_int4: rows of \[8\] packed values are uint8 \[N, 4\], not .* \[4, 3\]"
    ):
        gqc.unpack_int4(x, [8])
    with pytest.raises(KernelError, match=r"a \(4, 5\).*b \(4, 5\).*do not fit"):
        gqc.qgemm_int4(x, one, 5, x, one, 5, False, False, None, FLOAT)
    with pytest.raises(KernelError, match="comes with its scale and its features"):
        gqc.qsddmm_int4(g, "add", x[:1], one, None, x[:1], one, [5], "u", "v", FLOAT)
    with pytest.raises(KernelError, match="no operand has a scale"):
        gqc.qsddmm_int4(g, "add", torch.ones(1, 5), None, None, torch.ones(1, 5), None, None, "u", "v", FLOAT)
    with pytest.raises(KernelError, match="expected copy_lhs or mul"):
        gqc.qspmm_int4(g, "copy_rhs", x[:1], one, [5], torch.ones(1, 5), FLOAT)
    with pytest.raises(KernelError, match=r"needs int8 matrices and got torch\.uint8"):
        gqc.qgemm(x, one, x, one, False, True, None, FLOAT)


def test_opcheck() -> None:
    x, g = torch.randn(5, 7), graph("bipartite")
    values, scale = gqc.quantize_int4(x, None, draw_seed(), 0, 4, True)
    torch.library.opcheck(gqc.quantize_int4.default, (x, None, draw_seed(), 0, 3, True))
    torch.library.opcheck(gqc.unpack_int4.default, (values, [7]))
    torch.library.opcheck(gqc.qgemm_int4.default, (values, scale, 7, values, scale, 7, False, True, None, BFLOAT))
    operands = edge_operands(g, "int4 and int4", ((4, 6), (4, 6)), ("u", "v"))
    torch.library.opcheck(gqc.qsddmm_int4.default, (g, "dot", *operands, "u", "v", FLOAT))
    torch.library.opcheck(gqc.qspmm_int4.default, (g, "copy_lhs", *operands[:3], None, FLOAT))
