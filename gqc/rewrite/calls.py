"""Calls of a graph as Python expressions that a person would write.

``torch.ops.aten.view.default(x, [n, 3])`` becomes ``x.view(n, 3)``: the same kernel, reached by its public name. What
has no such name here is called as ``aten.name(...)``, with the constants named as in its schema.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from gqc.capture.islands import AutocastCall, Closed, Island
from gqc.errors import RewriteError
from gqc.rewrite.layout import Group, Operation, Subscript, Text, keyword

Ref = Callable[[Any], Text]
"""Gives the text of an argument."""

_METHODS = frozenset(
    {
        *("abs", "amax", "amin", "argsort", "clamp", "clamp_max", "clamp_min", "clone", "copy_", "cos", "cumsum"),
        *("detach", "erf", "exp", "flatten", "gather", "index_add", "index_select", "log", "log1p", "logical_not"),
        *("masked_fill", "mean", "neg", "pow", "reciprocal", "rsqrt", "scatter_add", "select", "sigmoid", "sign"),
        *("sin", "sort", "sqrt", "squeeze", "sum", "t", "tanh", "transpose", "unbind", "unsqueeze"),
    }
)
"""Ops that are methods of a tensor with the op's own arguments."""

_SHAPES = frozenset({"view", "_unsafe_view", "reshape", "expand", "permute"})
"""Ops whose method takes a size or axes one by one."""

_FUNCTIONS = {
    **{name: f"torch.{name}" for name in ("addmm", "baddbmm", "bmm", "cat", "matmul", "maximum", "minimum", "mm")},
    **{name: f"torch.{name}" for name in ("relu", "sgn", "stack", "where")},
    **{name: f"F.{name}" for name in ("elu", "leaky_relu")},
}
"""Ops that are functions of torch with the op's own arguments."""

_FACTORIES = {name: f"torch.{name.partition('.')[0]}" for name in ("zeros.default", "ones.default", "full.default")}
_FACTORIES |= {"empty.memory_format": "torch.empty", "arange.default": "torch.arange", "arange.start": "torch.arange"}
_FACTORIES |= {"new_zeros.default": "new_zeros", "new_ones.default": "new_ones", "new_empty.default": "new_empty"}

_BINARY = {"add": "+", "sub": "-", "mul": "*", "div": "/", "gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "=="}
_BINARY |= {"ne": "!=", "bitwise_and": "&", "bitwise_or": "|", "remainder": "%", "floordiv": "//"}
_OPERATORS = {
    **{getattr(operator, name): sign for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("mod", "%"))},
    **{operator.truediv: "/", operator.floordiv: "//", operator.pow: "**", operator.and_: "&", operator.or_: "|"},
    **{getattr(operator, name): _BINARY[name] for name in ("gt", "ge", "lt", "le", "eq", "ne")},
}
_LOWERED = frozenset({"linear", "matmul", "mm", "bmm", "addmm", "addbmm", "baddbmm", "mv", "einsum"})
"""Functions that autocast runs in a smaller type."""

_PLAIN_FACTORY = {"pin_memory": False, "layout": torch.strided, "device": torch.device("cpu"), "requires_grad": False}


def literal(value: Any) -> str:
    """A constant as Python source.

    Raises:
        RewriteError: it is of a type that has no literal.
    """
    if isinstance(value, bool) or value is None or value is Ellipsis:
        return "..." if value is Ellipsis else repr(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, (int, float, complex)):
        return repr(value)
    if isinstance(value, str):
        quoted = repr(value)
        return quoted if '"' in value or "\\" in quoted else f'"{value}"'
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if isinstance(value, bytes):
        return repr(value)
    if type(value) is tuple:
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    raise RewriteError(f"a constant of type {type(value).__qualname__} ({value!r}) cannot be written down")


def call_text(node: fx.Node, ref: Ref) -> Text:
    """The expression that computes a node.

    Args:
        node: any node but a placeholder, an output or a get_attr.
        ref: gives the text of an argument: of a node, a constant or a list of these.

    Raises:
        RewriteError: the node runs something that has no name in Python.
    """
    target = node.target
    if node.op == "call_method":
        return _method(str(target), node.args, node.kwargs, ref)
    if isinstance(target, torch._ops.OpOverload):
        return _op(node, target, ref)
    if isinstance(target, Island):
        return _island(target, node.args, ref)
    if isinstance(target, AutocastCall):
        return _autocast(target, node.args, node.kwargs, ref)
    return _function(target, node.args, node.kwargs, ref)


def operand(text: Text) -> str:
    """Text that may stand before a dot or beside an operator."""
    shown = str(text)
    return f"({shown})" if type(text) is Operation or " " in shown.split("(")[0].split("[")[0] else shown


