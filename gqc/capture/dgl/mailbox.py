"""Reduce functions over mailboxes, read as operations on edges.

DGL calls a reduce function once for each in-degree D that occurs, with messages stacked as [nodes, D, *F]. Most reduce
functions do the same to every message and then sum, average or take the maximum over axis 1, which is an operation on
[E, *F] followed by a reduction over in-edges: no grouping by degree is needed. :class:`Mailbox` runs the function once
under this reading and raises :class:`NotEdgewise` where it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gqc.capture.dgl.index import Relation
from gqc.capture.dgl.waist import copy_to_edges
from gqc.runtime.relation import CSC_INDPTR, num_dst


class NotEdgewise(Exception):
    """The reduce function does something that has no reading on edges."""


class Degree:
    """``mailbox.shape[1]``: a number in the reduce function, here one value a node.

    Attributes:
        values: ``[Nd]`` in the default dtype; nodes without in-edges count as 1, their result is replaced by 0 anyway.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values

    @classmethod
    def of(cls, relation: Relation) -> Degree:
        degrees = relation[CSC_INDPTR][1:] - relation[CSC_INDPTR][:-1]
        return cls(degrees.to(torch.get_default_dtype()).clamp(min=1))

    def _apply(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Apply a torch function in which this object stands for a number."""
        mailbox = next((x for x in args if isinstance(x, Mailbox)), None)
        if mailbox is not None:
            return mailbox._elementwise(func, args, kwargs)
        tensor = next((x for x in args if isinstance(x, Tensor) and x.dim()), None)
        if tensor is None:
            return Degree(func(*[x.values if isinstance(x, Degree) else x for x in args], **kwargs))
        if tensor.shape[0] != self.values.shape[0]:
            raise NotEdgewise("the in-degree meets a tensor that has no row for each node")
        shape = [-1] + [1] * (tensor.dim() - 1)
        return func(*[x.values.reshape(shape).to(tensor.dtype) if isinstance(x, Degree) else x for x in args], **kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        degree = next(x for x in args if isinstance(x, Degree))
        return degree._apply(func, args, kwargs or {})

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        name = {"divide": "div", "power": "pow", "absolute": "abs"}.get(ufunc.__name__, ufunc.__name__)
        func = getattr(torch, name, None)
        if method != "__call__" or kwargs or func is None:
            raise NotEdgewise(f"numpy.{ufunc.__name__} of the in-degree")
        return self._apply(func, [x.item() if isinstance(x, np.generic) else x for x in inputs], {})

    def _refuse(self, *args: Any) -> Any:
        raise NotEdgewise("the in-degree is needed as a Python number")

    __bool__ = __int__ = __float__ = __index__ = __eq__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class Reduced(NamedTuple):
    """What ``mailbox.max(dim=1)`` returns; positions inside a mailbox do not exist on edges."""

    values: Tensor
    indices: Unavailable


class Unavailable:
    """Positions of maxima in a mailbox: may be ignored, not used."""

    def __getattr__(self, name: str) -> Any:
        raise NotEdgewise("the position of a message in the mailbox is used")


class Mailbox:
    """Stands for a tensor [nodes, D, *F] of one value a message, or [nodes, 1, *F] of one value a node.

    Attributes:
        relation: edges that carry the messages.
        values: ``[E, *F]``, or ``[Nd, *F]`` if ``per_node``.
        per_node: axis 1 has size 1.
    """

    def __init__(self, relation: Relation, values: Tensor, per_node: bool = False) -> None:
        self.relation = relation
        self.values = values
        self.per_node = per_node

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def ndim(self) -> int:
        return self.values.dim() + 1

    @property
    def shape(self) -> tuple[Any, ...]:
        degree = 1 if self.per_node else Degree.of(self.relation)
        return (num_dst(self.relation), degree, *self.values.shape[1:])

    def dim(self) -> int:
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def __getattr__(self, name: str) -> Any:
        method = getattr(Tensor, name, None)
        if name.startswith("__") or not callable(method):
            raise AttributeError(name)
        return partial(self._call, method)

    def _call(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.__torch_function__(func, (Mailbox,), (self, *args), kwargs)

    def __getitem__(self, key: Any) -> Mailbox:
        key = key if isinstance(key, tuple) else (key,)
        if len(key) >= 2 and all(isinstance(k, slice) and k == slice(None) for k in key[:2]):
            inner = (slice(None), *key[2:])
            return self._with(self.values[inner])
        raise NotEdgewise("single messages or nodes are picked from the mailbox")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        kwargs = kwargs or {}
        mailbox = args[0] if args and isinstance(args[0], Mailbox) else None
        if name in _ELEMENTWISE:
            some = mailbox or next(x for x in args if isinstance(x, Mailbox))
            return some._elementwise(func, args, kwargs)
        rule = _RULES.get(name)
        if mailbox is None or rule is None or any(isinstance(x, Mailbox) for x in args[1:]):
            raise NotEdgewise(f"torch.{name} of a mailbox")
        return rule(mailbox, func, *args[1:], **kwargs)

    # ---- rules

    def _with(self, values: Tensor) -> Mailbox:
        return Mailbox(self.relation, values, self.per_node)

    def _elementwise(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Mailbox:
        """Apply ``func`` to each message, or to each node if no operand has a value a message."""
        operands = [self._operand(x) for x in args]
        per_node = all(x.per_node for x in operands if isinstance(x, Mailbox))
        plain = [x._spread(per_node) if isinstance(x, Mailbox) else x for x in operands]
        return Mailbox(self.relation, func(*plain, **kwargs), per_node)

    def _operand(self, x: Any) -> Any:
        """An operand as a mailbox if it has a value a message or a node, as it is if it is the same for all."""
        if isinstance(x, Degree):
            return Mailbox(self.relation, x.values.reshape([-1] + [1] * (self.ndim - 2)), True)
        if isinstance(x, Mailbox):
            if x.ndim != self.ndim:
                raise NotEdgewise("mailboxes with different numbers of axes meet")
            return x
        if not isinstance(x, Tensor) or x.dim() < self.ndim - 1:
            return x
        if x.dim() > self.ndim or x.shape[x.dim() - self.ndim + 1] != 1:
            raise NotEdgewise("a tensor with its own axis of messages meets the mailbox")
        if x.dim() < self.ndim:
            return x
        if x.shape[0] == num_dst(self.relation):
            return Mailbox(self.relation, x.squeeze(1), True)
        return x.squeeze(0)

    def _spread(self, per_node: bool) -> Tensor:
        return copy_to_edges(self.relation, self.values, "v") if self.per_node and not per_node else self.values

    def _messages(self, dim: Any) -> Tensor:
        """The messages, if ``dim`` is the axis of messages."""
        if dim not in (1, 1 - self.ndim, (1,), [1]):
            raise NotEdgewise("a mailbox is reduced over another axis than that of its messages")
        return self._spread(False)

    def _total(self, _: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self._kept(torch.ops.gqc.spmm(self.relation, "copy_rhs", None, self._messages(dim)), keepdim)

    def _average(self, _: Any, dim: Any = None, keepdim: bool = False) -> Any:
        total = torch.ops.gqc.spmm(self.relation, "copy_rhs", None, self._messages(dim))
        degree = Degree.of(self.relation)
        return self._kept(degree._apply(torch.div, (total, degree), {}), keepdim)

    def _extreme(self, func: Any, dim: Any = None, keepdim: bool = False) -> Reduced:
        out, _ = torch.ops.gqc.spmm_cmp(self.relation, "copy_rhs", func.__name__, None, self._messages(dim))
        return Reduced(self._kept(out, keepdim), Unavailable())

    def _softmax(self, _: Any, dim: Any = None, *rest: Any, **kwargs: Any) -> Mailbox:
        return self._with(torch.ops.gqc.edge_softmax(self.relation, self._messages(dim)))

    def _kept(self, values: Tensor, keepdim: bool) -> Any:
        return Mailbox(self.relation, values, True) if keepdim else values

    def _unsqueeze(self, _: Any, dim: int) -> Mailbox:
        dim = dim + self.ndim + 1 if dim < 0 else dim
        if dim < 2:
            raise NotEdgewise("an axis is put before the messages")
        return self._with(self.values.unsqueeze(dim - 1))

    def _last_axis(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Mailbox:
        """Functions that mix the values of the last axis only."""
        if self.ndim < 3 or any(isinstance(x, Tensor) and x.dim() > 2 for x in args):
            raise NotEdgewise("a product mixes messages")
        return self._with(func(self.values, *args, **kwargs))


_ELEMENTWISE_NAMES = """
    abs add bitwise_and bitwise_not bitwise_or clamp clamp_max clamp_min clip cos detach div divide dropout elu eq erf
    exp expm1 float ge gelu gt hardtanh le leaky_relu lerp log log1p log2 logical_and logical_not logical_or logsigmoid
    lt maximum minimum mish mul multiply ne neg negative pow reciprocal relu relu6 rsqrt rsub selu sigmoid sign silu sin
    softplus sqrt square sub subtract tanh to true_divide type where
"""
_OPERATORS = """
    abs add and eq ge gt invert le lt mul ne neg or pow radd rand rdiv rmul ror rpow rsub rtruediv sub truediv
"""
_ELEMENTWISE = {*_ELEMENTWISE_NAMES.split(), *(f"__{name}__" for name in _OPERATORS.split())}
_RULES: dict[str, Callable[..., Any]] = {
    "sum": Mailbox._total,
    "mean": Mailbox._average,
    "max": Mailbox._extreme,
    "min": Mailbox._extreme,
    "softmax": Mailbox._softmax,
    "unsqueeze": Mailbox._unsqueeze,
    "linear": Mailbox._last_axis,
    "matmul": Mailbox._last_axis,
    "__matmul__": Mailbox._last_axis,
}


def _operator(name: str) -> Callable[..., Any]:
    method = getattr(Tensor, f"__{name}__")

    def apply(self: Mailbox | Degree, *args: Any) -> Any:
        if isinstance(self, Mailbox):
            return self._call(method, *args)
        return self._apply(method, (self, *args), {})

    return apply


for _name in (*_OPERATORS.split(), "matmul"):
    setattr(Mailbox, f"__{_name}__", _operator(_name))
for _name in ("abs", "add", "mul", "neg", "pow", "radd", "rmul", "rpow", "rsub", "rtruediv", "sub", "truediv"):
    setattr(Degree, f"__{_name}__", _operator(_name))
