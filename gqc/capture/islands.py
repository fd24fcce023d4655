"""Eager islands: the parts of a forward that are not recorded but run as plain Python on real tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import SymInt, Tensor

from gqc.errors import CaptureError

if TYPE_CHECKING:
    from gqc.capture.program import Program

_calls = threading.local()


@contextmanager
def calling(graphs: Sequence[Any]) -> Iterator[None]:
    """Makes the graph objects of the current call reachable for its islands; nests and is local to the thread."""
    outer = getattr(_calls, "graphs", None)
    _calls.graphs = graphs
    try:
        yield
    finally:
        _calls.graphs = outer


def current_graph(index: int) -> Any:
    """Graph argument ``index`` (in flattening order) of the call that is running."""
    return _calls.graphs[index]


class Island:
    """Target of a ``call_function`` node that runs eager Python, with autograd, on real tensors.

    Called with the node's arguments (tensors and ints); returns one tensor or a list of tensors, as recorded.

    Attributes:
        fn: what runs.
        name: the module path or function name shown to the user.
        reason: why it is not part of the captured graph.
        shapes: what the rest of the graph assumes of the results: a size, the operand and axis that has the same size,
            or ``None`` for any size.
        pure: its results depend on its operands alone (no parameters, no random numbers, no graph).
    """

    __module__ = __name__

    def __init__(self, fn: Callable[..., Any], name: str, reason: str, *, pure: bool = False) -> None:
        self.fn = fn
        self.name = name
        self.reason = reason
        self.pure = pure
        self.shapes: tuple[tuple[int | tuple[int, int] | None, ...], ...] = ()
        self.__name__ = self.__qualname__ = "island_" + "".join(c if c.isalnum() else "_" for c in name)

    def __call__(self, *args: Any) -> Tensor | list[Tensor]:
        out = self.fn(*args)
        results = [out] if isinstance(out, Tensor) else list(out)
        for result, shape in zip(results, self.shapes, strict=False):
            expected = [args[size[0]].shape[size[1]] if isinstance(size, tuple) else size for size in shape]
            if any(want is not None and want != got for want, got in zip(expected, result.shape, strict=True)):
                raise CaptureError(
                    f"it runs eagerly and returned shape {tuple(result.shape)}, where the captured call had "
                    f"{tuple('any' if size is None else size for size in expected)}",
                    module=self.name,
                )
        return out if isinstance(out, Tensor) else results

    def __repr__(self) -> str:
        return f"Island({self.name!r}, {self.reason!r})"


class StructureIsland(Island):
    """What depends on integer arguments only, in front of the captured graph; remembers its results.

    Attributes:
        program: what it computes from the tensors and sizes that it is called with.
    """

    __module__ = __name__

    def __init__(self, program: Program, fn: Callable[..., Any], name: str, reason: str) -> None:
        super().__init__(fn, name, reason, pure=True)
        self.program = program


class FunctionCall:
    """Applies a ``torch.autograd.Function``; its own backward is what autograd runs."""

    __module__ = __name__

    def __init__(self, function: type[torch.autograd.Function], apply: Callable[..., Any]) -> None:
        self.function = function
        self._apply = apply.__get__(None, function)
        self.__name__ = self.__qualname__ = function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._apply(*args, **kwargs)


class Closed:
    """A function whose arguments are fixed except for tensors and sizes; called with these in their order."""

    __module__ = __name__

    def __init__(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.fn = fn
        self._leaves, self._spec = pytree.tree_flatten((args, kwargs))
        self._open = [i for i, x in enumerate(self._leaves) if isinstance(x, (Tensor, SymInt))]
        self.operands = [self._leaves[i] for i in self._open]
        for i in self._open:
            self._leaves[i] = None
        self.__name__ = self.__qualname__ = getattr(fn, "__name__", "call")

    def __call__(self, *operands: Any) -> Any:
        args, kwargs = self.arguments(operands)
        return self.fn(*args, **kwargs)

    def arguments(self, operands: Sequence[Any]) -> Any:
        """Arguments and keyword arguments of the function for these operands."""
        leaves = list(self._leaves)
        for i, operand in zip(self._open, operands, strict=True):
            leaves[i] = operand
        return pytree.tree_unflatten(leaves, self._spec)


class AutocastCall:
    """Runs a function under the autocast state in which it was recorded, whatever the state is when it is called."""

    __module__ = __name__

    def __init__(self, fn: Callable[..., Any], name: str, dtypes: Sequence[tuple[str, torch.dtype]]) -> None:
        self.fn = fn
        self.dtypes = dtypes  # by type of device
        self.__name__ = self.__qualname__ = f"autocast_{name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for device, dtype in self.dtypes:
                stack.enter_context(torch.autocast(device, dtype, cache_enabled=False))
            return self.fn(*args, **kwargs)
