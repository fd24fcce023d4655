"""The tracer: runs a model's own Python on fake tensors and records the torch calls that it makes."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch import SymBool, SymFloat, SymInt, Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._python_dispatch import TorchDispatchMode

from gqc.autocast import autocast_dtypes
from gqc.capture import special
from gqc.capture.attribute_path import AttributePath
from gqc.capture.example import Example, real_tensors, storage_key
from gqc.capture.islands import AutocastCall, Closed, FunctionCall, Island
from gqc.capture.sizes import Sizes, dynamic_axes
from gqc.errors import CaptureError, LibraryError

_OPERATORS = {
    getattr(Tensor, f"__{name.rstrip('_')}__"): getattr(operator, name)
    for name in [
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "matmul",
        "and_",
        "or_",
        "xor",
        "neg",
        "invert",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "getitem",
        "setitem",
        "iadd",
        "isub",
        "imul",
        "itruediv",
        "iand",
        "ior",
    ]
}


@dataclass(frozen=True)
class ValueGuard:
    """A Python decision taken on the value of a node: the capture holds while the node gives the same value."""

    node: fx.Node
    value: Any
    location: str

    def __str__(self) -> str:
        decision = str(getattr(self.node.target, "__name__", self.node.target)).strip("_")
        return f"{decision} at {self.location or 'an unknown line'}"


class RandomWatch(TorchDispatchMode):
    """Sees whether anything that runs draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


