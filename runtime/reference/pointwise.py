"""A pointwise program run one instruction after the other with torch's ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gqc.runtime.pointwise.code import iteration_size
from gqc.runtime.pointwise.program import DTYPES, Output, parse
from gqc.runtime.reference import float24
from gqc.runtime.reference import quantize as quantizer
from gqc.runtime.reference.dropout import pack, unpack
from gqc.runtime.reference.philox import random_bits

aten = torch.ops.aten


def _kept(seed: Tensor, size: Sequence[int], p: float, node: int) -> Tensor:
    return (random_bits(prod(size), seed, node) >= round(p * 65536)).view(tuple(size))


class Steps(NamedTuple):
    """What a program needs beside torch's ops.

    Attributes:
        kept: seed, size, ``p`` and node to the mask of ``keep``.
        absmax, quantize: as the ops of these names.
    """

    kept: Callable[[Tensor, Sequence[int], float, int], Tensor] = _kept
    absmax: Callable[[Tensor], Tensor] = quantizer.absmax
    quantize: Callable[..., tuple[Tensor, Tensor]] = quantizer.quantize


def pointwise(
    inputs: Sequence[Tensor],
    seed: Tensor | None,
    program: str,
    size: Sequence[int] | None = None,
    steps: Steps = Steps(),  # noqa: B008  immutable
) -> list[Tensor]:
    """See :mod:`gqc.runtime.pointwise.program`."""
    read = parse(program)
    if size is None:
        size = iteration_size([None if x.dtype is torch.uint8 else tuple(x.shape) for x in inputs])
    values: dict[str, Tensor] = {f"x{i}": _value(x, size) for i, x in enumerate(inputs)}
    for name, operands, parameters, result in read.instructions:
        if name == "keep":
            p, node = parameters
            values[result] = steps.kept(seed, size, p, int(node))  # type: ignore[arg-type]
            continue
        of = [values[o] if isinstance(o, str) else inputs[0].new_tensor(o, dtype=torch.float32) for o in operands]
        values[result] = torch.broadcast_to(FUNCTIONS[name](*of, *parameters), tuple(size))
    return [tensor for output in read.outputs for tensor in _output(output, values[output.value], seed, steps)]


def _value(x: Tensor, size: Sequence[int]) -> Tensor:
    if x.dtype is torch.uint8:
        return unpack(x, prod(size)).view(tuple(size))
    return torch.broadcast_to(x if x.dtype is torch.bool else x.float(), tuple(size))


def _output(output: Output, value: Tensor, seed: Tensor | None, steps: Steps) -> list[Tensor]:
    if output.form == "bits":
        return [pack(value.flatten())]
    if output.form == "absmax":
        return [steps.absmax(value)]
    if output.form == "float24":
        return [float24.pack(value)]
    if output.form == "int8":
        node, bits, stochastic = output.parameters
        return list(steps.quantize(value.contiguous(), None, seed, node, bits, bool(stochastic)))
    if output.axis is not None:
        value = value.double().sum(output.axis).float()
    return [value.to(DTYPES[output.form]).contiguous()]


def _drop(x: Tensor, kept: Tensor, p: float) -> Tensor:
    return x * torch.where(kept, 1 / (1 - p) if p < 1 else 0.0, 0.0)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "relu": torch.relu,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "square": torch.square,
    "exp": torch.exp,
    "log": torch.log,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "leaky_relu": F.leaky_relu,
    "elu": aten.elu,
    "threshold_backward": aten.threshold_backward,
    "leaky_relu_backward": lambda grad, x, slope: aten.leaky_relu_backward(grad, x, slope, False),
    "elu_backward": lambda grad, x, *factors: aten.elu_backward(grad, *factors, False, x),
    "elu_backward_of_result": lambda grad, y, *factors: aten.elu_backward(grad, *factors, True, y),
    "sigmoid_backward": aten.sigmoid_backward,
    "tanh_backward": aten.tanh_backward,
    "silu_backward": aten.silu_backward,
    "gelu_backward": aten.gelu_backward,
    "gelu_tanh_backward": lambda grad, x: aten.gelu_backward(grad, x, approximate="tanh"),
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_not": torch.logical_not,
    "where": torch.where,
    "to_bfloat16": lambda x: x.bfloat16().float(),
    "to_float16": lambda x: x.half().float(),
    "drop": _drop,
}
"""By instruction; all but ``keep``, which has no operand."""
