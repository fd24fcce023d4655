"""Products of quantized matrices together with the steps around them, so that no float matrix lies between.

Each gives what the chain of single ops gives, bit for bit: ``quantize`` before a product (Tango, SC'23, section 3.2:
quantize while the GEMM reads), bias, row scale and ReLU after it, ``quantize`` of its result. In the chain each step is
rounded to float32, and to ``dtype`` at last.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.kernels import dtype_code, pointer
from gqc.runtime.ops.gemm import check_product, contiguous_operands, product, product_sizes
from gqc.runtime.ops.graph_arguments import address
from gqc.runtime.ops.library import define, refuse_gradient
from gqc.runtime.ops.quantize import check_float, check_quantize


@dataclass
class _Epilogue:
    """What follows the sums of a product of ``m`` rows and ``n`` columns."""

    bias: Tensor | None
    row_scale: Tensor | None
    relu: bool
    dtype: torch.dtype
    positive: Tensor

    @classmethod
    def of(
        cls,
        op: str,
        on: Tensor,
        sizes: tuple[int, int],
        bias: Tensor | None,
        row_scale: Tensor | None,
        relu: bool,
        dtype: torch.dtype,
    ) -> _Epilogue:
        refuse_gradient(op, bias, row_scale)
        check_float(op, dtype)
        m, n = sizes
        for name, vector, size in (("bias", bias, n), ("row_scale", row_scale, m)):
            if vector is not None and vector.shape != (size,):
                raise KernelError(f"gqc.{op}: {name} has shape {tuple(vector.shape)}; the product needs ({size},)")
        bias, row_scale = (None if x is None else x.float().contiguous() for x in (bias, row_scale))
        return cls(bias, row_scale, relu, dtype, kernels.empty(on, _positive_shape(m, n, relu), torch.uint8))

    def first_arguments(self) -> tuple[int | None, int | None, bool]:
        return address(self.bias), address(self.row_scale), self.relu

    def positive_address(self) -> int | None:
        return self.positive.data_ptr() if self.relu else None


def _positive_shape(m: int, n: int, relu: bool) -> tuple[int, int]:
    return (m, (n + 7) // 8) if relu else (0, 0)


def _qgemm_epilogue(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    trans_a: bool,
    trans_b: bool,
    bias: Tensor | None,
    row_scale: Tensor | None,
    relu: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    refuse_gradient("qgemm_epilogue", a_scale, b_scale)
    m, n, k = check_product("qgemm_epilogue", a, b, trans_a, trans_b)
    epilogue = _Epilogue.of("qgemm_epilogue", a, (m, n), bias, row_scale, relu, dtype)
    a, b, trans_a, trans_b = contiguous_operands(a, b, trans_a, trans_b)
    positive = epilogue.positive if relu else None
    matrices = (a, a_scale, b, b_scale, (m, n, k), trans_a, trans_b)
    out, absmax = product(*matrices, epilogue.bias, dtype, epilogue.row_scale, positive)
    return out, absmax, epilogue.positive


def _qgemm_epilogue_fake(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    trans_a: bool,
    trans_b: bool,
    bias: Tensor | None,
    row_scale: Tensor | None,
    relu: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    m, n, _ = product_sizes("qgemm_epilogue", a, b, trans_a, trans_b)
    positive = a.new_empty(_positive_shape(m, n, relu), dtype=torch.uint8)
    return a.new_empty((m, n), dtype=dtype), a.new_empty((), dtype=torch.float32), positive


def _quantize_qgemm(
    x: Tensor,
    absmax: Tensor | None,
    seed: Tensor | None,
    node: int,
    bits: int,
    stochastic: bool,
    b: Tensor,
    b_scale: Tensor,
    trans_b: bool,
    bias: Tensor | None,
    row_scale: Tensor | None,
    relu: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    refuse_gradient("quantize_qgemm", b_scale)
    check_quantize("quantize_qgemm", x, seed, bits, stochastic, most=8)
    q = kernels.empty(x, x.shape, torch.int8)
    m, n, k = check_product("quantize_qgemm", q, b, False, trans_b)
    epilogue = _Epilogue.of("quantize_qgemm", x, (m, n), bias, row_scale, relu, dtype)
    x = x.contiguous()
    _, b, _, trans_b = contiguous_operands(q, b, False, trans_b)
    scale = x.new_empty((), dtype=torch.float32)
    out, out_absmax = kernels.empty(x, (m, n), dtype), kernels.new_absmax(x)
    kernels.run(
        x,
        "quantize_qgemm",
        *(x.data_ptr(), dtype_code(x.dtype), None if absmax is None else pointer(absmax, torch.float32)),
        *(None if seed is None else pointer(seed, torch.int64), node, bits, stochastic, q.data_ptr(), scale.data_ptr()),
        *(pointer(b, torch.int8), pointer(b_scale, torch.float32), m, n, k, trans_b, *epilogue.first_arguments()),
        *(dtype_code(dtype), out.data_ptr(), out_absmax.data_ptr(), epilogue.positive_address()),
    )
    return out, out_absmax, q, scale, epilogue.positive


def _quantize_qgemm_fake(
    x: Tensor,
    absmax: Tensor | None,
    seed: Tensor | None,
    node: int,
    bits: int,
    stochastic: bool,
    b: Tensor,
    b_scale: Tensor,
    trans_b: bool,
    bias: Tensor | None,
    row_scale: Tensor | None,
    relu: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    q, scale = x.new_empty(x.shape, dtype=torch.int8), x.new_empty((), dtype=torch.float32)
    out, out_absmax, positive = _qgemm_epilogue_fake(q, scale, b, b_scale, False, trans_b, bias, row_scale, relu, dtype)
    return out, out_absmax, q, scale, positive


def _qgemm_int8(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    trans_a: bool,
    trans_b: bool,
    bias: Tensor | None,
    row_scale: Tensor | None,
    relu: bool,
    seed: Tensor | None,
    node: int,
    bits: int,
    stochastic: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    refuse_gradient("qgemm_int8", a_scale, b_scale)
    m, n, k = check_product("qgemm_int8", a, b, trans_a, trans_b)
    epilogue = _Epilogue.of("qgemm_int8", a, (m, n), bias, row_scale, relu, dtype)
    check_quantize("qgemm_int8", a.new_empty(0, dtype=dtype), seed, bits, stochastic, most=8)
    a, b, trans_a, trans_b = contiguous_operands(a, b, trans_a, trans_b)
    q, scale = kernels.empty(a, (m, n), torch.int8), a.new_empty((), dtype=torch.float32)
    kernels.run(
        a,
        "qgemm_int8",
        *(pointer(a, torch.int8), pointer(a_scale, torch.float32), pointer(b, torch.int8)),
        *(pointer(b_scale, torch.float32), m, n, k, trans_a, trans_b, *epilogue.first_arguments()),
        *(None if seed is None else pointer(seed, torch.int64), node, bits, stochastic, dtype_code(dtype)),
        *(q.data_ptr(), scale.data_ptr(), epilogue.positive_address()),
    )
    return q, scale, epilogue.positive


def _qgemm_int8_fake(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    trans_a: bool,
    trans_b: bool,
    bias: Tensor | None,
    row_scale: Tensor | None,
    relu: bool,
    seed: Tensor | None,
    node: int,
    bits: int,
    stochastic: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    _, scale, positive = _qgemm_epilogue_fake(a, a_scale, b, b_scale, trans_a, trans_b, bias, row_scale, relu, dtype)
    m, n, _ = product_sizes("qgemm_int8", a, b, trans_a, trans_b)
    return a.new_empty((m, n), dtype=torch.int8), scale, positive


def _relu_backward(grad: Tensor, positive: Tensor) -> Tensor:
    refuse_gradient("relu_backward", grad)
    check_float("relu_backward", grad.dtype)
    rows, width = grad.shape
    if positive.shape != (rows, (width + 7) // 8):
        raise KernelError(
            f"gqc.relu_backward: grad {tuple(grad.shape)} needs positive bits {(rows, (width + 7) // 8)} "
            f"and got {tuple(positive.shape)}"
        )
    grad = grad.contiguous()
    out = kernels.empty(grad, grad.shape)
    kernels.run(
        grad,
        "relu_backward",
        *(grad.data_ptr(), dtype_code(grad.dtype), rows, width, pointer(positive, torch.uint8), out.data_ptr()),
    )
    return out


def _relu_backward_fake(grad: Tensor, positive: Tensor) -> Tensor:
    return grad.new_empty(grad.shape)


_EPILOGUE = "Tensor? bias, Tensor? row_scale, bool relu"
_QUANTIZE = "Tensor? seed, int node, int bits, bool stochastic"

define(
    "qgemm_epilogue(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, bool trans_a, bool trans_b, "
    f"{_EPILOGUE}, ScalarType dtype) -> (Tensor out, Tensor absmax, Tensor positive)",
    kernel=_qgemm_epilogue,
    fake=_qgemm_epilogue_fake,
)
define(
    f"quantize_qgemm(Tensor x, Tensor? absmax, {_QUANTIZE}, Tensor b, Tensor b_scale, bool trans_b, {_EPILOGUE}, "
    "ScalarType dtype) -> (Tensor out, Tensor out_absmax, Tensor q, Tensor scale, Tensor positive)",
    kernel=_quantize_qgemm,
    fake=_quantize_qgemm_fake,
)
define(
    "qgemm_int8(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, bool trans_a, bool trans_b, "
    f"{_EPILOGUE}, {_QUANTIZE}, ScalarType dtype) -> (Tensor q, Tensor scale, Tensor positive)",
    kernel=_qgemm_int8,
    fake=_qgemm_int8_fake,
)
define("relu_backward(Tensor grad, Tensor positive) -> Tensor", kernel=_relu_backward, fake=_relu_backward_fake)
