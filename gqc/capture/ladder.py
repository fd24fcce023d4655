"""The whole forward as one graph if possible, else split around eager islands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gqc.capture.attributes import preserved
from gqc.capture.graphs import adapter_of
from gqc.capture.inputs import substitute
from gqc.capture.modules import StateChange, location_of
from gqc.capture.record import Captured, Recording
from gqc.errors import CaptureError, InputError, LibraryError
from gqc.generators import generators_kept

_MAX_ATTEMPTS = 32


def capture(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    forward: Callable[..., Any] | None = None,
    first: bool = False,
    messages: bool = True,
) -> Captured:
    """Record ``model``'s forward on a real call.

    Args:
        model: its parameters and buffers are named by the graph's get_attr nodes.
        args, kwargs: a call; nothing in it is changed.
        forward: what is recorded, by default ``model.forward``.
        first: the model has never run on such a call, and what it does then it may do once: leave it alone.
        messages: put graph ops in the place of gathers and scatters along edges.

    Returns:
        The captured graph. A submodule that cannot be recorded is an eager island in it.

    Raises:
        CaptureError: the model itself (not one of its submodules) cannot be recorded.
        StateChange: it is the first call, and it changes what a module holds.
        InputError: an argument cannot be captured.
        Exception: what the model raises when it runs eagerly on this call, unchanged.
    """
    kwargs = kwargs or {}
    forward = forward or model.forward
    if any(map(torch.nn.parameter.is_lazy, (*model.parameters(), *model.buffers()))):
        if first:
            raise StateChange("lazy modules take their shape from the first call")
        with torch.no_grad():
            forward(*args, **kwargs)
    islands: dict[str, str] = {}
    exact = False
    for attempt in range(_MAX_ATTEMPTS):
        recording = Recording(model, forward, args, kwargs, islands, exact, messages)
        try:
            captured = recording.run()
            stale = captured.guards.check(recording.call.flat, recording.call.strided)
        except (InputError, LibraryError):
            raise
        except Exception as error:
            if first and isinstance(error, StateChange):
                raise
            if attempt == 0 and not isinstance(error, CaptureError) and not recording.call.moves_graphs:
                _run_eagerly(model, forward, args, kwargs)
            path = _failed_module(error, recording.watch.failed, islands)
            reason = error.reason if isinstance(error, CaptureError) else _in_one_line(error)
            if not path:
                raise _at_root(error, reason, recording.watch.failed) from error
            islands[path] = reason
            continue
        if stale is None:
            return captured
        if exact:
            raise CaptureError(f"the capture does not hold for the call that it was made from ({stale})")
        exact = True
    raise CaptureError(f"{len(islands)} submodules cannot be recorded")


def _failed_module(error: Exception, stack: list[str], islands: dict[str, str]) -> str:
    """The innermost module that was running and is no island yet, ``""`` if that is the model itself."""
    if isinstance(error, CaptureError) and error.module and error.module not in islands:
        return error.module
    return next((path for path in reversed(stack) if path not in islands), "")


def _in_one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _at_root(error: Exception, reason: str, stack: list[str]) -> CaptureError:
    if isinstance(error, CaptureError) and error.location:
        return error
    trace, location = error.__traceback__, ""
    while trace is not None:
        location = location_of(trace.tb_frame) or location
        trace = trace.tb_next
    return CaptureError(reason, module=stack[-1] if stack else "", location=location)


def _run_eagerly(model: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Raise what the model itself raises on this call; leaves no trace in the model, the graphs or the generators."""

    def local(graph: Any) -> Any:
        adapter = adapter_of(graph)
        assert adapter is not None
        return adapter.local(graph)

    copied_args, copied_kwargs = substitute((args, kwargs), torch.clone, local)
    with preserved(model), generators_kept():
        forward(*copied_args, **copied_kwargs)
