"""The text of a pointwise program.

``"v0 = mul(x0, x1); v1 = relu(v0); v2 = le(v1, 0.0); return float32(v1), bits(v2)"``: ``x0``, ``x1``, ... are the
inputs, broadcast to one size; every line is one instruction of :data:`INSTRUCTIONS` on values and numbers, with its
parameters last; ``return`` lists the outputs. A value is a float32 number or a mask (true or false) an element.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch

from gqc.errors import KernelError

FLOAT, MASK = "f", "m"


class Kind(NamedTuple):
    """What an instruction takes and gives.

    Attributes:
        operands: the kinds of its operands, each :data:`FLOAT` or :data:`MASK`; a float may be a number.
        result: the kind of its result.
        parameters: how many numbers follow the operands.
    """

    operands: str
    result: str = FLOAT
    parameters: int = 0


INSTRUCTIONS = {
    "add": Kind("ff"),
    "sub": Kind("ff"),
    "mul": Kind("ff"),
    "div": Kind("ff"),
    "minimum": Kind("ff"),
    "maximum": Kind("ff"),
    "neg": Kind("f"),
    "abs": Kind("f"),
    "sign": Kind("f"),
    "relu": Kind("f"),
    "sqrt": Kind("f"),
    "rsqrt": Kind("f"),
    "reciprocal": Kind("f"),
    "square": Kind("f"),
    "exp": Kind("f"),
    "log": Kind("f"),
    "sigmoid": Kind("f"),
    "tanh": Kind("f"),
    "silu": Kind("f"),
    "gelu": Kind("f"),
    "gelu_tanh": Kind("f"),
    "leaky_relu": Kind("f", parameters=1),
    "elu": Kind("f", parameters=3),
    "threshold_backward": Kind("ff", parameters=1),
    "leaky_relu_backward": Kind("ff", parameters=1),
    "elu_backward": Kind("ff", parameters=3),
    "elu_backward_of_result": Kind("ff", parameters=3),
    "sigmoid_backward": Kind("ff"),
    "tanh_backward": Kind("ff"),
    "silu_backward": Kind("ff"),
    "gelu_backward": Kind("ff"),
    "gelu_tanh_backward": Kind("ff"),
    "lt": Kind("ff", MASK),
    "le": Kind("ff", MASK),
    "gt": Kind("ff", MASK),
    "ge": Kind("ff", MASK),
    "eq": Kind("ff", MASK),
    "ne": Kind("ff", MASK),
    "logical_and": Kind("mm", MASK),
    "logical_or": Kind("mm", MASK),
    "logical_not": Kind("m", MASK),
    "where": Kind("mff"),
    "to_bfloat16": Kind("f"),
    "to_float16": Kind("f"),
    "keep": Kind("", MASK, parameters=2),
    "drop": Kind("fm", parameters=1),
}
"""By name, numbered as the opcodes of the kernels. The parameters:

- ``leaky_relu``: slope. ``elu``: alpha, scale, input scale, as in ATen. Backwards take those of their forward, after
  the gradient and the forward's operand (of ``elu_backward_of_result``, ``sigmoid`` and ``tanh``: its result);
  ``threshold_backward``: the threshold.
- ``keep(p, node)``: the elements that ``gqc.dropout`` with probability ``p`` and stream ``node`` keeps.
  ``drop(x, kept, p)``: ``x / (1 - p)`` where kept, else ``x * 0``.
- ``to_bfloat16`` and ``to_float16`` round, as an op whose result has that type does.
"""

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "bool": torch.bool,
    "bits": torch.uint8,
    "absmax": torch.float32,
    "int8": torch.int8,
    "float24": torch.uint8,
}
"""Forms of an output with the type of its tensor:

- ``float32(v)``, ``bfloat16(v)``, ``float16(v)``, ``bool(v)``: the value. ``float32(sum(v, 0))``: summed over the first
  axis, which is dropped, in float64; ``float32(sum(v, -1))``: over the last.
