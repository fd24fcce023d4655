"""Products whose result only a pointwise program reads, against the product and the program one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.relation import from_edges, num_dst
from tests.runtime.graph_cases import (
    GRAPHS,
    Relation,
    features,
    graph,
    hub_graph,
    large_graph,
    on_all_backends,
    quantized,
)

gqc = torch.ops.gqc
EVERYTHING = (
    "v0 = mul(x0, x1); v1 = add(v0, x2); v2 = relu(v1); v3 = le(v1, 0.0); v4 = keep(0.4, 9); v5 = drop(v2, v4, 0.4); "
    "return float32(v5), bits(v3), bits(v4), absmax(v5), bfloat16(v1), bool(v3), float32(sum(v1, 0))"
)
"""What follows a layer's aggregation: degrees, bias, ReLU and dropout with their masks, and a bias's gradient."""
SEED = torch.tensor([5, 7])


def rows_and_bias(g: Relation, width: int) -> list[Tensor]:
    return [torch.rand(num_dst(g), 1), torch.randn(width)]


def composed(
    product: Tensor, inputs: Sequence[Tensor], program: str, size: Sequence[int] | None = None
) -> list[Tensor]:
    x = product if size is None else product.reshape(size)
    return gqc.pointwise([x, *inputs], SEED, program, x.shape)


def assert_same(got: Sequence[Tensor], want: Sequence[Tensor], sums: Sequence[int] = ()) -> None:
    """Bit for bit; results of the indices ``sums``, which may cancel, are added up in another order."""
    assert len(got) == len(want)
    matrices = [y.float().nan_to_num() for y in want if y.is_floating_point() and y.dim() > 1 and y.numel()]
    summed = max((float(y.abs().sum(0).max()) for y in matrices), default=0.0)
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        tolerance = 1e-5 * max(summed, float(y.abs().nan_to_num().max())) if i in sums and y.numel() else 0
        torch.testing.assert_close(x, y, rtol=tolerance and 1e-5, atol=tolerance, equal_nan=True)


def spmm_cases(g: Relation, width: int) -> dict[str, tuple[list, Tensor]]:
    """Arguments of qspmm_pointwise or spmm_pointwise in front of the inputs, and the product."""
    (u, scale), (e, e_scale) = quantized(g, "u", (width,)), quantized(g, "e", (1,))
    x, w = features(g, "u", (width,)), features(g, "e", (1,))
    of_edges = features(g, "e", (width,))
    cases: dict[str, tuple[list, Tensor]] = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for arguments in (
            [g, "copy_lhs", u, scale, None, None],
            [g, "mul", u, scale, w, None],
            [g, "mul", u, scale, e, e_scale],
        ):
            last = [*arguments, dtype]
            cases[f"int8 {arguments[1]} {arguments[4] is w} {dtype}"] = last, gqc.qspmm(*last)[0]
        floats = [g, "copy_lhs", x.to(dtype), None]
        cases[f"float copy_lhs {dtype}"] = floats, gqc.spmm(*floats)
    for op in ("copy_rhs", "mul", "add", "sub", "div"):
        arguments = [g, op, None if op == "copy_rhs" else x, of_edges if op == "copy_rhs" else w]
        cases[f"float {op}"] = arguments, gqc.spmm(*arguments)
    return cases


def run_spmm(
    arguments: list, inputs: Sequence[Tensor], program: str, size: Sequence[int] | None = None
) -> list[Tensor]:
    op = gqc.qspmm_pointwise if len(arguments) == 7 else gqc.spmm_pointwise
    return op(*arguments, inputs, SEED, program, size)


@pytest.mark.parametrize("width", [1, 5, 16, 40, 72, 130])
def test_spmm_with_a_program(isa: str, width: int) -> None:
    for g in (graph("hub", torch.int32), graph("isolated")):
        inputs = rows_and_bias(g, width)
        for arguments, product in spmm_cases(g, width).values():
            assert_same(run_spmm(arguments, inputs, EVERYTHING), composed(product, inputs, EVERYTHING), sums=[6])


@pytest.mark.parametrize("kind", GRAPHS)
def test_spmm_with_a_program_on_every_kind_of_graph(kind: str) -> None:
    g = graph(kind)
    inputs = rows_and_bias(g, 9)
    for arguments, product in spmm_cases(g, 9).values():
        assert_same(run_spmm(arguments, inputs, EVERYTHING), composed(product, inputs, EVERYTHING), sums=[6])


def test_spmm_with_a_program_that_looks_at_heads(isa: str) -> None:
    g = hub_graph()
    u, scale = quantized(g, "u", (4, 8))
    weights, attention = features(g, "e", (4, 1)), torch.randn(4, 8)
    program = "v0 = mul(x0, x1); return float32(sum(v0, -1)), float32(x0), bfloat16(sum(v0, 0))"
    arguments = [g, "mul", u, scale, weights, None, torch.bfloat16]
    product = gqc.qspmm(*arguments)[0]
    assert_same(run_spmm(arguments, [attention], program), composed(product, [attention], program), sums=[2])
    arguments = [g, "copy_lhs", u.view(-1, 32), scale, None, None, torch.float32]
    product, size = gqc.qspmm(*arguments)[0], [-1, 4, 8]
    got = run_spmm(arguments, [attention], program, size)
    assert_same(got, composed(product, [attention], program, size), sums=[2])


def test_spmm_with_a_program_whose_rows_lie_across_those_of_the_product() -> None:
    g = hub_graph()
    u, scale = quantized(g, "u", (6,))
    arguments = [g, "copy_lhs", u, scale, None, None, torch.float32]
    program, size, factors = "v0 = mul(x0, x1); return float32(v0)", [-1, 4], [torch.rand(4)]
    assert_same(run_spmm(arguments, factors, program, size), composed(gqc.qspmm(*arguments)[0], factors, program, size))


def test_spmm_with_a_program_does_not_depend_on_threads_or_instruction_set() -> None:
    g = large_graph()
    inputs = rows_and_bias(g, 24)
    for arguments, _ in spmm_cases(g, 24).values():
        first, *others = on_all_backends(lambda: run_spmm(arguments, inputs, EVERYTHING))  # noqa: B023
        for other in others:
            assert all(map(torch.equal, other, first))


def test_what_is_not_finite_stays_so(isa: str) -> None:
    g = graph("random")
    u, _ = quantized(g, "u", (20,))
    program = "v0 = mul(x0, 2.0); return float32(v0), absmax(v0), float32(sum(v0, 0))"
    out, absmax, total = gqc.qspmm_pointwise(
        g, "copy_lhs", u, torch.tensor(float("nan")), None, None, torch.bfloat16, [], None, program
    )
    assert out.isnan().all()
    assert absmax.isnan()
    assert total.isnan().all()
    x = features(g, "u", (20,))
    x[3, 4] = float("inf")
    arguments = [g, "copy_lhs", x, None]
    assert_same(run_spmm(arguments, [], program), composed(gqc.spmm(*arguments), [], program), sums=[2])


def test_many_rows_are_streamed_and_summed_in_fixed_chunks() -> None:
    nodes, width = 40_000, 128  # 20 MB of float32
    g = two_edges_a_row(nodes)
    u, scale = torch.randint(-127, 128, (nodes, width), dtype=torch.int8), torch.tensor(0.01)
    sums = [gqc.qspmm(g, "copy_lhs", u, scale, None, None, dtype) for dtype in (torch.float32, torch.bfloat16)]
    want = u.float()[g[1].long()].view(nodes, 2, width).sum(1) * scale
    assert torch.equal(sums[0][0], want)
    assert torch.equal(sums[1][0], want.bfloat16())
    assert sums[0][1] == want.abs().max()
    program = "v0 = relu(x0); return bfloat16(v0), float32(sum(v0, 0))"
    got = gqc.qspmm_pointwise(g, "copy_lhs", u, scale, None, None, torch.float32, [], None, program)
    assert_same(got, composed(want, [], program), sums=[1])


def two_edges_a_row(nodes: int) -> Relation:
    return from_edges(torch.randint(0, nodes, (2 * nodes,)), torch.arange(nodes).repeat_interleave(2), nodes, nodes)


def test_what_does_not_fit_is_named() -> None:
    g = graph("random")
    u, scale = quantized(g, "u", (8,))
    arguments = [g, "copy_lhs", u, scale, None, None, torch.float32]
    with pytest.raises(KernelError, match="gathered twice"):
        run_spmm(arguments, [], "return int8(x0, 1, 8, 1)")
    with pytest.raises(KernelError, match="does not broadcast"):
        run_spmm(arguments, [torch.rand(7)], "v0 = mul(x0, x1); return float32(v0)")
    with pytest.raises(KernelError, match="needs a seed"):
        gqc.qspmm_pointwise(*arguments, [], None, "v0 = keep(0.5, 1); v1 = drop(x0, v0, 0.5); return float32(v1)")
    with pytest.raises(KernelError, match=r"has no shape \[-1, 7\]"):
        run_spmm(arguments, [], "return float32(x0)", [-1, 7])
    with pytest.raises(KernelError, match="expected copy_lhs, copy_rhs or mul"):
        run_spmm([g, "div", *arguments[2:]], [], "return float32(x0)")
    with pytest.raises(KernelError, match="must have 40 rows"):
        run_spmm([g, "copy_lhs", features(g, "u", (8,))[:5], None], [], "return float32(x0)")


def test_opcheck() -> None:
    g = graph("random")
    u, scale = quantized(g, "u", (8,))
    inputs = rows_and_bias(g, 8)
    torch.library.opcheck(
        gqc.qspmm_pointwise.default, (g, "copy_lhs", u, scale, None, None, torch.float32, inputs, SEED, EVERYTHING)
    )
    torch.library.opcheck(
        gqc.spmm_pointwise.default, (g, "copy_lhs", features(g, "u", (8,)), None, inputs, SEED, EVERYTHING)
    )
