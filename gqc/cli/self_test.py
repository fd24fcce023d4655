"""Runs every family of ops on a small random input and compares it with its reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import gqc.runtime.ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.reference import int4
from gqc.runtime.reference.attend import attend, attend_bwd
from gqc.runtime.reference.compress_rows import compress_rows, decompress_rows
from gqc.runtime.reference.cross_entropy import cross_entropy, cross_entropy_backward
from gqc.runtime.reference.dropout import dropout, dropout_backward
from gqc.runtime.reference.edge_softmax import edge_softmax, edge_softmax_bwd
from gqc.runtime.reference.fused_gemm import qgemm_int8, quantize_qgemm, relu_backward
from gqc.runtime.reference.gat import gat, gat_bwd
from gqc.runtime.reference.gemm import qgemm
from gqc.runtime.reference.pack_bits import pack_bits, unpack_bits
from gqc.runtime.reference.pointwise import pointwise
from gqc.runtime.reference.project_rows import project_rows, unproject_rows
from gqc.runtime.reference.qsddmm import qsddmm
from gqc.runtime.reference.qspmm import qspmm, qspmm_cmp
from gqc.runtime.reference.quantize import absmax, dequantize, quantize
from gqc.runtime.reference.sddmm import sddmm
from gqc.runtime.reference.segment_mm import gather_mm, segment_mm
from gqc.runtime.reference.spmm import spmm
from gqc.runtime.reference.spmm_cmp import spmm_cmp, spmm_cmp_bwd
from gqc.runtime.reference.typed_spmm import qtyped_spmm, qtyped_spmm_bwd_b, typed_spmm, typed_spmm_bwd_b
from gqc.runtime.relation import from_edges

_SOURCES, _TARGETS, _EDGES, _WIDTH = 37, 29, 211, 24
Pairs = Sequence[tuple[Tensor, Tensor]]
"""What an op computes and what its reference does."""


class _Ops:
    """``torch.ops.gqc`` for CPU tensors, computed on a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            moved = tree_map_only(Tensor, lambda t: t.to(self._device), arguments)
            return tree_map_only(Tensor, Tensor.cpu, getattr(torch.ops.gqc, name)(*moved))

        return call


