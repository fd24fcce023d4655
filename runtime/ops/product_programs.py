"""Products of GEMM and SPMM whose result only a pointwise program reads, so that it never is in memory.

``x0`` of the program is the product, rounded to its type and reshaped to ``size`` if that is given; ``x1``, ``x2``, ...
are ``inputs``, broadcast to its shape. A second product beside that of a GEMM is ``x1``, and ``inputs`` follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.float24 import dtype_of, is_float24, widened
from gqc.runtime.kernels import pointer
from gqc.runtime.ops import mm, qspmm, spmm
from gqc.runtime.ops.gemm import check_product, contiguous, contiguous_operands
from gqc.runtime.ops.library import define, refuse_gradient
from gqc.runtime.ops.quantize import check_float, check_quantize
from gqc.runtime.ops.second_product import SCHEMA, SecondProduct
from gqc.runtime.ops.tile_program import tile_program
from gqc.runtime.pointwise.program import parse
from gqc.runtime.relation import num_dst

ops = torch.ops.gqc


def _qgemm_pointwise(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    trans_b: bool,
    dtype: torch.dtype,
    inputs: Sequence[Tensor],
    seed: Tensor | None,
    program: str,
    size: Sequence[int] | None = None,
    *second: Any,
) -> list[Tensor]:
    product, _ = ops.qgemm(a, a_scale, b, b_scale, False, trans_b, None, dtype)
    return _run([product, *SecondProduct(*second).values(dtype)], inputs, seed, program, size)


def _quantize_qgemm_pointwise(
    x: Tensor,
    absmax: Tensor | None,
    seed: Tensor | None,
    node: int,
    bits: int,
    stochastic: bool,
    b: Tensor,
    b_scale: Tensor,
    trans_b: bool,
    dtype: torch.dtype,
    inputs: Sequence[Tensor],
    program: str,
    size: Sequence[int] | None = None,
    *second: Any,
) -> list[Tensor]:
    q, scale = ops.quantize(x, absmax, seed, node, bits, stochastic)
    return [q, scale, *ops.qgemm_pointwise(q, scale, b, b_scale, trans_b, dtype, inputs, seed, program, size, *second)]


def _qgemm_pointwise_kernel(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    trans_b: bool,
    dtype: torch.dtype,
    inputs: Sequence[Tensor],
    seed: Tensor | None,
    program: str,
    size: Sequence[int] | None = None,
    *second: Any,
) -> list[Tensor]:
    name = "qgemm_pointwise"
    if not kernels.on_gpu(a):
        refuse_gradient(name, a_scale, b_scale)
        check_float(name, dtype)
        m, n, k = check_product(name, a, b, False, trans_b)
        beside = SecondProduct(*second)
        others, _kept = beside.arguments(name, (m, n))
        tiles = tile_program(name, a, (m, n), inputs, seed, program, size, 1 + beside.exists)
        if tiles is not None and beside.fits:
            a, b, _, trans_b = contiguous_operands(a.contiguous(), b, False, trans_b)
            first = pointer(a, torch.int8), pointer(a_scale, torch.float32)
            last = pointer(b, torch.int8), pointer(b_scale, torch.float32)
            code = kernels.dtype_code(dtype)
            kernels.run(a, name, *first, *last, m, n, k, trans_b, code, *others, *tiles.arguments)
            return tiles.outputs
    return _qgemm_pointwise(a, a_scale, b, b_scale, trans_b, dtype, inputs, seed, program, size, *second)


def _quantize_qgemm_pointwise_kernel(
    x: Tensor,
    absmax: Tensor | None,
    seed: Tensor | None,
    node: int,
    bits: int,
    stochastic: bool,
    b: Tensor,
    b_scale: Tensor,
    trans_b: bool,
    dtype: torch.dtype,
    inputs: Sequence[Tensor],
    program: str,
    size: Sequence[int] | None = None,
    *second: Any,
) -> list[Tensor]:
    name = "quantize_qgemm_pointwise"
    if not kernels.on_gpu(x):
        refuse_gradient(name, b_scale)
        check_quantize(name, x, seed, bits, stochastic, most=8)
        check_float(name, dtype)
        q, scale = kernels.empty(x, x.shape, torch.int8), x.new_empty((), dtype=torch.float32)
        m, n, k = check_product(name, q, b, False, trans_b)
        beside = SecondProduct(*second)
        others, _kept = beside.arguments(name, (m, n))
        tiles = tile_program(name, x, (m, n), inputs, seed, program, size, 1 + beside.exists)
        if tiles is not None and beside.fits:
            x, (q, b, _, trans_b) = x.contiguous(), contiguous_operands(q, b, False, trans_b)
            kernels.run(
                x,
                name,
                *(
                    x.data_ptr(),
                    kernels.dtype_code(x.dtype),
                    None if absmax is None else pointer(absmax, torch.float32),
                ),
                *(node, bits, stochastic, q.data_ptr(), scale.data_ptr()),
                *(pointer(b, torch.int8), pointer(b_scale, torch.float32), m, n, k, trans_b),
                *(kernels.dtype_code(dtype), *others, *tiles.arguments),
            )
            return [q, scale, *tiles.outputs]
    return _quantize_qgemm_pointwise(
        x, absmax, seed, node, bits, stochastic, b, b_scale, trans_b, dtype, inputs, program, size, *second
    )


def _qspmm_pointwise(
    g: list[Tensor],
    op: str,
    u: Tensor | None,
    u_scale: Tensor | None,
    e: Tensor | None,
    e_scale: Tensor | None,
    dtype: torch.dtype,
    inputs: Sequence[Tensor],
    seed: Tensor | None,
    program: str,
    size: Sequence[int] | None = None,
) -> list[Tensor]:
    _refuse_int8("qspmm_pointwise", program)
    product, _ = ops.qspmm(g, op, u, u_scale, e, e_scale, dtype)
    return _run([product], inputs, seed, program, size)


def _spmm_pointwise(
    g: list[Tensor],
    op: str,
    u: Tensor | None,
    e: Tensor | None,
    inputs: Sequence[Tensor],
    seed: Tensor | None,
    program: str,
    size: Sequence[int] | None = None,
) -> list[Tensor]:
    _refuse_int8("spmm_pointwise", program)
    product = ops.spmm(g, op, u, e)
    return _run([product], inputs, seed, program, size)


def _qspmm_pointwise_kernel(
    g: list[Tensor],
    op: str,
    u: Tensor | None,
    u_scale: Tensor | None,
    e: Tensor | None,
    e_scale: Tensor | None,
    dtype: torch.dtype,
    inputs: Sequence[Tensor],
    seed: Tensor | None,
    program: str,
    size: Sequence[int] | None = None,
) -> list[Tensor]:
    name = "qspmm_pointwise"
    _refuse_int8(name, program)
    if not kernels.on_gpu(g[0]) and dtype in kernels.DTYPES:
        layout, lhs, rhs = qspmm.sum_operands(name, g, op, u, u_scale, e, e_scale, dtype)
        tiles = tile_program(name, g[0], (num_dst(g), *layout.features), inputs, seed, program, size)
        if tiles is not None:
            first = qspmm.sum_arguments(g, op, lhs, rhs)
            kernels.run(g[0], name, *first, layout, kernels.dtype_code(dtype), *tiles.arguments)
            return tiles.outputs
    return _qspmm_pointwise(g, op, u, u_scale, e, e_scale, dtype, inputs, seed, program, size)


def _spmm_pointwise_kernel(
    g: list[Tensor],
    op: str,
    u: Tensor | None,
    e: Tensor | None,
    inputs: Sequence[Tensor],
    seed: Tensor | None,
    program: str,
    size: Sequence[int] | None = None,
) -> list[Tensor]:
    name = "spmm_pointwise"
    _refuse_int8(name, program)
    lhs, rhs, dtype = spmm.float_operands(name, g, op, u, e)
    if not kernels.on_gpu(g[0]) and dtype in kernels.DTYPES:
        refuse_gradient(name, lhs, rhs)
        known, lhs, rhs = spmm.known_operands(op, lhs, rhs)
        layout, first = spmm.sum_arguments(g, known, lhs, rhs)
        tiles = tile_program(name, g[0], (num_dst(g), *layout.features), inputs, seed, program, size)
        if tiles is not None:
            kernels.run(g[0], name, *first, layout, kernels.dtype_code(dtype), *tiles.arguments)
            return tiles.outputs
    return _spmm_pointwise(g, op, u, e, inputs, seed, program, size)


def _mm_pointwise(
    a: Tensor,
    b: Tensor,
    trans_b: bool,
    inputs: Sequence[Tensor],
    seed: Tensor | None,
    program: str,
    size: Sequence[int] | None = None,
    a2: Tensor | None = None,
    b2: Tensor | None = None,
    trans_b2: bool = False,
    precision: str = "fp32",
) -> list[Tensor]:
    products = [ops.mm(a, b, False, trans_b, None, precision)]
    if a2 is not None and b2 is not None:
        products.append(ops.mm(a2, b2, False, trans_b2, None, precision))
    return _run(products, inputs, seed, program, size)


def _mm_pointwise_kernel(
    a: Tensor,
    b: Tensor,
    trans_b: bool,
    inputs: Sequence[Tensor],
    seed: Tensor | None,
    program: str,
    size: Sequence[int] | None = None,
    a2: Tensor | None = None,
    b2: Tensor | None = None,
    trans_b2: bool = False,
    precision: str = "fp32",
) -> list[Tensor]:
    name = "mm_pointwise"
    bf16x3 = mm.in_bf16x3(name, a, precision)
    if not kernels.on_gpu(a) and all(x is None or (dtype_of(x) is torch.float32 and x.numel()) for x in (a, a2)):
        refuse_gradient(name, a, b, a2, b2)
        *shape, k = mm.check_product(name, a, b, False, trans_b)
        second = mm.second_arguments(name, shape, a2, b2, trans_b2)
        tiles = tile_program(name, a, shape, inputs, seed, program, size, 1 + (a2 is not None))
        if tiles is not None:
            a, (b, trans_b) = mm.rows_of(a), contiguous(widened(b), trans_b)
            first = a.data_ptr(), is_float24(a), pointer(b, torch.float32), *shape, k, trans_b
            kernels.run(a, name, *first, *second.arguments, bf16x3, *tiles.arguments)
            return tiles.outputs
    return _mm_pointwise(a, b, trans_b, inputs, seed, program, size, a2, b2, trans_b2, precision)


def _run(
    products: list[Tensor],
    inputs: Sequence[Tensor],
    seed: Tensor | None,
    program: str,
    size: Sequence[int] | None,
) -> list[Tensor]:
    computed = products if size is None else [product.reshape(size) for product in products]
    return ops.pointwise([*computed, *inputs], seed, program, computed[0].shape)


def _refuse_int8(name: str, program: str) -> None:
    if any(output.form == "int8" for output in parse(program).outputs):
        raise KernelError(
            f"gqc.{name}: an int8 result needs its scale before it is written, and all rows would be gathered twice: "
            "let the program give absmax and bfloat16, and quantize that"
        )


define(
    "qgemm_pointwise(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, bool trans_b, ScalarType dtype, "
    f"Tensor[] inputs, Tensor? seed, str program, int[]? size=None, {SCHEMA}) -> Tensor[]",
    kernel=_qgemm_pointwise_kernel,
    fake=_qgemm_pointwise,
)
define(
    "quantize_qgemm_pointwise(Tensor x, Tensor? absmax, Tensor? seed, int node, int bits, bool stochastic, Tensor b, "
    "Tensor b_scale, bool trans_b, ScalarType dtype, Tensor[] inputs, str program, int[]? size=None, "
    f"{SCHEMA}) -> Tensor[]",
    kernel=_quantize_qgemm_pointwise_kernel,
    fake=_quantize_qgemm_pointwise,
)
define(
    "qspmm_pointwise(Tensor[] g, str op, Tensor? u, Tensor? u_scale, Tensor? e, Tensor? e_scale, ScalarType dtype, "
    "Tensor[] inputs, Tensor? seed, str program, int[]? size=None) -> Tensor[]",
    kernel=_qspmm_pointwise_kernel,
    fake=_qspmm_pointwise,
)
define(
    "spmm_pointwise(Tensor[] g, str op, Tensor? u, Tensor? e, Tensor[] inputs, Tensor? seed, str program, "
    "int[]? size=None) -> Tensor[]",
    kernel=_spmm_pointwise_kernel,
    fake=_spmm_pointwise,
)
define(
    "mm_pointwise(Tensor a, Tensor b, bool trans_b, Tensor[] inputs, Tensor? seed, str program, int[]? size=None, "
    "Tensor? a2=None, Tensor? b2=None, bool trans_b2=False, str precision='fp32') -> Tensor[]",
    kernel=_mm_pointwise_kernel,
    fake=_mm_pointwise,
)
