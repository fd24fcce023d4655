"""Torch calls that the tracer must not run as they are on fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import SymInt, Tensor
from torch.nn.functional import linear

from gqc.autocast import autocast_dtypes
from gqc.errors import CaptureError

if TYPE_CHECKING:
    from gqc.capture.tracer import Tracer

Rule = Callable[["Tracer", Any, Any, Any], Any]
_RULES: dict[Any, Rule] = {}


def rule_of(func: Any) -> Rule | None:
    """The special rule of a torch function, ``None`` if it is recorded as it is."""
    try:
        return _RULES.get(func)
    except TypeError:  # an unhashable callable
        return None


def _for(*functions: Any) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(functions, rule))
        return rule

    return register


@_for(
    Tensor.__bool__,
    Tensor.__index__,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__complex__,
    Tensor.__contains__,
    Tensor.is_nonzero,
    torch.is_nonzero,
    Tensor.equal,
    torch.equal,
    Tensor.allclose,
    torch.allclose,
)
def _value(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    return tracer.decide(func, args, kwargs)


@_for(Tensor.item)
def _item(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if tensor.dtype in _INTEGERS and tracer.example.python_value(tracer.node_of(tensor)) >= 0:
        return tracer.count(tensor)
    return tracer.decide(func, args, kwargs)


@_for(Tensor.tolist)
def _tolist(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if tensor.dim() == 1 and isinstance(tensor.shape[0], int):
        with tracer:
            return [tensor[i].item() for i in range(tensor.shape[0])]
    raise CaptureError("tolist() makes a Python list whose length differs between calls")


@_for(Tensor.__iter__)
def _iterate(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    with tracer:
        return iter(args[0].unbind(0))


@_for(torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy)
def _constant(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    data, rest = args[0], args[1:]
    leaves = pytree.tree_leaves(data)
    if isinstance(data, Tensor):
        return tracer.record(func, args, kwargs)
    if any(isinstance(x, Tensor) for x in leaves):
        with tracer:
            return _stack(data, kwargs.get("dtype") or torch.get_default_dtype())
    if any(isinstance(x, SymInt) for x in leaves):
        with tracer:
            return _stack(data, kwargs.get("dtype") or torch.int64)
    with tracer.on_real():
        real = func(data, *rest, **kwargs)
    with tracer:
        return real.clone()  # the model may write to it, and the next call must find it unchanged


def _stack(data: Any, dtype: torch.dtype) -> Tensor:
    """``torch.tensor(data)`` for nested lists that hold symbolic sizes, which torch.tensor would turn into numbers."""
    if isinstance(data, (list, tuple)):
        return torch.stack([_stack(item, dtype) for item in data])
    return data.to(dtype) if isinstance(data, Tensor) else torch.full((), data, dtype=dtype)


@_for(Tensor.__getitem__, Tensor.__setitem__)
def _index(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """Read masks, and slices whose ends are tensors, as indices, so that only making the indices depends on data."""
    tensor, index, *value = args
    if value and _is_mask(index) and _is_scalar(value[0]):
        with tracer:
            mask = index.reshape(index.shape + (1,) * (tensor.dim() - index.dim()))
            tensor.masked_fill_(mask, value[0])
        return None
    parts = index if isinstance(index, tuple) else (index,)
    expanded: list[Any] = []
    for part in parts:
        if _is_mask(part):
            with tracer:
                expanded.extend(part.nonzero().unbind(1))
        elif isinstance(part, slice) and any(isinstance(x, Tensor) for x in (part.start, part.stop, part.step)):
            if any(x is None or x is Ellipsis for x in expanded):
                raise CaptureError("a slice after None or '...' has ends that are tensors")
            expanded.append(_positions(tracer, part, tensor.shape[len(expanded)]))
        else:
            expanded.append(part)
    index = expanded[0] if len(expanded) == 1 else tuple(expanded)
    return tracer.record(func, (tensor, index, *value), kwargs)


def _positions(tracer: Tracer, part: slice, size: int | SymInt) -> Tensor:
    """The positions in a slice whose ends are tensors, as an index."""

    def positions(size: int, *ends: Any) -> Tensor:
        return torch.arange(*slice(*(None if x is None else int(x) for x in ends)).indices(size))

    reason = "the ends of a slice are read from tensors"
    return tracer.island(positions, size, part.start, part.stop, part.step, name="slice", reason=reason, pure=True)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (int, float, bool)) or (isinstance(value, Tensor) and value.dim() == 0)


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


@_for(Tensor.masked_select, torch.masked_select)
def _masked_select(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, mask = torch.broadcast_tensors(*args)
    with tracer:
        return tensor[mask]


@_for(Tensor.repeat_interleave, torch.repeat_interleave)
def _repeat_interleave(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    def parse(tensor: Tensor, repeats: Any = None, dim: int | None = None, *, output_size: Any = None) -> Any:
        return tensor, repeats, dim, output_size

    tensor, repeats, dim, output_size = parse(*args, **kwargs)
    if not isinstance(repeats, Tensor) or output_size is not None:
        return tracer.record(func, args, kwargs)
    with tracer:
        if dim is None:
            tensor, dim = tensor.flatten(), 0
        repeats = repeats.expand(tensor.shape[dim]) if repeats.dim() == 0 or repeats.shape[0] == 1 else repeats
        return tensor.index_select(dim, torch.repeat_interleave(repeats))


@_for(linear, torch.mm, torch.matmul, torch.bmm, torch.addmm, Tensor.mm, Tensor.matmul, Tensor.__matmul__, Tensor.bmm)
def _product(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Tensor:
    types = {x.dtype for x in (*args, *kwargs.values()) if isinstance(x, Tensor)}
    if len(types) > 1 and not autocast_dtypes():  # fake tensors let this pass
        raise RuntimeError(f"matrices of different types are multiplied: {', '.join(sorted(map(str, types)))}")
    return tracer.record(func, args, kwargs)


@_for(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
def _recurrent(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    sequence, state = args[:2]
    packed = isinstance(state, Tensor) and state.dim() == 1
    batch_first = not packed and args[8]
    if packed or isinstance(sequence.shape[1 if batch_first else 0], SymInt):
        raise CaptureError("a recurrent network runs over sequences whose length differs between calls")
    return tracer.record(func, args, kwargs)


@_for(Tensor.data.__get__)
def _data(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Tensor:
    with tracer:
        return args[0].detach()


@_for(Tensor.detach_)
def _detach(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Tensor:
    raise CaptureError("detach_() changes a tensor's gradient history in place; use x = x.detach()")


@_for(Tensor.data.__set__, Tensor.requires_grad.__set__, Tensor.grad.__set__)
def _set(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> None:
    raise CaptureError("forward assigns to an attribute (data, grad or requires_grad) of a tensor")


@_for(Tensor.register_hook, Tensor.register_post_accumulate_grad_hook, Tensor.retain_grad)
def _gradient_hook(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> None:
    raise CaptureError(f"{func.__name__}() asks for the gradient of a tensor inside forward, which is in no graph")


@_for(Tensor.backward, torch.autograd.backward, torch.autograd.grad)
def _backward(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> None:
    raise CaptureError("forward computes gradients itself")


@_for(
    torch.sparse_coo_tensor,
    torch.sparse_csr_tensor,
    torch.sparse_csc_tensor,
    torch.sparse_compressed_tensor,
    Tensor.to_sparse,
    Tensor.to_sparse_csr,
    Tensor.to_sparse_csc,
    Tensor.to_sparse_coo,
)
def _sparse(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> None:
    raise CaptureError("a sparse tensor is made inside forward; gather and scatter with edge_index instead")


@_for(Tensor.numpy, Tensor.__array__)
def _numpy(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> None:
    raise CaptureError("a tensor is turned into a NumPy array")


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@_for(Tensor.to)
def _to(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``x.to(other)`` reads the dtype of ``other``, not its values, so it does not tie structure to features."""
    tensor, *rest = args
    if rest and isinstance(rest[0], Tensor):
        rest[:1] = [rest[0].device, rest[0].dtype]
    return tracer.record(func, (tensor, *rest), kwargs)


@_for(Tensor.type_as)
def _type_as(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    return tracer.record(Tensor.to, (args[0], args[1].dtype), kwargs)


@_for(Tensor.new_zeros, Tensor.new_ones)
def _new(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """Constants in the dtype of a tensor whose values they do not read."""
    like, *size = args
    make = torch.zeros if func is Tensor.new_zeros else torch.ones
    return tracer.record(make, tuple(size), {"dtype": like.dtype, "device": like.device} | kwargs)


@_for(torch.zeros_like, torch.ones_like)
def _like(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    (like,) = args
    if "memory_format" in kwargs or not like.is_contiguous():
        return tracer.record(func, args, kwargs)
    make = torch.zeros if func is torch.zeros_like else torch.ones
    return tracer.record(make, (like.shape,), {"dtype": like.dtype, "device": like.device} | kwargs)