def binary(sign: str, left: Text, right: Text, function: str) -> Operation:
    return Operation(f"{operand(left)} {sign} {operand(right)}", Group(f"{function}(", [left, right]))


def _arguments(args: Any, kwargs: Any, ref: Ref) -> list[Text]:
    return [*map(ref, args), *(keyword(name, ref(value)) for name, value in kwargs.items())]


# ---- ops


def _op(node: fx.Node, target: torch._ops.OpOverload, ref: Ref) -> Text:
    namespace, _, name = target._schema.name.partition("::")
    full = f"{name}.{target._overloadname}"
    if namespace == "aten":
        text = _aten(node, name, full, ref)
        if text is not None:
            return text
    owner = {"aten": "aten", "gqc": "ops"}.get(namespace, f"torch.ops.{namespace}")
    overload = f".{target._overloadname}" if target._overloadname != "default" else ""
    return Group(f"{owner}.{name}{overload}(", _by_schema(target, node.args, node.kwargs, ref))


def _by_schema(target: torch._ops.OpOverload, args: Any, kwargs: Any, ref: Ref) -> list[Text]:
    """Arguments with the names of the schema, except for tensors and strings before the first constant."""
    texts: list[Text] = []
    named = False
    for schema, value in zip(target._schema.arguments, args, strict=False):
        constant = not isinstance(value, (fx.Node, str, list, tuple)) or (
            isinstance(value, fx.Node) and not isinstance(value.meta.get("val"), Tensor) and bool(texts)
        )
        named = named or (constant and not schema.kwarg_only and bool(texts))
        texts.append(keyword(schema.name, ref(value)) if named and schema.name != "self" else ref(value))
    return [*texts, *(keyword(name, ref(value)) for name, value in kwargs.items())]


def _aten(node: fx.Node, name: str, full: str, ref: Ref) -> Text | None:
    target, args, kwargs = node.target, node.args, node.kwargs
    if full in ("sym_size.int", "sym_numel.default"):
        shape = f"{operand(ref(args[0]))}."
        return f"{shape}shape[{args[1]}]" if full == "sym_size.int" else f"{shape}numel()"
    if name in _BINARY and full.endswith((".Tensor", ".Scalar")) and not kwargs and len(args) == 2:
        return binary(_BINARY[name], ref(args[0]), ref(args[1]), f"torch.{name}")
    if name in _SHAPES and not kwargs:
        method = name.replace("_unsafe_", "")
        sizes = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
        return Group(f"{operand(ref(args[0]))}.{method}(", [*map(ref, sizes)])
    if name in _METHODS and args and isinstance(args[0], fx.Node):
        return Group(f"{operand(ref(args[0]))}.{name}(", _by_schema(target, args, kwargs, ref)[1:])
    if name in _FUNCTIONS:
        return Group(f"{_FUNCTIONS[name]}(", _by_schema(target, args, kwargs, ref))
    if full in _FACTORIES:
        function = _FACTORIES[full]
        if function.startswith("torch."):
            return Group(f"{function}(", _arguments(args, _factory(kwargs), ref))
        return Group(f"{operand(ref(args[0]))}.{function}(", _arguments(args[1:], _factory(kwargs), ref))
    if full in ("_softmax.default", "_log_softmax.default") and args[2] is False:
        return Group(f"torch.{name[1:]}(", [ref(args[0]), keyword("dim", ref(args[1]))])
    if full == "slice.Tensor" and len(args) in (3, 4) and args[1] == 0:
        start, end = "" if args[2] == 0 else ref(args[2]), "" if len(args) == 3 or _is_end(args[3]) else ref(args[3])
        text = f"{operand(ref(args[0]))}[{_slice(str(start), str(end))}]"
        return Subscript(text, Group("aten.slice(", _by_schema(target, args, kwargs, ref)))
    return None


def _is_end(value: object) -> bool:
    return isinstance(value, int) and value == 2**63 - 1


def _factory(kwargs: Any) -> dict[str, Any]:
    """Keyword arguments of a factory, without those that say what holds anyway."""
    return {name: value for name, value in kwargs.items() if value is not None and _PLAIN_FACTORY.get(name) != value}


# ---- recorded Python calls


def _method(name: str, args: Any, kwargs: Any, ref: Ref) -> Text:
    receiver, rest = operand(ref(args[0])), args[1:]
    if name in ("view", "reshape", "expand", "permute", "repeat") and len(rest) == 1 and isinstance(rest[0], tuple):
        rest = rest[0]
    if name == "__bool__" and not rest:
        return Group("bool(", [ref(args[0])])
    if name in ("__int__", "__index__", "__float__") and not rest:
        return Group("float(" if name == "__float__" else "int(", [ref(args[0])])
    return Group(f"{receiver}.{name}(", _arguments(rest, kwargs, ref))


