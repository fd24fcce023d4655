"""Chains of elementwise operations as one op with one kernel, which interprets them.

A compiler would have to run on the user's machine; an interpreter that looks at an instruction once for a thousand
elements costs no time beside reading and writing them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import SymInt, Tensor

from gqc.errors import KernelError
from gqc.runtime import kernels
from gqc.runtime.kernels import pointer
from gqc.runtime.last_absmax import FEWEST_ELEMENTS, LAST_ABSMAX
from gqc.runtime.ops.library import define, refuse_gradient
from gqc.runtime.pointwise.code import addresses, code_for, iteration_size, new_outputs, output_shapes
from gqc.runtime.pointwise.program import parse
from gqc.runtime.reference import dropout
from gqc.runtime.reference import pointwise as reference


def _pointwise(
    inputs: Sequence[Tensor], seed: Tensor | None, program: str, size: Sequence[int] | None = None
) -> list[Tensor]:
    refuse_gradient("pointwise", *inputs)
    code = code_for(program, tuple((x.dtype, x.shape) for x in inputs), None if size is None else tuple(size))
    if code.draws and (seed is None or seed.numel() != 2):
        raise KernelError("gqc.pointwise: the program draws random numbers and needs a seed, [number drawn, step]")
    on = inputs[0]
    if code.empty:
        return [on.new_zeros(shape, dtype=dtype) for shape, dtype in zip(code.shapes, code.dtypes, strict=True)]
    if kernels.on_gpu(on):
        return reference.pointwise(inputs, seed, program, size, _ON_GPU)
    contiguous = [x if x.is_contiguous() else x.contiguous() for x in inputs]
    outputs = new_outputs(on, code)
    seed_at = None if seed is None else pointer(seed, torch.int64)
    arguments = code.address, addresses(contiguous), addresses(outputs), seed_at
    if code.only_int8 and outputs[0].numel() >= FEWEST_ELEMENTS:
        guess = LAST_ABSMAX.of(program, code.size, *(x.data_ptr() for x in contiguous))
        kernels.run(on, "pointwise", *arguments, guess.ask())
        guess.learn()
    else:
        kernels.run(on, "pointwise", *arguments, None)
    return outputs


def _kept_on_gpu(seed: Tensor, size: Sequence[int], p: float, node: int) -> Tensor:
    ones = torch.ones(tuple(size), device=seed.device)
    return dropout.unpack(torch.ops.gqc.dropout(ones, p, seed, node)[1], ones.numel()).view(ones.shape)


# There is no CUDA kernel yet: a program runs as torch's ops.
_ON_GPU = reference.Steps(_kept_on_gpu, torch.ops.gqc.absmax, torch.ops.gqc.quantize)


def _pointwise_fake(
    inputs: Sequence[Tensor], seed: Tensor | None, program: str, size: Sequence[int | SymInt] | None = None
) -> list[Tensor]:
    read = parse(program)
    shapes = [None if x.dtype is torch.uint8 else x.shape for x in inputs]
    iteration = iteration_size(shapes) if size is None else size
    results = zip(*output_shapes(read, iteration), strict=True)
    return [inputs[0].new_empty(shape, dtype=dtype) for shape, dtype in results]


define(
    "pointwise(Tensor[] inputs, Tensor? seed, str program, SymInt[]? size=None) -> Tensor[]",
    kernel=_pointwise,
    fake=_pointwise_fake,
)
