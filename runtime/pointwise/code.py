"""What a kernel reads to run a program on inputs of given types and sizes."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime import float24, kernels
from gqc.runtime.ops.dropout import factor, threshold
from gqc.runtime.pointwise.program import DTYPES, FLOAT, INSTRUCTIONS, MASK, Program, parse

Shape = tuple[int, ...]

INPUT_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.bool: 3, torch.uint8: 4}
"""Codes of input types; uint8 is a mask of 1 bit an element."""
COMPUTED = len(INPUT_DTYPES)
"""Code of an input that the kernel computes tile by tile, as float32."""

_FORM_CODES = {form: code for code, form in enumerate(DTYPES)}
_OPCODES = {name: code for code, name in enumerate(INSTRUCTIONS)}
_OPERANDS, _PARAMETERS = 3, 3
_AXES = 3
MOST_SUMMED = 512
"""The longest last axis that is summed, or lies in float24."""


class Code(NamedTuple):
    """A program for inputs of given types and sizes.

    Attributes:
        size: of the iteration.
        shapes: of the outputs; an int8 output has a scale after it.
        dtypes: of the outputs.
        numbers: what the kernel reads; csrc/cpu/pointwise/plan.h names the fields.
        address: where the kernel finds the numbers.
        native: keeps them there.
        only_int8: whether the one result is int8.
        is_float24: of each output, whether it is a matrix of float24.
        draws: whether it needs a seed.
        empty: whether there is nothing to compute.
    """

    size: Shape
    shapes: list[Shape]
    dtypes: list[torch.dtype]
    numbers: tuple[int, ...]
    address: int
    native: ctypes.Array
    only_int8: bool
    is_float24: list[bool]
    draws: bool
    empty: bool


@lru_cache(maxsize=1024)
def code_for(text: str, inputs: tuple[tuple[torch.dtype, Shape], ...], size: Shape | None, computed: int = 0) -> Code:
    """Translate a program.

    Args:
        text: the program.
        inputs: type and shape of each input.
        size: of the iteration; ``None``: that to which the inputs broadcast, packed masks aside.
        computed: how many inputs the kernel computes, which have the size of the iteration; ``inputs`` are those after
            them.

    Raises:
        KernelError: naming the input that does not fit.
    """
    program = parse(text)
    if size is not None:
        inputs = (*[(torch.float32, size)] * computed, *inputs)
    shapes = [None if dtype is torch.uint8 else shape for dtype, shape in inputs]
    size = iteration_size(shapes) if size is None else size
    check_inputs(program, [dtype for dtype, _ in inputs], [shape for _, shape in inputs], size)
    dims, strides = _layout(program, shapes, size)
    slots, constants, temporaries = _slots(program, len(inputs))
    numbers = [*dims, len(inputs), len(constants), temporaries, len(program.instructions), len(program.outputs)]
    types = [INPUT_DTYPES[dtype] for dtype, _ in inputs]
    types[:computed] = [COMPUTED] * computed
    for code, stride in zip(types, strides, strict=True):
        numbers += [code, *stride]
    numbers += [_bits(number) for number in constants]
    for at, instruction in enumerate(program.instructions):
        operands = [slots[at][operand] for operand in instruction.operands]
        numbers += [_OPCODES[instruction.name], slots[at + 1][instruction.result], *_padded(operands, _OPERANDS)]
        numbers += _padded(_parameters(instruction.name, instruction.parameters), _PARAMETERS)
    for output in program.outputs:
        axis = {None: 0, 0: 1, -1: 2}[output.axis]
        numbers += [_FORM_CODES[output.form], slots[-1][output.value], axis, *_padded(output.parameters, _PARAMETERS)]
    native = (ctypes.c_int64 * len(numbers))(*numbers)
    draws = any(i.name == "keep" for i in program.instructions) or any(
        o.parameters[2:] == (1,) for o in program.outputs
    )
    shapes_and_dtypes = output_shapes(program, size)
    is_float24 = [o.form == "float24" for o in program.outputs for _ in range(2 if o.form == "int8" else 1)]
    only_int8 = [output.form for output in program.outputs] == ["int8"]
    kept = tuple(numbers), ctypes.addressof(native), native
    return Code(size, *shapes_and_dtypes, *kept, only_int8, is_float24, draws, prod(size) == 0)


def new_outputs(on: Tensor, code: Code) -> list[Tensor]:
    """Outputs with undefined values on the device of ``on``."""
    outputs = zip(code.shapes, code.dtypes, code.is_float24, strict=True)
    return [float24.empty(on, code.size) if is_24 else kernels.empty(on, *of) for *of, is_24 in outputs]


def addresses(tensors: Sequence[Tensor]) -> ctypes.Array:
    """The addresses of tensors as a kernel gets them."""
    return (ctypes.c_void_p * len(tensors))(*[x.data_ptr() for x in tensors])


def output_shapes(program: Program, size: Sequence[int]) -> tuple[list[Shape], list[torch.dtype]]:
    """Shapes and types of the results, also for symbolic sizes."""
    shapes: list[Shape] = []
    dtypes = []
    for output in program.outputs:
        if output.form == "bits":
            shapes.append(((prod(size) + 7) // 8,))
        elif output.form == "absmax":
            shapes.append(())
        elif output.form == "float24":
            shapes.append((*size[:-1], 3 * size[-1]))
        else:
            shapes.append(tuple(size[1:] if output.axis == 0 else size[:-1] if output.axis == -1 else size))
        dtypes.append(DTYPES[output.form])
        if output.form == "int8":
            shapes.append(())
            dtypes.append(torch.float32)
    return shapes, dtypes


def iteration_size(shapes: Sequence[Shape | None]) -> Shape:
    """The size to which the inputs broadcast; ``None`` stands for a packed mask, whose size is not known."""
    try:
        return tuple(torch.broadcast_shapes(*(shape for shape in shapes if shape is not None)))
    except RuntimeError as error:
        raise KernelError(f"gqc.pointwise: inputs of {shapes} do not broadcast: {error}") from error


def check_inputs(program: Program, dtypes: Sequence[torch.dtype], shapes: Sequence[Shape], size: Shape) -> None:
    """Check the inputs of a call.

    Raises:
        KernelError: naming the input.
    """
    for i, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=True)):
        if dtype not in INPUT_DTYPES:
            raise KernelError(f"gqc.pointwise: input {i} is {dtype}; it knows {', '.join(map(str, INPUT_DTYPES))}")
        kind = MASK if dtype in (torch.bool, torch.uint8) else FLOAT
        if program.kinds.get(f"x{i}", kind) != kind:
            raise KernelError(f"gqc.pointwise: the program uses input {i} otherwise than as {dtype}")
        if dtype is torch.uint8:
            if shape != ((prod(size) + 7) // 8,):
                raise KernelError(f"gqc.pointwise: input {i} is a packed mask of {shape} for a size of {size}")
        elif len(shape) > len(size) or any(a not in (1, b) for a, b in zip(shape[::-1], size[::-1], strict=False)):
            raise KernelError(f"gqc.pointwise: input {i} of {shape} does not broadcast to {size}")
    used = [name for name in program.kinds if name.startswith("x")]
    if any(not name[1:].isdigit() or int(name[1:]) >= len(dtypes) for name in used):
        raise KernelError(f"gqc.pointwise: the program reads {', '.join(used)} and got {len(dtypes)} inputs")


def _layout(program: Program, shapes: Sequence[Shape | None], size: Shape) -> tuple[list[int], list[list[int]]]:
    """Sizes of three axes that stand for all, and each input's strides along them, 0 where it is broadcast."""
    summed = {output.axis for output in program.outputs}
    if any(output.form == "float24" for output in program.outputs):  # whose rows stand apart
        if len(size) != 2 or size[1] > MOST_SUMMED:
            raise KernelError(f"gqc.pointwise: {size} is no matrix of at most {MOST_SUMMED} columns, as float24 is")
        summed.add(-1)
    if len(summed - {None}) > len(size) or (-1 in summed and size[-1] > MOST_SUMMED):
        raise KernelError(f"gqc.pointwise: {size} cannot be summed so; the last axis may have {MOST_SUMMED}")
    axes: list[tuple[int, tuple[bool, ...]]] = []  # size, and which inputs have the axis
    apart = 0  # number of axes of which the last must stay alone
    for i, length in enumerate(size):
        first, last = i == 0 and 0 in summed, i == len(size) - 1 and -1 in summed
        if length == 1 and not first and not last:
            continue
        has = tuple(s is None or (len(s) >= len(size) - i and s[i - len(size)] == length) for s in shapes)
        if axes and not last and len(axes) != apart and axes[-1][1] == has:
            axes[-1] = (axes[-1][0] * length, has)
        else:
            axes.append((length, has))
        apart = 1 if first else apart
    if len(axes) > _AXES:
        raise KernelError(f"gqc.pointwise: inputs of {list(shapes)} are broadcast along too many axes of {size}")
    none = (1, (True,) * len(shapes))
    outer = axes[:1] if 0 in summed else []
    axes = [*outer, *[none] * (_AXES - len(axes)), *axes[len(outer) :]]
    strides = []
    for i in range(len(shapes)):
        stride, row = 1, []
        for length, has in reversed(axes):
            row.append(stride if has[i] and length != 1 else 0)
            stride *= length if has[i] else 1
        strides.append(row[::-1])
    return [length for length, _ in axes], strides