class Tracer(TorchFunctionMode):
    """Records torch calls into :attr:`graph` while it is the active torch function mode.

    Attributes:
        graph: what has been recorded. ``meta["val"]`` of a node holds the fake result.
        fake_mode: the mode in which the model runs.
        sizes: symbols and their sources.
        example: real values of recorded nodes.
        guards: decisions that the model's Python took on values.
        constants: real tensors that are neither arguments nor state of the model, by attribute name.
        islands: eager islands in the order of recording.
        describe: gives the provenance of the statement that is running (``meta["custom"]["gqc"]``).
    """

    def __init__(self, names: dict[int, str], describe: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.sizes = Sizes(self.graph)
        self.fake_mode = FakeTensorMode(shape_env=self.sizes.env, allow_non_fake_inputs=True)
        self.fake_mode.cache_enabled = False  # filling the cache costs more than its hits save
        self.example = Example()
        self.guards: list[ValueGuard] = []
        self.constants: dict[str, Tensor] = {}
        self.islands: list[Island] = []
        self.describe = describe
        self.suspended = False
        self._thread = threading.get_ident()
        self._names = names
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[Tensor] = []
        self._leaf_fakes: dict[int, FakeTensor] = {}
        self._function_results: set[int] = set()
        self._count = 0

    @property
    def recording(self) -> bool:
        """Whether what runs is recorded: not another thread, which sees the same replaced functions, nor an island."""
        return not self.suspended and threading.get_ident() == self._thread

    # ---- arguments, parameters and constants

    def placeholder(self, name: str, real: Tensor, axes: Sequence[int] | None = None) -> FakeTensor:
        """Add an argument; ``axes`` may change size between calls (see :func:`~gqc.capture.sizes.dynamic_axes`)."""
        node = self.graph.placeholder(name)
        node.target = node.name  # which torch.fx has made unique
        axes = dynamic_axes(real) if axes is None else axes
        shape = [self.sizes.symbol(n, f"{name}_{d}") if d in axes else n for d, n in enumerate(real.shape)]
        fake = self._empty(shape, real)
        self.example.leaves[node] = real
        self._name_node(node)
        self._bind(fake, node)
        return fake

    def _empty(self, shape: Sequence[int | SymInt], like: Tensor) -> FakeTensor:
        with torch._C.DisableTorchFunction(), self.fake_mode, torch.inference_mode(False):
            fake = torch.empty(shape, dtype=like.dtype, device=like.device)
            return fake.requires_grad_() if like.requires_grad else fake

    def _leaf(self, real: Tensor) -> FakeTensor:
        """The fake of a tensor that is no argument: a parameter, a buffer or a constant."""
        if id(real) not in self._leaf_fakes:
            name = self._names.get(id(real))
            constant = name is None
            if constant:
                if real.layout != torch.strided:
                    raise CaptureError(f"a {real.layout} tensor is used; pass edge_index and weights instead")
                if real.requires_grad and real.grad_fn is not None:
                    raise CaptureError("a tensor with gradient history that is not an argument is used")
                name = f"_constant{len(self.constants)}"
                self.constants[name] = real
            node = self.graph.get_attr(AttributePath(name))
            fake = self._empty(real.shape, real)
            if isinstance(real, torch.nn.Parameter):
                with torch._C.DisableTorchFunction(), self.fake_mode:
                    fake = torch.nn.Parameter(fake.detach(), real.requires_grad)
            node.meta["constant"] = constant
            node.meta["buffer"] = not isinstance(real, torch.nn.Parameter)
            self.example.leaves[node] = real
            self._alive.append(real)
            self._leaf_fakes[id(real)] = fake
            self._name_node(node)
            self._bind(fake, node)
        return self._leaf_fakes[id(real)]

    def node_of(self, tensor: Tensor) -> fx.Node:
        """The node that computes a tensor which the tracer has made.

        In a ``no_grad`` region a tensor that requires a gradient is read through ``detach``, so that the graph needs no
        grad-mode switches.
        """
        if id(tensor) not in self._nodes:
            if isinstance(tensor, FakeTensor) and tensor.constant is None:
                raise CaptureError(
                    "a tensor was made by code that torch does not show to the tracer (such as TorchScript)"
                )
            # torch.Tensor([1.0]) is not shown either, but torch keeps the values beside the fake tensor.
            tensor = self._leaf(tensor.constant if isinstance(tensor, FakeTensor) else tensor)
        if isinstance(tensor.grad_fn, BackwardCFunction) and id(tensor) not in self._function_results:
            raise CaptureError(
                "an autograd.Function changes its argument in place or is called by code that torch does not show"
            )
        node = self._nodes[id(tensor)]
        if tensor.requires_grad and not torch.is_grad_enabled():
            node = self.graph.call_method("detach", (node,))
            self._name_node(node)
            node.meta["val"] = tensor.detach()
        return node

    # ---- recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.suspended:
            return func(*args, **kwargs)
        stands_for_tensor = next((kind for kind in types if not issubclass(kind, Tensor)), None)
        if stands_for_tensor is not None:
            with self:
                return stands_for_tensor.__torch_function__(func, types, args, kwargs)
        rule = special.rule_of(func)
        return rule(self, func, args, kwargs) if rule else self.record(func, args, kwargs)

    def record(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call ``func`` on fake tensors and record the call if it makes or changes a tensor."""
        args, kwargs = pytree.tree_map_only(Tensor, self._as_fake, (args, kwargs))
        inputs = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        state = [(x._version, x.requires_grad) for x in inputs]
        known = len(self.sizes.env.guards)
        random = RandomWatch()
        try:
            with enable_python_dispatcher(), random:
                out = func(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            return self._eagerly(func, args, kwargs)
        self.sizes.internal.update(range(known, len(self.sizes.env.guards)))
        written = [x for x, (version, _) in zip(inputs, state, strict=True) if x._version != version]
        if out is not None and not written and any(out is x for x in inputs):
            if any(x.requires_grad != grad for x, (_, grad) in zip(inputs, state, strict=True)):
                raise CaptureError("requires_grad_() is called on a tensor inside forward")
            return out
        if written or any(isinstance(x, Tensor) for x in pytree.tree_leaves(out)):
            node = self.emit(func, args, kwargs)
            node.meta["random"] = random.seen
            self.bind(out, node)
            if isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
                # The gradient of an op is registered with it, and a call in the graph has it too.
                self._function_results.update(id(x) for x in pytree.tree_leaves(out) if isinstance(x, Tensor))
            for x in written:
                self.example.writers.setdefault(storage_key(x), []).append(node)
                node.meta["writes"] = True
        return out

    def emit(self, func: Any, args: Any, kwargs: Any) -> fx.Node:
        """Append the call of ``func`` to the graph."""
        args, kwargs = self._operand(tuple(args)), self._operand(kwargs)
        name = getattr(func, "__name__", type(func).__name__)
        autocast = autocast_dtypes()
        if autocast:
            node = self.graph.call_function(AutocastCall(func, name, autocast), args, kwargs)
        elif func in _OPERATORS:
            node = self.graph.call_function(_OPERATORS[func], args, kwargs)
        elif name == "__get__":  # of a property such as Tensor.T
            node = self.graph.call_function(getattr, (*args, func.__self__.__name__), kwargs)
        elif getattr(torch.Tensor, name, None) is func:
            node = self.graph.call_method(name, args, kwargs)
        else:
            node = self.graph.call_function(func, args, kwargs)
        self._name_node(node)
        return node

    def bind(self, out: Any, node: fx.Node) -> None:
        """Let ``node`` be what computes the fake tensors in ``out``; containers are taken apart."""
        if isinstance(out, Tensor):
            self._bind(out, node)
            return
        node.meta["val"] = out
        items = out.items() if isinstance(out, dict) else enumerate(out) if isinstance(out, (tuple, list)) else ()
        for key, item in items:
            if isinstance(item, (Tensor, tuple, list, dict)):
                part = self.graph.call_function(operator.getitem, (node, key))
                self._name_node(part)
                self.bind(item, part)

    def decide(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The Python value of ``func`` on the real arguments, which becomes a guard."""
        args, kwargs = pytree.tree_map_only(Tensor, self._as_fake, (args, kwargs))
        node = self.emit(func, args, kwargs)
        value = self.example.value(node)
        self.guards.append(ValueGuard(node, value, node.meta["custom"]["gqc"]["line"]))
        return value

    def function(self, target: FunctionCall, args: Any, kwargs: Any) -> Any:
        """Record a ``torch.autograd.Function`` as one call, or as an island if it does not run on fake tensors."""
        closed = Closed(target, *pytree.tree_map_only(Tensor, self._as_fake, (args, kwargs)))
        try:
            out = self.record(closed, closed.operands, {})
        except (CaptureError, LibraryError):
            raise
        except Exception as error:
            reason = f"{type(error).__name__} on symbolic sizes: {error}"
            out = self.island(closed, *closed.operands, name=target.__name__, reason=reason)
        self._function_results.update(id(x) for x in pytree.tree_leaves(out) if isinstance(x, Tensor))
        return out

    def carry(self, size: SymInt) -> fx.Node:
        """A node whose result is a tensor without elements that has ``size`` rows."""
        node = self.graph.call_function(torch.empty, ((self._operand(size), 0),))
        self._name_node(node)
        node.meta["val"] = self._empty((size, 0), torch.empty(0))
        return node

    def count(self, tensor: Tensor) -> SymInt | int:
        """The value of an integer tensor with one element, 0 or more, as a symbolic size."""
        reason = "an integer read from a tensor"
        return self.island(_carry_count, tensor, name="item", reason=reason, pure=True).shape[0]

    def island(self, fn: Callable[..., Any], *args: Any, name: str, reason: str, pure: bool = False) -> Any:
        """Record that ``fn(*args)`` runs eagerly; the sizes of its results depend on data.

        Args:
            fn: called with real tensors and ints; returns a tensor or a sequence of tensors.
            args: fake tensors, symbolic or plain numbers.
            name, reason: shown to the user.
            pure: the results depend on the operands alone, so that they may be kept for another call with the same.

        Returns:
            Fake tensors in the structure that ``fn`` returns (a list for a sequence).
        """
        args = tuple(self._as_fake(x) if isinstance(x, Tensor) else x for x in args)
        operands = self._operand(args)
        island = Island(fn, name, reason, pure=pure)
        node = self.graph.call_function(island, operands)
        node.meta["writes"] = not pure  # to who knows what, so it runs even if its results are not used
        self._name_node(node)
        real = [self._real_operand(operand, arg) for operand, arg in zip(operands, args, strict=True)]
        with self.on_real(), torch.set_grad_enabled(torch.is_grad_enabled()):
            out = fn(*real)
            results = [out] if isinstance(out, Tensor) else list(out)
            single = isinstance(out, Tensor)
            self.example.set(node, out.detach() if single else [x.detach() for x in results])
        shapes = [self._island_shape(x, f"{node.name}_{i}", island, args, real) for i, x in enumerate(results)]
        fakes = [self._empty([size for size, _ in shape], x) for shape, x in zip(shapes, results, strict=True)]
        island.shapes = tuple(tuple(expected for _, expected in shape) for shape in shapes)
        self.islands.append(island)
        self.bind(fakes[0] if single else fakes, node)
        return fakes[0] if single else fakes

    @contextmanager
    def on_real(self) -> Iterator[None]:
        """Run code on real tensors, unrecorded."""
        outer, self.suspended = self.suspended, True
        try:
            with real_tensors():
                yield
        finally:
            self.suspended = outer

    def _island_shape(self, result: Tensor, name: str, island: Island, args: Any, real: Any) -> list[tuple[Any, Any]]:
        """Size and expectation (see :attr:`Island.shapes`) of each axis of an island's result.

        What a module returns has rows for the nodes or edges of its arguments: sizes that are equal in the example are
        taken to be equal, and checked when the island runs. The results of other islands have sizes of their own.
        """
        known = {}
        if not island.pure:
            for i, (arg, value) in reversed(list(enumerate(zip(args, real, strict=True)))):
                for axis, size in reversed(list(enumerate(arg.shape if isinstance(arg, Tensor) else ()))):
                    if isinstance(size, SymInt):
                        known[value.shape[axis]] = size, (i, axis)
        dynamic = dynamic_axes(result)
        shape: list[tuple[Any, Any]] = []
        for axis, size in enumerate(result.shape):
            if size in known:
                shape.append(known[size])
            elif axis in dynamic:
                exact = island.fn is _carry_count
                shape.append((self.sizes.data_dependent_symbol(size, f"{name}_{axis}", exact), None))
            else:
                shape.append((size, size))
        return shape

    def _real_operand(self, operand: Any, arg: Any) -> Any:
        """A copy, because an island runs again in the call that follows and may write to its operands."""
        value = self.example.value(operand)
        if not isinstance(value, Tensor):
            return value
        with real_tensors():
            # No leaf of autograd, which an island could not write to.
            return value.detach().requires_grad_(arg.requires_grad and torch.is_grad_enabled()).clone()

    def _eagerly(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Record a torch call as an island; any change in place would be lost, so there must be none."""
        closed = Closed(func, args, kwargs)
        if closed.__name__.endswith("_"):
            raise CaptureError(f"{closed.__name__} changes a tensor in place, in a way that depends on data")
        reason = "the size of the result depends on data"
        out = self.island(closed, *closed.operands, name=closed.__name__, reason=reason, pure=True)
        return tuple(out) if isinstance(out, list) else out

    def _bind(self, tensor: Tensor, node: fx.Node) -> None:
        node.meta["val"] = tensor
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)
        self.sizes.bind(tensor, node)

    def _name_node(self, node: fx.Node) -> None:
        node.meta["custom"] = {"gqc": {"id": self._count, **self.describe()}}
        self._count += 1

    def _as_fake(self, tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self._leaf(tensor)

    def _operand(self, arg: Any) -> Any:
        if isinstance(arg, Tensor):
            return self.node_of(arg)
        if isinstance(arg, (SymInt, SymFloat, SymBool)):
            return self.sizes.node(arg)
        if isinstance(arg, (list, tuple)):
            items = [self._operand(x) for x in arg]
            return type(arg)(*items) if hasattr(arg, "_fields") else tuple(items) if isinstance(arg, tuple) else items
        if isinstance(arg, dict):
            return {key: self._operand(value) for key, value in arg.items()}
        if isinstance(arg, slice):
            return slice(self._operand(arg.start), self._operand(arg.stop), self._operand(arg.step))
        if isinstance(arg, torch.Generator):
            raise CaptureError("random numbers are drawn from a generator of its own; use torch's default generator")
        return arg.item() if isinstance(arg, np.generic) else arg


def _carry_count(tensor: Tensor) -> Tensor:
    """An integer as the size of a tensor without elements."""
    return tensor.new_empty((int(tensor), 0))


def is_capturing() -> bool:
    """Whether a model is being recorded in this thread."""
    return isinstance(_get_current_function_mode(), Tracer)
