"""The halves of a stage recorded for values of given sizes at given addresses, and calls that replay them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gqc.cuda_graph.recorder import Graph, Recorder
from gqc.cuda_graph.usage import Usage
from gqc.execute import Executable

FIRST_BACKWARD = "the first backward after a recording loads kernels"
MOVED = "a value lies at another address than in the call before"


@dataclass(frozen=True)
class _PartOf:
    """A result of the forward that is a value or a view of one, found again in the values of another call.

    Nothing of the recorded call's values is kept, so that the caller can free them.
    """

    index: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def of(self, values: Sequence[Any]) -> Tensor:
        value: Tensor = values[self.index]
        if (self.size, self.stride, self.offset) == (value.size(), value.stride(), 0):
            return value
        return value.as_strided(self.size, self.stride, value.storage_offset() + self.offset)


class Capture:
    """Graphs of the forward half and, once a backward has come, of the backward half.

    The forward graph reads values where they stood when it was recorded; some are copied to memory of the capture
    first. What the forward saves stays in the capture's pool, and the backward graph reads it there. Outputs and
    gradients are given away as copies: they are small beside what a step reads, and the caller may keep them, change
    them or accumulate into them while the next replay writes to the pool.

    Args:
        run: what is recorded.
        recorder: whose pool serves this capture alone, since what a forward saves must survive the replays of others.
        values: the arguments of a call; nothing is computed with them.
        copied: positions of the values that are copied, because the next call has them at another address.
        written: positions of those that the forward changes.

    Raises:
        RuntimeError: the forward half cannot be recorded.
    """

    def __init__(
        self, run: Executable, recorder: Recorder, values: Sequence[Any], copied: Set[int], written: Set[int]
    ) -> None:
        self._run = run
        self._recorder = recorder
        self._written = written
        self._copied = {i: values[i].detach().clone() for i in sorted(copied)}
        self._seed: Tensor | None = None
        if run.seed_device is not None and not run.seed.counts_on(run.seed_device):
            self._seed = torch.empty(2, dtype=torch.int64, device=run.seed_device)
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            self._forward, results = recorder.record(lambda: run.forward(self._arguments(values)))
        self._results = [_found_again(result, values, copied) for result in results]
        self._tangents: list[Tensor] = []
        self._gradients: list[Tensor | None] = []
        self._addresses: list[int] = []
        self._backward: Graph | None = None
        self._warm = False
        self._call: Callable[[], Call | None] = lambda: None

    def call(self, usage: Usage, failed: Callable[[RuntimeError], None]) -> Call | None:
        """The next call of the stage, ``None`` while the backward of the last one may still come.

        Args:
            usage: where its replays are counted.
            failed: is told why the backward half cannot be recorded.
        """
        last = self._call()
        if last is not None and not last.is_over:
            return None
        call = Call(self, usage, failed)
        self._call = weakref.ref(call)
        return call

    def forward(self, values: Sequence[Any]) -> list[Any]:
        """What the forward half returns; outputs are copies."""
        run = self._run
        with torch.no_grad(), self._recorder.using(self._memory()):
            _copy(list(self._copied.values()), [values[i] for i in self._copied])
            if self._seed is not None:
                assert run.seed_device is not None
                self._seed.copy_(run.seed(run.seed_device))
            self._forward.replay()
            outputs = _copies(self._results[: run.num_outputs])
            results = [*outputs, *self._results[run.num_outputs :]]
            results = [result.of(values) if isinstance(result, _PartOf) else result for result in results]
        torch.autograd.graph.increment_version([values[i] for i in self._written if not values[i].is_inference()])
        return results

    def why_not_backward(self, saved: Sequence[Any], tangents: Sequence[Tensor]) -> str:
        """Record the backward half if need be; returns why it cannot be replayed now.

        Raises:
            RuntimeError: it cannot be recorded.
        """
        addresses = [value.data_ptr() for value in saved if isinstance(value, Tensor)]
        if self._backward is None:
            if not self._warm:
                self._warm = True
                return FIRST_BACKWARD
            run = self._run
            self._tangents = [tangent.clone() for tangent in tangents]
            self._backward, gradients = self._recorder.record(lambda: run.backward(list(saved), self._tangents))
            self._gradients = [gradients[i] for i in run.differentiable]
            self._addresses = addresses
        # Of a parameter whose ``.data`` was replaced since the forward, autograd gives what is there now.
        return "" if addresses == self._addresses else MOVED

    def backward(self, tangents: Sequence[Tensor]) -> list[Tensor | None]:
        """The gradients of the call whose forward was replayed last, as copies."""
        assert self._backward is not None
        run = self._run
        with self._recorder.using(self._memory()):
            _copy(self._tangents, tangents)
            self._backward.replay()
            copies = _copies(self._gradients)
        gradients: list[Tensor | None] = [None] * (max(run.differentiable, default=-1) + 1)
        for i, gradient in zip(run.differentiable, copies, strict=True):
            gradients[i] = gradient
        return gradients

    @property
    def has_backward(self) -> bool:
        return self._run.backward_half is not None

    def run_backward(self, saved: list[Any], tangents: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """The same without a graph."""
        with self._recorder.using(self._memory()):
            return self._run.backward(saved, tangents)

    def _arguments(self, values: Sequence[Any]) -> list[Any]:
        arguments = [self._copied.get(i, value) for i, value in enumerate(values)]
        run = self._run
        if run.seed_device is not None:
            arguments.append(run.seed(run.seed_device) if self._seed is None else self._seed)
        return arguments

    def _memory(self) -> list[Tensor]:
        seed = [] if self._seed is None else [self._seed]
        return [*self._copied.values(), *self._tangents, *seed]


class Call:
    """A call that replays a capture: a :class:`gqc.execute.Way`.

    Autograd's node keeps it. What its forward saved is not overwritten before the backward has run without
    ``retain_graph``, or the node is gone.

    Attributes:
        is_over: whether nothing of it is needed any more.
    """

    def __init__(self, capture: Capture, usage: Usage, failed: Callable[[RuntimeError], None]) -> None:
        self._capture = capture
        self._usage = usage
        self._failed = failed
        self.is_over = False

    def forward(self, values: Sequence[Any]) -> Sequence[Any]:
        results = self._capture.forward(values)
        self._usage.forwards += 1
        self.is_over = not self._capture.has_backward
        return results

    def backward(self, saved: list[Any], tangents: Sequence[Tensor]) -> Sequence[Tensor | None]:
        gradients = self._replayed(saved, tangents)
        if gradients is None:
            gradients = self._capture.run_backward(saved, tangents)
        self.is_over = not torch._C._autograd._get_current_graph_task_keep_graph()
        return gradients

    def _replayed(self, saved: Sequence[Any], tangents: Sequence[Tensor]) -> Sequence[Tensor | None] | None:
        """The gradients, ``None`` if the backward half is not recorded."""
        if self._usage.refusal:
            return None
        try:
            reason = self._capture.why_not_backward(saved, tangents)
        except RuntimeError as error:
            self._failed(error)
            return None
        if reason:
            self._usage.launched[reason] += 1
            return None
        self._usage.backwards += 1
        return self._capture.backward(tangents)


def _found_again(result: Any, values: Sequence[Any], copied: Set[int]) -> Any:
    """A result as a capture keeps it."""
    if not isinstance(result, Tensor) or result.numel() == 0:
        return result
    storage = result.untyped_storage().data_ptr()
    for i, value in enumerate(values):
        if i in copied or not isinstance(value, Tensor) or value.dtype != result.dtype:
            continue
        if value.untyped_storage().data_ptr() == storage:
            return _PartOf(i, result.size(), result.stride(), result.storage_offset() - value.storage_offset())
    return result


def _copies(results: Sequence[Any]) -> list[Any]:
    """Copies of the tensors in memory of their own; the rest as it is."""
    copies = [torch.empty_like(result) if isinstance(result, Tensor) else result for result in results]
    _copy(
        [copy for copy in copies if isinstance(copy, Tensor)],
        [result for result in results if isinstance(result, Tensor)],
    )
    return copies


def _copy(to: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Copy tensors with as few kernels as possible."""
    if to:
        torch._foreach_copy_(to, given)