- ``bits(v)``: a mask in 1 bit an element, uint8 ``[(n + 7) // 8]``, as ``gqc.dropout`` gives it.
- ``absmax(v)``: 0-dim float32, as ``gqc.absmax`` gives it.
- ``int8(v, node, bits, stochastic)``: two tensors, as ``gqc.quantize`` gives them for the value as float32.
- ``float24(v)``: of a matrix, uint8 ``[N, 3 W]`` (:mod:`gqc.runtime.float24`).
"""

_FORMS = {form: MASK if form in ("bool", "bits") else FLOAT for form in DTYPES}


class Instruction(NamedTuple):
    """``result = name(operands, parameters)``; an operand is the name of a value or a number."""

    name: str
    operands: tuple[str | float, ...]
    parameters: tuple[float, ...]
    result: str

    def __str__(self) -> str:
        return f"{self.result} = {self.name}({', '.join(map(_written, (*self.operands, *self.parameters)))})"


class Output(NamedTuple):
    """A result of a program.

    Attributes:
        form: a key of :data:`DTYPES`.
        value: its name.
        axis: 0 or -1 for the sum over that axis, else None.
        parameters: of ``int8``: node, bits, stochastic.
    """

    form: str
    value: str
    axis: int | None = None
    parameters: tuple[int, ...] = ()

    def __str__(self) -> str:
        value = self.value if self.axis is None else f"sum({self.value}, {self.axis})"
        return f"{self.form}({', '.join([value, *map(str, self.parameters)])})"


@dataclass(frozen=True)
class Program:
    """A checked program.

    Attributes:
        instructions: in order.
        outputs: in order.
        kinds: of every value that is computed, :data:`FLOAT` or :data:`MASK`; of an input, where it is known.
    """

    instructions: tuple[Instruction, ...]
    outputs: tuple[Output, ...]
    kinds: dict[str, str]

    def __str__(self) -> str:
        return "; ".join([*map(str, self.instructions), f"return {', '.join(map(str, self.outputs))}"])

    def renamed(self, names: Mapping[str, str]) -> Program:
        """The program with other names of inputs and values; those that are not named keep theirs."""

        def name(operand: str | float) -> str | float:
            return names.get(operand, operand) if isinstance(operand, str) else operand

        instructions = [
            i._replace(operands=tuple(map(name, i.operands)), result=name(i.result)) for i in self.instructions
        ]
        outputs = [output._replace(value=name(output.value)) for output in self.outputs]
        kinds = {names.get(value, value): kind for value, kind in self.kinds.items()}
        return Program(tuple(instructions), tuple(outputs), kinds)


@lru_cache(maxsize=4096)
def parse(text: str) -> Program:
    """The program that a text stands for.

    Raises:
        KernelError: saying what in the text is wrong.
    """
    try:
        statements = ast.parse(f"def program():\n {text}").body[0].body  # type: ignore[attr-defined]
    except SyntaxError as error:
        raise KernelError(f"a pointwise program is no Python: {error.msg} in {text!r}") from error
    reader = _Reader(text)
    if not isinstance(statements[-1], ast.Return):
        reader.fail(f"{text!r} does not end with return")
    instructions = tuple(map(reader.instruction, statements[:-1]))
    results = statements[-1].value
    outputs = tuple(map(reader.output, results.elts if isinstance(results, ast.Tuple) else [results]))
    return Program(instructions, outputs, reader.kinds)


def _written(operand: str | float) -> str:
    return operand if isinstance(operand, str) else repr(operand)


class _Reader:
    """Reads and checks one program."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kinds: dict[str, str] = {}

    def fail(self, wrong: str) -> None:
        raise KernelError(f"gqc.pointwise: {wrong}")

    def instruction(self, line: ast.stmt) -> Instruction:
        target = line.targets[0] if isinstance(line, ast.Assign) else None
        call = getattr(line, "value", None)
        if not isinstance(target, ast.Name) or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            self.fail(f"{ast.unparse(line)!r} is not of the form value = instruction(operands)")
        name, written = call.func.id, [self.operand(a) for a in call.args]  # type: ignore[union-attr]
        if name not in INSTRUCTIONS:
            self.fail(f"{name!r} is no instruction; there are {', '.join(INSTRUCTIONS)}")
        kind = INSTRUCTIONS[name]
        count = len(kind.operands)
        operands, parameters = tuple(written[:count]), tuple(written[count:])
        if len(written) != count + kind.parameters or not all(isinstance(p, int | float) for p in parameters):
            self.fail(f"{ast.unparse(line)!r}: {name} takes {count} operands and then {kind.parameters} numbers")
        for operand, wanted in zip(operands, kind.operands, strict=True):
            self.use(operand, wanted, ast.unparse(line))
        if target.id.startswith("x") or target.id in self.kinds:  # type: ignore[union-attr]
            self.fail(f"{ast.unparse(line)!r} assigns to an input or to a value that is there")
        self.kinds[target.id] = kind.result  # type: ignore[union-attr]
        return Instruction(name, operands, parameters, target.id)  # type: ignore[union-attr,arg-type]

    def output(self, call: ast.expr) -> Output:
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in DTYPES:
            self.fail(f"output {ast.unparse(call)!r} is none of {', '.join(f'{form}(value)' for form in DTYPES)}")
        form, first = call.func.id, call.args[0]  # type: ignore[union-attr]
        rest, axis = [self.operand(a) for a in call.args[1:]], None  # type: ignore[union-attr]
        if isinstance(first, ast.Call):
            axis = ast.literal_eval(first.args[1])
            first = first.args[0]
            if form not in ("float32", "bfloat16", "float16") or axis not in (0, -1):
                self.fail(f"output {ast.unparse(call)!r}: only floats are summed, over axis 0 or -1")
        if len(rest) != (3 if form == "int8" else 0):
            self.fail(f"output {ast.unparse(call)!r}: int8 takes value, node, bits and stochastic, others one value")
        value = self.operand(first)
        self.use(value, _FORMS[form], ast.unparse(call))
        if not isinstance(value, str):
            self.fail(f"output {ast.unparse(call)!r} is a number")
        return Output(form, value, axis, tuple(int(n) for n in rest))  # type: ignore[arg-type]

    def operand(self, node: ast.expr) -> str | float:
        if isinstance(node, ast.Name):
            return _NAMED_NUMBERS.get(node.id, node.id)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.operand(node.operand)  # type: ignore[operator]
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        self.fail(f"{ast.unparse(node)!r} is neither a value nor a number")
        raise AssertionError

    def use(self, operand: str | float, wanted: str, where: str) -> None:
        if isinstance(operand, str) and operand.startswith("x"):
            known = self.kinds.setdefault(operand, wanted)
        else:
            known = self.kinds.get(operand, "") if isinstance(operand, str) else FLOAT
        if known != wanted:
            words = {FLOAT: "a float", MASK: "a mask", "": "not computed before"}
            self.fail(f"{where!r}: {operand} is {words[known]} and must be {words[wanted]}")


_NAMED_NUMBERS = {"inf": float("inf"), "nan": float("nan")}