def _slots(program: Program, inputs: int) -> tuple[list[dict[str | float, int]], list[float], int]:
    """Where each value stands before each instruction and at the end; the constants; how many slots follow them."""
    constants: dict[float, int] = {}
    for instruction in program.instructions:
        for operand in instruction.operands:
            if not isinstance(operand, str):
                constants.setdefault(operand, inputs + len(constants))
    last = {output.value: len(program.instructions) for output in program.outputs}
    for at, instruction in enumerate(program.instructions):
        for operand in instruction.operands:
            if isinstance(operand, str):
                last[operand] = max(last.get(operand, 0), at)
    fixed: dict[str | float, int] = {f"x{i}": i for i in range(inputs)}
    fixed.update(constants)
    now, free, used = dict(fixed), [], inputs + len(constants)
    before = []
    for at, instruction in enumerate(program.instructions):
        before.append(dict(now))
        for name in [n for n in now if n not in fixed and last.get(n, -1) <= at]:  # type: ignore[arg-type]
            free.append(now.pop(name))
        if not free:
            free.append(used)
            used += 1
        now[instruction.result] = free.pop()
    return [*before, now], list(constants), used - inputs - len(constants)


def _parameters(name: str, parameters: Sequence[float]) -> list[int]:
    if name == "keep":
        p, node = parameters
        return [threshold(p), int(node)]
    if name == "drop":
        (p,) = parameters
        return [_bits(factor(p))]
    return [_bits(p) for p in parameters]


def _bits(number: float) -> int:
    try:
        return struct.unpack("<i", struct.pack("<f", number))[0]
    except OverflowError:  # a Python number beyond float32 is infinite in it
        return _bits(float("inf") if number > 0 else float("-inf"))


def _padded(numbers: Sequence[int], length: int) -> list[int]:
    return [*numbers, *[0] * (length - len(numbers))]
