"""What a quantized op computes if its operands are not rounded: the same call on the float values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gqc.passes.primitive import ops
from gqc.runtime.ops.second_product import SecondProduct
from gqc.runtime.reference import pointwise

Values = Tensor
"""Float values in the place of int8 ones; their scale, the argument that follows, has no meaning then."""


def _gemm(
    a: Values, _: Any, b: Values, __: Any, trans_a: bool, trans_b: bool, bias: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(a.dtype, b.dtype)  # int8 copies of bfloat16 and of float32 multiply one another
    out = (a.t() if trans_a else a).to(wide) @ (b.t() if trans_b else b).to(wide)
    return _with_absmax(out if bias is None else out + bias, dtype)


def _gemm_epilogue(
    a: Values,
    _: Any,
    b: Values,
    __: Any,
    trans_a: bool,
    trans_b: bool,
    bias: Tensor | None,
    row_scale: Tensor | None,
    relu: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    out, _ = _gemm(a, None, b, None, trans_a, trans_b, bias, torch.float32)
    out = out if row_scale is None else out * row_scale[:, None]
    out = out.relu() if relu else out
    return (*_with_absmax(out, dtype), _positive(out) if relu else out.new_empty((0, 0), dtype=torch.uint8))


def _positive(out: Tensor) -> Tensor:
    """One bit an element, as ``relu_backward`` reads them."""
    bits = torch.nn.functional.pad(~(out <= 0), (0, -out.shape[1] % 8)).view(out.shape[0], -1, 8)
    return (bits.to(torch.int32) << torch.arange(8, device=out.device)).sum(2).to(torch.uint8)


def _quantize_gemm(
    x: Values, _: Any, __: Any, node: int, bits: int, stochastic: bool, b: Values, b_scale: Any, *options: Any
) -> tuple[Tensor, ...]:
    out, absmax, positive = _gemm_epilogue(x, None, b, b_scale, False, *options)
    return out, absmax, x, absmax.new_ones(()), positive


def _spmm(
    g: list[Tensor], op: str, u: Values | None, _: Any, e: Values | None, __: Any, dtype: torch.dtype, *rows: Any
) -> tuple[Tensor, Tensor]:
    return _with_absmax(ops.spmm(g, op, u, e, *rows), dtype)


def _spmm_cmp(g: list[Tensor], reduce: str, u: Values, _: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    out, arg = ops.spmm_cmp(g, "copy_lhs", reduce, u, None)
    return out.to(dtype), arg


def _sddmm(
    g: list[Tensor],
    op: str,
    lhs: Values,
    _: Any,
    rhs: Values,
    __: Any,
    lhs_target: str,
    rhs_target: str,
    dtype: torch.dtype,
) -> Tensor:
    return ops.sddmm(g, op, lhs, rhs, lhs_target, rhs_target).to(dtype)


def _typed_spmm(
    g: list[Tensor], u: Values, _: Any, b: Values, __: Any, types: Tensor, e: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return _with_absmax(ops.typed_spmm(g, u, b, types, e), dtype)


def _typed_spmm_bwd_b(
    g: list[Tensor], u: Values, _: Any, grad: Values, __: Any, types: Tensor, num: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return _with_absmax(ops.typed_spmm_bwd_b(g, u, grad, types, num, None), dtype)


def _gat(g: list[Tensor], el: Tensor, er: Tensor, u: Values, _: Any, *options: Any) -> Any:
    return ops.gat(g, el, er, u, None, *options)


def _gat_bwd(
    g: list[Tensor],
    el: Tensor,
    er: Tensor,
    max: Tensor,
    sum: Tensor,
    u: Values,
    _: Any,
    grad: Values,
    __: Any,
    *options: Any,
) -> Any:
    return ops.gat_bwd(g, el, er, max, sum, u, None, grad, None, *options)


def _attend(
    g: list[Tensor], k: Tensor, q: Tensor, a: Tensor | None, factor: float, u: Values, _: Any, *options: Any
) -> Any:
    return ops.attend(g, k, q, a, factor, u, None, *options)


def _attend_bwd(
    g: list[Tensor],
    k: Tensor,
    q: Tensor,
    a: Tensor | None,
    factor: float,
    max: Tensor,
    sum: Tensor,
    u: Values,
    _: Any,
    grad: Values,
    __: Any,
    *options: Any,
) -> Any:
    return ops.attend_bwd(g, k, q, a, factor, max, sum, u, None, grad, None, *options)


def _pointwise(inputs: list[Tensor], seed: Tensor | None, program: str, size: list[int] | None = None) -> list[Tensor]:
    return pointwise.pointwise(inputs, seed, program, size, _UNROUNDED)


def _not_quantized(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x, x.new_ones(())


_UNROUNDED = pointwise.Steps(quantize=_not_quantized)


def _dequantize(x: Values, _: Any, dtype: torch.dtype) -> Tensor:
    return x.to(dtype)


def _with_absmax(out: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return out.to(dtype), out.abs().amax().float() if out.numel() else out.new_zeros((), dtype=torch.float32)


def _compress_rows(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return x, x.new_zeros(0), x.new_zeros(0)


def _decompress_rows(
    packed: Values, _: Tensor, __: Tensor, bits: int, width: int, dtype: torch.dtype, *___: Any
) -> Any:
    return packed.to(dtype)


def _not_projected(x: Tensor, *_: Any) -> Tensor:
    return x


def _gemm_int4(a: Values, a_scale: Any, _: Any, b: Values, b_scale: Any, __: Any, *options: Any) -> Any:
    return _gemm(_matrix(a), a_scale, _matrix(b), b_scale, *options)


def _matrix(x: Values) -> Values:
    return x.reshape(x.shape[0], -1)


def _spmm_int4(
    g: list[Tensor], op: str, u: Values, _: Any, features: list[int], e: Tensor | None, dtype: torch.dtype, *rows: Any
) -> tuple[Tensor, Tensor]:
    return _spmm(g, op, _unpack(u, features), None, e, None, dtype, *rows)


def _sddmm_int4(
    g: list[Tensor],
    op: str,
    lhs: Values,
    _: Any,
    lhs_features: list[int] | None,
    rhs: Values,
    __: Any,
    rhs_features: list[int] | None,
    *targets_and_dtype: Any,
) -> Tensor:
    lhs = lhs if lhs_features is None else _unpack(lhs, lhs_features)
    rhs = rhs if rhs_features is None else _unpack(rhs, rhs_features)
    return _sddmm(g, op, lhs, None, rhs, None, *targets_and_dtype)


def _unpack(x: Values, features: list[int]) -> Values:
    return x.reshape(x.shape[0], *features)


class AroundProduct(NamedTuple):
    """An op that computes products of one shape and, without giving them, results from them.

    Attributes:
        products: from the arguments of the op.
        exact: the same with float values in the place of int8 ones.
        results: what the op gives, from the products and its arguments; int8 results are not rounded.
    """

    products: Callable[..., Sequence[Tensor]]
    exact: Callable[..., Sequence[Tensor]]
    results: Callable[..., Sequence[Tensor]]

    def exact_form(self, *arguments: Any) -> Sequence[Tensor]:
        """An entry of :data:`EXACT_FORMS`."""
        return self.results(self.exact(*arguments), *arguments)


def _of_program(
    products: Sequence[Tensor], inputs: list[Tensor], seed: Tensor | None, program: str, size: list[int] | None = None
) -> list[Tensor]:
    computed = [x if size is None else x.reshape(size) for x in products]
    return _pointwise([*computed, *inputs], seed, program, list(computed[0].shape))


def _int8_of_gemm(products: Sequence[Tensor], *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    (product,), relu = products, arguments[8]
    positive = _positive(product) if relu else product.new_empty((0, 0), dtype=torch.uint8)
    return product, product.new_ones((), dtype=torch.float32), positive


def _gemms_of(
    first: tuple[Tensor, Tensor, Tensor, Tensor, bool, torch.dtype], second: Sequence[Any]
) -> Sequence[Tensor]:
    *operands, trans_b, dtype = first
    return ops.qgemm(*operands, False, trans_b, None, dtype)[0], *SecondProduct(*second).values(dtype)


def _exact_gemms_of(first: tuple[Values, Any, Values, Any, bool, torch.dtype], second: Sequence[Any]) -> list[Tensor]:
    *operands, trans_b, dtype = first
    product, beside = _gemm(*operands, False, trans_b, None, dtype)[0], SecondProduct(*second)
    if not beside.exists:
        return [product]
    return [product, _gemm(*beside[:4], False, beside.trans_b, beside.bias, dtype)[0]]


_AROUND_GEMM = AroundProduct(
    lambda *arguments: _gemms_of(arguments[:6], arguments[10:]),
    lambda *arguments: _exact_gemms_of(arguments[:6], arguments[10:]),
    lambda products, *arguments: _of_program(products, *arguments[6:10]),
)
_QUANTIZE_AROUND_GEMM = AroundProduct(
    lambda *arguments: _gemms_of((*ops.quantize(*arguments[:6]), *arguments[6:10]), arguments[13:]),
    lambda *arguments: _exact_gemms_of((arguments[0], None, *arguments[6:10]), arguments[13:]),
    lambda products, x, _, seed, *rest: [x, x.new_ones(()), *_of_program(products, rest[7], seed, *rest[8:10])],
)


def _mms_of(a: Tensor, b: Tensor, trans_b: bool, *arguments: Any) -> list[Tensor]:
    *second, trans_b2, precision = (*arguments[4:], *(None, None, False, "fp32")[len(arguments) - 4 :])
    product = ops.mm(a, b, False, trans_b, None, precision)
    return [product] if second[0] is None else [product, ops.mm(*second, False, trans_b2, None, precision)]


_AROUND_MM = AroundProduct(_mms_of, _mms_of, lambda products, *arguments: _of_program(products, *arguments[3:7]))
_AROUND_QSPMM = AroundProduct(
    lambda *arguments: ops.qspmm(*arguments[:7])[:1],
    lambda g, op, u, _, e, __, dtype, *rest: [ops.spmm(g, op, u, e).to(dtype)],
    lambda products, *arguments: _of_program(products, *arguments[7:]),
)
_AROUND_SPMM = AroundProduct(
    lambda *arguments: [ops.spmm(*arguments[:4])],
    lambda *arguments: [ops.spmm(*arguments[:4])],
    lambda products, *arguments: _of_program(products, *arguments[4:]),
)

AROUND_PRODUCT: dict[Callable[..., Any], AroundProduct] = {
    # Without the four arguments of rounding, which stand before the dtype.
    ops.qgemm_int8.default: AroundProduct(
        lambda *arguments: ops.qgemm_epilogue(*arguments[:-5], arguments[-1])[:1],
        lambda *arguments: _gemm_epilogue(*arguments[:-5], arguments[-1])[:1],
        _int8_of_gemm,
    ),
    ops.mm_pointwise.default: _AROUND_MM,
    ops.qgemm_pointwise.default: _AROUND_GEMM,
    ops.quantize_qgemm_pointwise.default: _QUANTIZE_AROUND_GEMM,
    ops.qspmm_pointwise.default: _AROUND_QSPMM,
    ops.spmm_pointwise.default: _AROUND_SPMM,
}
"""By op."""

COMPRESSIONS = (ops.compress_rows.default, ops.project_rows.default)
"""Ops that round a float tensor to what is saved of it."""

EXACT_FORMS: dict[Callable[..., Any], Callable[..., Any]] = {
    ops.qgemm.default: _gemm,
    ops.qgemm_epilogue.default: _gemm_epilogue,
    ops.quantize_qgemm.default: _quantize_gemm,
    ops.qspmm.default: _spmm,
    ops.qspmm_cmp.default: _spmm_cmp,
    ops.qsddmm.default: _sddmm,
    ops.qtyped_spmm.default: _typed_spmm,
    ops.qtyped_spmm_bwd_b.default: _typed_spmm_bwd_b,
    ops.gat.default: _gat,
    ops.gat_bwd.default: _gat_bwd,
    ops.attend.default: _attend,
    ops.attend_bwd.default: _attend_bwd,
    ops.dequantize.default: _dequantize,
    ops.pointwise.default: _pointwise,
    **{op: around.exact_form for op, around in AROUND_PRODUCT.items()},
    ops.qgemm_int4.default: _gemm_int4,
    ops.qspmm_int4.default: _spmm_int4,
    ops.qsddmm_int4.default: _sddmm_int4,
    ops.unpack_int4.default: _unpack,
    ops.compress_rows.default: _compress_rows,
    ops.decompress_rows.default: _decompress_rows,
    ops.project_rows.default: _not_projected,
    ops.unproject_rows.default: _not_projected,
}
"""By quantized op; each function takes the op's arguments with float values in the place of int8 ones."""
