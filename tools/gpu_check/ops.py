"""Every op on the device beside the CPU's kernels, bit for bit where sums are integers, and beside float64."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import gqc.runtime.ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import attend as attend_reference
from gqc.runtime.reference import edge_softmax as softmax_reference
from gqc.runtime.reference import gat as gat_reference
from gqc.runtime.reference import project_rows as project_reference
from gqc.runtime.reference import sddmm as sddmm_reference
from gqc.runtime.reference import spmm as spmm_reference
from gqc.runtime.relation import from_edges
from tools.gpu_check.place import Place
from tools.gpu_check.record import Found, attempt

gqc_ops = torch.ops.gqc
FLOAT, BFLOAT, HALF = torch.float32, torch.bfloat16, torch.float16
_BROADCASTS = [((4, 8), (4, 1)), ((2, 6), (1, 1)), ((1, 12), (3, 1)), ((2, 1, 6), (3, 1))]
_TOLERANCE = {FLOAT: 5e-5, BFLOAT: 2**-6, HALF: 2**-9}
"""Of the largest value. What a softmax's gradient subtracts cancels; in half precision, sums on both sides of a
boundary are rounded apart, then their products."""


@dataclass(frozen=True)
class Case:
    """A call of an op.

    Attributes:
        label: what is special in it.
        op: name in ``torch.ops.gqc``.
        arguments: on the CPU.
        exact: whether the device must give the CPU's bits.
        in_float64: the same computed from float64 arguments, where the op takes floats.
    """

    label: str
    op: str
    arguments: tuple[Any, ...]
    exact: bool = True
    in_float64: Callable[..., Any] | None = None


class Inputs:
    """A graph with a hub, features of several widths and their quantized forms.

    Args:
        small: for the emulator and the sanitizer.
    """

    def __init__(self, small: bool) -> None:
        self.random = torch.Generator().manual_seed(7)
        self.widths = (3, 16) if small else (1, 3, 16, 33, 64, 100, 128, 513)
        self.sources, self.targets, self.edges = (20, 15, 150) if small else (300, 250, 8000)
        hub = self.edges // 2
        src = torch.randint(self.sources, (self.edges,), generator=self.random)
        dst = torch.randint(self.targets - 3, (self.edges,), generator=self.random)  # the last three have no edges
        dst[torch.randperm(self.edges, generator=self.random)[:hub]] = 5
        self.graphs = [from_edges(src.to(t), dst.to(t), self.sources, self.targets) for t in (torch.int32, torch.int64)]
        self.seed = torch.tensor([123_456_789_012, 3])
        self.gemms = [(17, 33, 20)] if small else [(1000, 128, 256), (4097, 47, 100), (33, 257, 140_003), (1, 1, 1)]

    def floats(self, *shape: int) -> Tensor:
        """Values away from 0, so that quotients are well-conditioned."""
        x = torch.rand(shape, generator=self.random) + 0.5
        return x * (torch.randint(2, shape, generator=self.random) * 2 - 1)

    def int8(self, *shape: int) -> tuple[Tensor, Tensor]:
        """Quantized values and their scale."""
        q = torch.randint(-127, 128, shape, generator=self.random, dtype=torch.int8)
        return q, torch.rand((), generator=self.random)

    def int4(self, *shape: int) -> tuple[Tensor, Tensor]:
        """Packed values and their scale."""
        return gqc_ops.quantize_int4(self.floats(*shape), None, None, 0, 4, False)

    def rows(self, target: str) -> int:
        return {"u": self.sources, "v": self.targets, "e": self.edges}[target]


def _quantize(x: Inputs) -> Iterator[Case]:
    for width in x.widths:
        for dtype in (FLOAT, BFLOAT, HALF):
            values = x.floats(x.sources, width).to(dtype)
            label = f"width {width}, {dtype}"
            yield Case(label, "absmax", (values,))
            for stochastic in (True, False):
                yield Case(label, "quantize", (values, None, x.seed, 5, 8, stochastic))
                yield Case(label, "quantize_int4", (values, None, x.seed, 5, 4, stochastic))
            yield Case(label, "dequantize", (*x.int8(x.sources, width), dtype))
            yield Case(label, "dropout", (values, 0.4, x.seed, 9))
            mask = gqc_ops.dropout(values, 0.4, x.seed, 9)[1]
            yield Case(label, "dropout_backward", (values, mask, 0.4))
        yield Case(f"width {width}", "unpack_int4", (x.int4(x.sources, width)[0], [width]))
    for value in (0.0, float("nan"), float("inf"), 1e-42):
        yield Case(f"with {value}", "quantize", (torch.full((9, 5), value), None, x.seed, 5, 8, True))


def _pack_bits(x: Inputs) -> Iterator[Case]:
    for width in x.widths:
        for bits in (1, 2, 4):
            values = torch.randint(2**bits, (x.sources, width), generator=x.random, dtype=torch.uint8)
            label = f"width {width}, {bits} bits"
            yield Case(label, "pack_bits", (values, bits))
            yield Case(label, "unpack_bits", (gqc_ops.pack_bits(values, bits), bits, width))


def _compress_rows(x: Inputs) -> Iterator[Case]:
    for width in x.widths:
        for bits in (1, 2, 4, 8):
            for dtype in (FLOAT, BFLOAT, HALF):
                values, label = x.floats(x.sources, width).to(dtype), f"width {width}, {bits} bits, {dtype}"
                yield Case(label, "compress_rows", (values, bits, x.seed, 5, BFLOAT))
                compressed = gqc_ops.compress_rows(values, bits, x.seed, 5, FLOAT)
                yield Case(label, "decompress_rows", (*compressed, bits, width, dtype))
                grouped = gqc_ops.compress_rows(values, bits, x.seed, 5, FLOAT, 32)
                yield Case(f"{label}, groups", "compress_rows", (values, bits, x.seed, 5, FLOAT, 32))
                yield Case(f"{label}, groups", "decompress_rows", (*grouped, bits, width, dtype, 32))


def _project_rows(x: Inputs) -> Iterator[Case]:
    for width in x.widths:
        kept, label = -(-width // 3), f"width {width}"
        values = x.floats(x.sources, width)
        yield Case(label, "project_rows", (values, kept, x.seed, 5), False, project_reference.project_rows)
        projected = gqc_ops.project_rows(values, kept, x.seed, 5)
        yield Case(label, "unproject_rows", (projected, width, x.seed, 5), False, project_reference.unproject_rows)


def _gather_rows(x: Inputs) -> Iterator[Case]:
    for width in x.widths:
        index = torch.arange(2 * x.sources).view(2, -1) % x.sources
        yield Case(f"width {width}", "gather_rows", (x.floats(x.sources, width), index))


def _cross_entropy(x: Inputs) -> Iterator[Case]:
    rows = torch.arange(2 * x.sources) * 5 % x.sources
    for width, ignored, reduction in zip(x.widths, (0, -100, 0), ("mean", "sum", "none"), strict=False):
        labels, logits = (rows * 3) % width, x.floats(x.sources, width)
        for selected in (rows, None):
            label, given = f"width {width}, {reduction}", labels if selected is not None else labels[: x.sources]
            options = (reduction, ignored)
            yield Case(label, "cross_entropy", (logits, given, selected, *options), exact=False)
            loss, counted = gqc_ops.cross_entropy(logits, given, selected, *options)
            arguments = (torch.ones_like(loss), logits, given, selected, counted, *options)
            yield Case(label, "cross_entropy_backward", arguments, exact=False)


def _weighted_sum(x: Inputs) -> Iterator[Case]:
    for width in x.widths:
        index = torch.arange(4 * x.sources).view(-1, 4) % x.sources
        weights, table, grad = x.floats(x.sources, 4), x.floats(x.sources, width), x.floats(x.sources, width)
        label = f"width {width}"
        yield Case(f"{label}, of a table", "weighted_sum", (weights, table, index), exact=False)
        yield Case(label, "weighted_sum", (weights, x.floats(x.sources, 4, width)), exact=False)
        yield Case(label, "weighted_sum_bwd_weights", (table, index, grad), exact=False)
        yield Case(label, "add_rows", (grad, index[:, 0], x.sources), exact=False)
        yield Case(f"{label}, weighted", "add_rows", (grad, index, x.sources, weights), exact=False)


def _pointwise(x: Inputs) -> Iterator[Case]:
    chain = "v0 = mul(x0, x1); v1 = add(v0, x2); v2 = relu(v1); v3 = keep(0.4, 9); v4 = drop(v2, v3, 0.4); "
    for width in x.widths:
        inputs = [x.floats(x.sources, width), x.floats(x.sources, 1), x.floats(width)]
        outputs = "return float32(v4), bits(v3), absmax(v4), int8(v2, 5, 8, 1)"
        yield Case(f"width {width}", "pointwise", (inputs, x.seed, chain + outputs))
        sums = "v0 = exp(x0); v1 = mul(v0, x1); return bfloat16(v0), float32(sum(v1, 0)), float32(sum(v1, -1))"
        yield Case(f"sums, width {width}", "pointwise", (inputs[:2], None, sums), exact=False)


def _gemm(x: Inputs) -> Iterator[Case]:
    for m, n, k in x.gemms:
        for trans_a, trans_b in ((False, False), (False, True), (True, False)):
            shapes = (k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)
            label = f"{m} x {n} x {k}{', A transposed' if trans_a else ''}{', B transposed' if trans_b else ''}"
            for dtype, bias in ((FLOAT, None), (BFLOAT, x.floats(n).bfloat16())):
                operands = (*x.int8(*shapes[0]), *x.int8(*shapes[1]))
                yield Case(f"{label}, {dtype}", "qgemm", (*operands, trans_a, trans_b, bias, dtype))
            a, b = ((*x.int4(*shape), shape[1]) for shape in shapes)
            yield Case(label, "qgemm_int4", (*a, *b, trans_a, trans_b, None, FLOAT))


def _mm(x: Inputs) -> Iterator[Case]:
    for m, n, k in x.gemms:
        label, a, b = f"{m} x {n} x {k}", x.floats(m, k), x.floats(k, n)
        yield Case(label, "mm", (a, b, False, False), exact=False)
        yield Case(f"{label}, rows", "mm", (a, x.floats(m, n), True, False, x.floats(m)), exact=False)
        program = "v0 = mul(x0, x1); v1 = relu(v0); return float32(v1), bfloat16(v0), float32(sum(v1, 0))"
        yield Case(label, "mm_pointwise", (a, b, False, [x.floats(n)], None, program), exact=False)


def _fused_gemm(x: Inputs) -> Iterator[Case]:
    for m, n, k in x.gemms:
        for dtype, trans in ((FLOAT, False), (BFLOAT, True)):
            b, b_scale = x.int8(*((n, k) if trans else (k, n)))
            after, rounding = (x.floats(n), x.floats(m), True), (x.seed, 4, 8, True)
            label = f"{m} x {n} x {k}, {dtype}"
            floats = x.floats(m, k).to(dtype)
            yield Case(label, "quantize_qgemm", (floats, None, *rounding, b, b_scale, trans, *after, dtype))
            a, a_scale = x.int8(*((k, m) if trans else (m, k)))
            product = (a, a_scale, b, b_scale, trans, trans, *after)
            yield Case(label, "qgemm_epilogue", (*product, dtype))
            yield Case(label, "qgemm_int8", (*product, *rounding, dtype))
            program = "v0 = mul(x0, x1); v1 = add(v0, x2); v2 = relu(v1); return bfloat16(v2), int8(v2, 4, 8, 1)"
            read = ([x.floats(m, 1), x.floats(n)], x.seed, program)
            yield Case(label, "qgemm_pointwise", (*x.int8(m, k), b, b_scale, trans, dtype, *read))
            read = (b, b_scale, trans, dtype, read[0], program)
            yield Case(label, "quantize_qgemm_pointwise", (floats, None, *rounding, *read))
            positive = gqc_ops.qgemm_epilogue(*product, dtype)[2]
            yield Case(label, "relu_backward", (x.floats(m, n).to(dtype), positive))


def _spmm(x: Inputs) -> Iterator[Case]:
    for g in x.graphs:
        for shapes in [*(((w,), (w,)) for w in x.widths), *_BROADCASTS]:
            u, e = x.floats(x.sources, *shapes[0]), x.floats(x.edges, *shapes[1])
            label = f"{shapes}, {g[0].dtype}"
            for op in ("copy_lhs", "copy_rhs", "add", "sub", "mul", "div"):
                yield Case(f"{op} {label}", "spmm", (g, op, u, e), False, spmm_reference.spmm)
            (uq, us), (eq, es) = x.int8(*u.shape), x.int8(*e.shape)
            yield Case(f"copy_lhs {label}", "qspmm", (g, "copy_lhs", uq, us, None, None, FLOAT))
            yield Case(f"mul {label}", "qspmm", (g, "mul", uq, us, eq, es, FLOAT))
            yield Case(f"mul {label}, float weights", "qspmm", (g, "mul", uq, us, e, None, BFLOAT), exact=False)
            packed, scale = x.int4(*u.shape)
            yield Case(label, "qspmm_int4", (g, "copy_lhs", packed, scale, list(shapes[0]), None, FLOAT))
        for width in x.widths:
            yield from _spmm_by_rows(x, g, width)
            yield from _spmm_pointwise(x, g, width)


def _spmm_pointwise(x: Inputs, g: list[Tensor], width: int) -> Iterator[Case]:
    program = "v0 = mul(x0, x1); v1 = add(v0, x2); v2 = relu(v1); return bfloat16(v2), absmax(v2)"
    u, (uq, us), last = x.floats(x.sources, width), x.int8(x.sources, width), (x.floats(x.targets, 1), x.floats(width))
    yield Case(f"width {width}", "spmm_pointwise", (g, "copy_lhs", u, None, last, None, program), exact=False)
    operands = (uq, us, None, None, BFLOAT)
    yield Case(f"width {width}", "qspmm_pointwise", (g, "copy_lhs", *operands, last, None, program))


def _spmm_by_rows(x: Inputs, g: list[Tensor], width: int) -> Iterator[Case]:
    rows, u, (uq, us), (packed, scale) = (
        x.floats(x.targets),
        *(make(x.sources, width) for make in (x.floats, x.int8, x.int4)),
    )
    for divide in (False, True):
        for dtype in (FLOAT, BFLOAT, HALF):
            last, label = (dtype, rows, divide), f"width {width}, rows {'divided' if divide else 'times'}, {dtype}"
            yield Case(label, "qspmm", (g, "copy_lhs", uq, us, None, None, *last))
            yield Case(label, "qspmm_int4", (g, "copy_lhs", packed, scale, [width], None, *last))
            arguments = (g, "copy_lhs", u.to(dtype), None, rows, divide)
            yield Case(label, "spmm", arguments, False, spmm_reference.spmm if dtype is FLOAT else None)


def _typed_spmm(x: Inputs) -> Iterator[Case]:
    """On a GPU these are products of gathered rows, whose messages are added up in float32."""
    for g in x.graphs:
        for width in x.widths:
            u, grad, types = (x.sources, width), (x.targets, 5), torch.randint(3, (x.edges,), generator=x.random)
            label = f"{width} x 5, {g[0].dtype}"
            yield Case(label, "typed_spmm", (g, x.floats(*u), x.floats(3, width, 5), types, None), exact=False)
            arguments = (g, *x.int8(*u), *x.int8(3, width, 5), types, None, FLOAT)
            yield Case(label, "qtyped_spmm", arguments, exact=False)
            yield Case(label, "typed_spmm_bwd_b", (g, x.floats(*u), x.floats(*grad), types, 3, None), exact=False)
            arguments = (g, *x.int8(*u), *x.int8(*grad), types, 3, FLOAT)
            yield Case(label, "qtyped_spmm_bwd_b", arguments, exact=False)


def _spmm_cmp(x: Inputs) -> Iterator[Case]:
    for g in x.graphs:
        for width in x.widths:
            u, e = x.floats(x.sources, width), x.floats(x.edges, width)
            label = f"width {width}, {g[0].dtype}"
            for reduce in ("max", "min"):
                for op in ("copy_lhs", "mul"):
                    yield Case(f"{reduce} of {op} {label}", "spmm_cmp", (g, op, reduce, u, e))
                yield Case(f"{reduce} {label}", "qspmm_cmp", (g, reduce, *x.int8(*u.shape), FLOAT))
            arg = gqc_ops.spmm_cmp(g, "mul", "max", u, e)[1]
            grad = x.floats(x.targets, width)
            yield Case(label, "spmm_cmp_bwd", (g, arg, grad))
            yield Case(label, "spmm_cmp_bwd_src", (g, arg, grad), exact=False)


def _sddmm(x: Inputs) -> Iterator[Case]:
    for g in x.graphs:
        for targets in (("u", "v"), ("e", "v")):
            shapes = [*(((w,), (w,)) for w in x.widths), ((4, 16), (4, 16)), ((3, 5), (1, 5)), *_BROADCASTS]
            for left, right in shapes:
                ops = ["add", "sub", "mul", "div", *(["dot"] if left[-1] == right[-1] else [])]
                sides = [(x.rows(t), *shape) for t, shape in zip(targets, (left, right), strict=True)]
                for op in ops:
                    yield from _sddmm_of(x, g, op, sides, targets)


def _sddmm_of(
    x: Inputs, g: list[Tensor], op: str, sides: list[tuple[int, ...]], targets: tuple[str, str]
) -> Iterator[Case]:
    label = f"{op} {sides} on {targets}, {g[0].dtype}"
    (a, b), exact = (x.floats(*side) for side in sides), op != "dot"
    yield Case(label, "sddmm", (g, op, a, b, *targets), exact, sddmm_reference.sddmm)
    (aq, a_scale), (bq, b_scale) = (x.int8(*side) for side in sides)
    yield Case(label, "qsddmm", (g, op, aq, a_scale, bq, b_scale, *targets, FLOAT))
    yield Case(f"{label}, float rhs", "qsddmm", (g, op, aq, a_scale, b, None, *targets, FLOAT), exact)
    (ap, a_scale), (bp, b_scale) = (x.int4(*side) for side in sides)
    left, right = ([*side[1:]] for side in sides)
    yield Case(label, "qsddmm_int4", (g, op, ap, a_scale, left, bp, b_scale, right, *targets, FLOAT))
    yield Case(f"{label}, float lhs", "qsddmm_int4", (g, op, a, None, None, bp, b_scale, right, *targets, FLOAT), exact)


def _edge_softmax(x: Inputs) -> Iterator[Case]:
    for g in x.graphs:
        for heads in (1, 3, 4, 8, 40):
            logits, label = 4 * x.floats(x.edges, heads), f"{heads} heads, {g[0].dtype}"
            yield Case(label, "edge_softmax", (g, logits), False, softmax_reference.edge_softmax)
            out, grad = gqc_ops.edge_softmax(g, logits), x.floats(x.edges, heads)
            yield Case(label, "edge_softmax_bwd", (g, out, grad), False, softmax_reference.edge_softmax_bwd)
    logits = 4 * x.floats(x.edges, 4)
    logits[:, 1], logits[3, 2], logits[4, 3] = -float("inf"), float("nan"), float("inf")
    yield Case("masked and bad logits", "edge_softmax", (x.graphs[0], logits), exact=False)


def _gat(x: Inputs) -> Iterator[Case]:
    for g in x.graphs:
        for heads, width in ((8, 16), (3, 20), (1, 47), (4, 12), (2, 5), (1, 600)):
            el, er = (4 * x.floats(nodes, heads) for nodes in (x.sources, x.targets))
            u, grad = (x.sources, heads, width), (x.targets, heads, width)
            float_sides = (x.floats(*u), None), (x.floats(*grad), None)
            for kind, sides in (("INT8", (x.int8(*u), x.int8(*grad))), ("float", float_sides)):
                for p in (0.0, 0.6):
                    label = f"{heads} x {width} {kind}, p = {p}, {g[0].dtype}"
                    options = (0.2, p, x.seed, 7, FLOAT)
                    arguments = (g, el, er, *sides[0], *options)
                    yield Case(label, "gat", arguments, False, gat_reference.gat)
                    softmax = gqc_ops.gat(*arguments)[2:]
                    arguments = (g, el, er, *softmax, *sides[0], *sides[1], *options)
                    yield Case(label, "gat_bwd", arguments, False, gat_reference.gat_bwd)


def _attend(x: Inputs) -> Iterator[Case]:
    """On a GPU the reference runs, in float32."""
    for g in x.graphs:
        for heads, width, p in ((4, 12, 0.6), (1, 47, 0.0)):
            u, grad = (x.sources, heads, width), (x.targets, heads, width)
            sides = x.int8(*u), x.int8(*grad)
            for kind, a in (("dot products", None), ("with a vector", x.floats(heads, width))):
                score = (x.floats(*u), x.floats(*grad), a, 0.2)
                label = f"{heads} x {width} {kind}, p = {p}, {g[0].dtype}"
                arguments = (g, *score, *sides[0], p, x.seed, 7, FLOAT)
                yield Case(label, "attend", arguments, False, attend_reference.attend)
                softmax = gqc_ops.attend(*arguments)[2:]
                arguments = (g, *score, *softmax, *sides[0], *sides[1], p, x.seed, 7, FLOAT)
                yield Case(label, "attend_bwd", arguments, False, attend_reference.attend_bwd)


FAMILIES: dict[str, Callable[[Inputs], Iterator[Case]]] = {
    "quantize": _quantize,
    "pack_bits": _pack_bits,
    "compress_rows": _compress_rows,
    "pointwise": _pointwise,
    "gemm": _gemm,
    "mm": _mm,
    "fused_gemm": _fused_gemm,
    "spmm": _spmm,
    "typed_spmm": _typed_spmm,
    "spmm_cmp": _spmm_cmp,
    "sddmm": _sddmm,
    "edge_softmax": _edge_softmax,
    "gat": _gat,
    "attend": _attend,
    "project_rows": _project_rows,
    "gather_rows": _gather_rows,
    "cross_entropy": _cross_entropy,
    "weighted_sum": _weighted_sum,
}
"""The cases of each family of ops by name."""


def check(place: Place, until: float, small: bool = False, poisoned: bool = True) -> Found:
    """Run all cases; a row for each op says how many there were and how far floats were off.

    Args:
        small: take sizes for the emulator and the sanitizer.
        poisoned: as :meth:`Place.running` takes it. For initcheck, which else sees memory that the poison has written.
    """
    found, rows = Found(), {}
    inputs = Inputs(small or place.dry)
    for cases in FAMILIES.values():
        for case in cases(inputs):
            if time.monotonic() > until:
                found.missing.append("the cases after these: no time")
                break
            if any(text.startswith(f"{case.op} ") for text in found.missing):
                continue
            row = rows.setdefault(case.op, {"op": case.op, "cases": 0, "bit-equal": 0, "largest error": 0.0})
            error = attempt(found, f"{case.op} {case.label}", lambda case=case: compare(place, case, poisoned))
            if error is not None:
                row["cases"] += 1
                row["bit-equal"] += error == 0
                row["largest error"] = max(row["largest error"], error)
    found.rows = [row for row in rows.values() if row["cases"]]
    return found


def compare(place: Place, case: Case, poisoned: bool = True) -> float:
    """How far the device is off the CPU, as a part of the largest value.

    Raises:
        AssertionError: it is further off than the case allows.
    """
    op = getattr(gqc_ops, case.op)
    with place.running(poisoned):
        got = tree_map_only(Tensor, Tensor.cpu, op(*place.to(case.arguments)))
    want = op(*case.arguments)
    pairs = list(zip(_tensors(got), _tensors(want), strict=True))
    if case.exact:
        for actual, expected in pairs:
            torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
        return 0.0
    if case.in_float64 is not None:
        doubled = tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t, case.arguments)
        pairs += zip(_tensors(got), _tensors(case.in_float64(*doubled)), strict=True)
    return max(_error(actual, expected) for actual, expected in pairs)


def _tensors(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def _error(got: Tensor, want: Tensor) -> float:
    finite = want[want.isfinite()]
    scale = max(float(finite.abs().max()), 1e-30) if finite.numel() else 1.0
    tolerance = _TOLERANCE.get(got.dtype, _TOLERANCE[FLOAT])
    got, want = got.double(), want.double()
    torch.testing.assert_close(got, want, rtol=0, atol=tolerance * scale, equal_nan=True)
    return float((got - want).nan_to_num(0.0, 0.0, 0.0).abs().max()) / scale if got.numel() else 0.0