def _function(target: Any, args: Any, kwargs: Any, ref: Ref) -> Text:
    if target is operator.getitem:
        return f"{operand(ref(args[0]))}[{_index(args[1], ref)}]"
    if target is getattr:
        return f"{operand(ref(args[0]))}.{args[1]}"
    if target in _OPERATORS and len(args) == 2:
        return binary(_OPERATORS[target], ref(args[0]), ref(args[1]), f"operator.{target.__name__}")
    if target is operator.neg:
        return Operation(f"-{operand(ref(args[0]))}", Group("operator.neg(", [ref(args[0])]))
    if target is torch.sym_sum:
        *terms, last = sorted(args[0], key=lambda term: not isinstance(term, fx.Node))
        text = " + ".join(operand(ref(term)) for term in terms)
        if isinstance(last, int) and last < 0:
            return Operation(f"{text} - {-last}", Group("sum(", [ref(list(args[0]))]))
        return Operation(f"{text} + {operand(ref(last))}", Group("sum(", [ref(list(args[0]))]))
    name = _torch_name(target)
    if name.startswith(("torch.zeros", "torch.ones", "torch.full", "torch.arange", "torch.empty")):
        kwargs = _factory(kwargs)
    return Group(f"{name}(", _arguments(args, kwargs, ref))


def _autocast(call: AutocastCall, args: Any, kwargs: Any, ref: Ref) -> Text:
    """A call under autocast, which is off where it is written down.

    Raises:
        RewriteError: autocast would change its precision.
    """
    name = getattr(call.fn, "__name__", "")
    if name.strip("_") in _LOWERED:
        (_, dtype), *_ = call.dtypes
        raise RewriteError(f"'{name}' runs in {dtype} under autocast, outside of the graph that is compiled")
    if getattr(Tensor, name, None) is not call.fn:
        return _function(call.fn, args, kwargs, ref)
    operation = getattr(operator, name, None) if name.startswith("__") else None
    return _function(operation, args, kwargs, ref) if operation else _method(name, args, kwargs, ref)


def _torch_name(target: Any) -> str:
    """The public name of a function of torch.

    Raises:
        RewriteError: it has none.
    """
    name = getattr(target, "__name__", "")
    for prefix, owner in (("torch.", torch), ("F.", torch.nn.functional), ("torch.special.", torch.special)):
        if name and getattr(owner, name, None) is target:
            return prefix + name
    if isinstance(target, torch._ops.OpOverloadPacket):
        return str(target._qualified_op_name).replace("gqc::", "ops.").replace("aten::", "aten.")
    if target in (math.sqrt, math.floor, math.ceil, torch.sym_int, torch.sym_float, torch.sym_max, torch.sym_min):
        plain = {torch.sym_int: "int", torch.sym_float: "float", torch.sym_max: "max", torch.sym_min: "min"}
        return plain.get(target) or f"math.{name}"
    raise RewriteError(f"a call of {name or target!r} cannot be written down: gqc knows no public name for it")


def _index(index: Any, ref: Ref) -> str:
    if isinstance(index, tuple):
        return ", ".join(_index(part, ref) for part in index)
    if isinstance(index, slice):
        parts = ["" if x is None else str(ref(x)) for x in (index.start, index.stop, index.step)]
        return _slice(*(parts if index.step is not None else parts[:2]))
    return str(ref(index))


def _slice(*parts: str) -> str:
    """A slice, with spaces around its colons where an end is more than a name or a number."""
    if all(part.lstrip("-").isalnum() or part.isidentifier() or not part for part in parts):
        return ":".join(parts)
    return " : ".join(parts).strip().replace(":  :", "::")


def _island(island: Island, args: Any, ref: Ref) -> Text:
    """A pure island: a torch call whose result has a size that depends on data, which is nothing special here."""
    fn = island.fn
    if isinstance(fn, Closed):
        positional, named = fn.arguments(args)
        name = getattr(fn.fn, "__name__", "")
        if name and getattr(Tensor, name, None) is fn.fn:
            return _method(name, positional, named, ref)
        return _function(fn.fn, positional, named, ref)
    if island.name == "item":
        value = operand(ref(args[0]))
        return Group(f"{value}.new_empty(", [f"(int({value}), 0)"])
    raise RewriteError(f"'{island.name}' runs eagerly ({island.reason}) and cannot be written down")