class _Inputs:
    """A random graph and features on it."""

    def __init__(self, device: torch.device) -> None:
        self.ops = _Ops(device)
        generator = torch.Generator().manual_seed(0)
        self.random = lambda *size: torch.randn(*size, generator=generator)
        src = torch.randint(_SOURCES, (_EDGES,), generator=generator)
        dst = torch.randint(_TARGETS, (_EDGES,), generator=generator)
        self.g = from_edges(src, dst, _SOURCES, _TARGETS)
        self.u, self.v = self.random(_SOURCES, _WIDTH), self.random(_TARGETS, _WIDTH)
        self.e = self.random(_EDGES, _WIDTH)
        self.seed = torch.tensor([1234567, 3])

    def int8(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return quantize(x, None, self.seed, 0, 8, False)


def _spmm(x: _Inputs) -> Pairs:
    return [(x.ops.spmm(x.g, op, x.u, x.e), spmm(x.g, op, x.u, x.e)) for op in ("copy_lhs", "mul", "add")]


def _spmm_cmp(x: _Inputs) -> Pairs:
    pairs = []
    for reduce in ("max", "min"):
        out, arg = x.ops.spmm_cmp(x.g, "mul", reduce, x.u, x.e)
        expected, where = spmm_cmp(x.g, "mul", reduce, x.u, x.e)
        back = x.ops.spmm_cmp_bwd(x.g, where, x.v), spmm_cmp_bwd(x.g, where, x.v)
        pairs += [(out, expected), (arg, where), back]
    return pairs


def _sddmm(x: _Inputs) -> Pairs:
    sides = (x.u, x.v, "u", "v")
    return [(x.ops.sddmm(x.g, op, *sides), sddmm(x.g, op, *sides)) for op in ("add", "mul", "dot")]


def _edge_softmax(x: _Inputs) -> Pairs:
    out = edge_softmax(x.g, x.e)
    grad = x.random(*out.shape)
    backward = x.ops.edge_softmax_bwd(x.g, out, grad), edge_softmax_bwd(x.g, out, grad)
    return [(x.ops.edge_softmax(x.g, x.e), out), backward]


def _gat(x: _Inputs) -> Pairs:
    of_sources, of_targets = (y.view(-1, 3, _WIDTH // 3) for y in (x.u, x.v))
    (u, u_scale), (grad, grad_scale) = x.int8(of_sources), x.int8(of_targets)
    el, er = of_sources.sum(-1), of_targets.sum(-1)
    options = (0.2, 0.4, x.seed, 9, torch.float32)
    out = gat(x.g, el, er, u, u_scale, *options)
    backward = (x.g, el, er, *out[2:], u, u_scale, grad, grad_scale, *options)
    return [
        *zip(x.ops.gat(x.g, el, er, u, u_scale, *options), out, strict=True),
        *zip(x.ops.gat_bwd(*backward), gat_bwd(*backward), strict=True),
    ]


def _attend(x: _Inputs) -> Pairs:
    of_sources, of_targets = (y.view(-1, 3, _WIDTH // 3) for y in (x.u, x.v))
    features = (*x.int8(of_sources), *x.int8(of_targets))
    options = (0.4, x.seed, 9, torch.float32)
    pairs: Pairs = []
    for a in (None, x.random(3, _WIDTH // 3)):
        score = (of_sources, of_targets, a, 0.2)
        forward = (x.g, *score, *features[:2], *options)
        out = attend(*forward)
        backward = (x.g, *score, *out[2:], *features, *options)
        pairs += zip(x.ops.attend(*forward), out, strict=True)
        pairs += zip(x.ops.attend_bwd(*backward), attend_bwd(*backward), strict=True)
    return pairs


def _typed_mm(x: _Inputs) -> Pairs:
    b, index, lengths = x.random(3, _WIDTH, 10), torch.arange(_SOURCES) % 3, torch.tensor([11, 0, _SOURCES - 11])
    return [
        (x.ops.gather_mm(x.u, b, index), gather_mm(x.u, b, index)),
        (x.ops.segment_mm(x.u, b, lengths), segment_mm(x.u, b, lengths)),
    ]


def _typed_spmm(x: _Inputs) -> Pairs:
    b, types = x.random(3, _WIDTH, 10), torch.arange(_EDGES) % 3
    u, u_scale = x.int8(x.u)
    weights = x.random(_EDGES, 1)
    floats = (x.g, x.u, b, types, weights), (x.g, x.u, x.v, types, 3, weights)
    product = (x.g, u, u_scale, *x.int8(b), types, None, torch.float32)
    gradient = (x.g, u, u_scale, *x.int8(x.v), types, 3, torch.float32)
    return [
        (x.ops.typed_spmm(*floats[0]), typed_spmm(*floats[0])),
        (x.ops.typed_spmm_bwd_b(*floats[1]), typed_spmm_bwd_b(*floats[1])),
        *zip(x.ops.qtyped_spmm(*product), qtyped_spmm(*product), strict=True),
        *zip(x.ops.qtyped_spmm_bwd_b(*gradient), qtyped_spmm_bwd_b(*gradient), strict=True),
    ]


def _quantize(x: _Inputs) -> Pairs:
    pairs = [(x.ops.absmax(x.u), absmax(x.u))]
    for stochastic in (True, False):
        arguments = (x.u, None, x.seed, 5, 8, stochastic)
        pairs += zip(x.ops.quantize(*arguments), quantize(*arguments), strict=True)
    q, scale = x.int8(x.u)
    return [*pairs, (x.ops.dequantize(q, scale, torch.float32), dequantize(q, scale, torch.float32))]


def _qgemm(x: _Inputs) -> Pairs:
    pairs: list[tuple[Tensor, Tensor]] = []
    for trans_a, trans_b in ((False, False), (False, True), (True, False)):
        a = x.random(_WIDTH, 33) if trans_a else x.random(33, _WIDTH)
        b = x.random(17, _WIDTH) if trans_b else x.random(_WIDTH, 17)
        arguments = (*x.int8(a), *x.int8(b), trans_a, trans_b, None, torch.float32)
        pairs += zip(x.ops.qgemm(*arguments), qgemm(*arguments), strict=True)
    return pairs


def _fused_gemm(x: _Inputs) -> Pairs:
    a, (b, b_scale), bias, rows = x.random(33, _WIDTH), x.int8(x.random(_WIDTH, 17)), x.random(17), x.random(33)
    after = (bias, rows, True)
    arguments = (a, None, x.seed, 3, 8, True, b, b_scale, False, *after, torch.float32)
    out, absmax, q, scale, positive = quantize_qgemm(*arguments)
    products = (q, scale, b, b_scale, False, False, *after, x.seed, 4, 8, True, torch.float32)
    return [
        *zip(x.ops.quantize_qgemm(*arguments), (out, absmax, q, scale, positive), strict=True),
        *zip(x.ops.qgemm_int8(*products), qgemm_int8(*products), strict=True),
        (x.ops.relu_backward(out, positive), relu_backward(out, positive)),
    ]


def _qspmm(x: _Inputs) -> Pairs:
    (u, u_scale), (e, e_scale) = x.int8(x.u), x.int8(x.e)
    arguments = (x.g, "mul", u, u_scale, e, e_scale, torch.float32)
    compared = (x.g, "max", u, u_scale, torch.float32)
    return [
        *zip(x.ops.qspmm(*arguments), qspmm(*arguments), strict=True),
        *zip(x.ops.qspmm_cmp(*compared), qspmm_cmp(*compared), strict=True),
    ]


def _qsddmm(x: _Inputs) -> Pairs:
    (u, u_scale), (v, v_scale) = x.int8(x.u), x.int8(x.v)
    sides = (u, u_scale, v, v_scale, "u", "v", torch.float32)
    return [(x.ops.qsddmm(x.g, op, *sides), qsddmm(x.g, op, *sides)) for op in ("dot", "add")]


def _int4(x: _Inputs) -> Pairs:
    arguments = (x.u, None, x.seed, 5, 4, True)
    pairs = list(zip(x.ops.quantize_int4(*arguments), int4.quantize_int4(*arguments), strict=True))
    shape = list(x.u.shape[1:])
    (_, u), (_, scale) = pairs
    v, v_scale = int4.quantize_int4(x.v, None, x.seed, 6, 4, True)
    product = (u, scale, x.u[0].numel(), u, scale, x.u[0].numel(), False, True, None, torch.float32)
    sides = (u, scale, shape, v, v_scale, list(x.v.shape[1:]), "u", "v", torch.float32)
    return [
        *pairs,
        (x.ops.unpack_int4(u, shape), int4.unpack_int4(u, shape)),
        *zip(x.ops.qgemm_int4(*product), int4.qgemm_int4(*product), strict=True),
        (x.ops.qsddmm_int4(x.g, "dot", *sides), int4.qsddmm_int4(x.g, "dot", *sides)),
        (
            x.ops.qspmm_int4(x.g, "copy_lhs", u, scale, shape, None, torch.float32)[0],
            int4.qspmm_int4(x.g, "copy_lhs", u, scale, shape, None, torch.float32)[0],
        ),
    ]


def _dropout(x: _Inputs) -> Pairs:
    out, mask = x.ops.dropout(x.u, 0.4, x.seed, 9)
    expected, kept = dropout(x.u, 0.4, x.seed, 9)
    backward = x.ops.dropout_backward(x.u, kept, 0.4), dropout_backward(x.u, kept, 0.4)
    return [(out, expected), (mask, kept), backward]


def _cross_entropy(x: _Inputs) -> Pairs:
    rows, labels = torch.tensor([3, 0, 30, 3]), torch.tensor([1, _WIDTH - 1, 5, -100])
    options = ("mean", -100)
    expected, counted = cross_entropy(x.u, labels, rows, *options)
    loss, number = x.ops.cross_entropy(x.u, labels, rows, *options)
    back = torch.tensor(2.0), x.u, labels, rows, counted, *options
    return [(loss, expected), (number, counted), (x.ops.cross_entropy_backward(*back), cross_entropy_backward(*back))]


def _compress_rows(x: _Inputs) -> Pairs:
    compressed = compress_rows(x.u, 2, x.seed, 4, torch.float32)
    got = x.ops.compress_rows(x.u, 2, x.seed, 4, torch.float32)
    back = (*compressed, 2, _WIDTH, torch.float32)
    return [*zip(got, compressed, strict=True), (x.ops.decompress_rows(*back), decompress_rows(*back))]


def _project_rows(x: _Inputs) -> Pairs:
    projected = project_rows(x.u, 5, x.seed, 4)
    back = projected, _WIDTH, x.seed, 4
    return [(x.ops.project_rows(x.u, 5, x.seed, 4), projected), (x.ops.unproject_rows(*back), unproject_rows(*back))]


def _pack_bits(x: _Inputs) -> Pairs:
    pairs = []
    for bits in (1, 2, 4):
        values = (x.u.abs() * 7).to(torch.uint8)
        packed = pack_bits(values, bits)
        unpacked = x.ops.unpack_bits(packed, bits, _WIDTH), unpack_bits(packed, bits, _WIDTH)
        pairs += [(x.ops.pack_bits(values, bits), packed), unpacked]
    return pairs


def _pointwise(x: _Inputs) -> Pairs:
    program = "v0 = mul(x0, x1); v1 = keep(0.4, 9); v2 = drop(v0, v1, 0.4); v3 = gelu(v2); return float32(v3), bits(v1)"
    arguments = ([x.u, x.u[:, :1].contiguous()], x.seed, f"{program}, float32(sum(v3, 0)), int8(v0, 3, 8, 1)")
    return list(zip(x.ops.pointwise(*arguments), pointwise(*arguments), strict=True))


FAMILIES: dict[str, Callable[[_Inputs], Pairs]] = {
    "spmm": _spmm,
    "spmm_cmp": _spmm_cmp,
    "sddmm": _sddmm,
    "edge_softmax": _edge_softmax,
    "gat": _gat,
    "attend": _attend,
    "segment_mm": _typed_mm,
    "typed_spmm": _typed_spmm,
    "quantize": _quantize,
    "qgemm": _qgemm,
    "fused_gemm": _fused_gemm,
    "qspmm": _qspmm,
    "qsddmm": _qsddmm,
    "int4": _int4,
    "dropout": _dropout,
    "cross_entropy": _cross_entropy,
    "pack_bits": _pack_bits,
    "compress_rows": _compress_rows,
    "project_rows": _project_rows,
    "pointwise": _pointwise,
}
"""Every family of ops by name."""


def run_family(name: str, device: str) -> str | None:
    """What is wrong with a family of ops on a device, ``None`` if nothing."""
    try:
        for got, expected in FAMILIES[name](_Inputs(torch.device(device))):
            if got.dtype != expected.dtype or got.shape != expected.shape:
                return f"{got.dtype} {list(got.shape)} instead of {expected.dtype} {list(expected.shape)}"
            if not torch.allclose(got.double(), expected.double(), rtol=1e-5, atol=1e-5):
                return f"differs from its reference by up to {(got.double() - expected.double()).abs().max():.3g}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
