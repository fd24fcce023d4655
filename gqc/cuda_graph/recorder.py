"""Recording work of a device and replaying it: the one place where torch's CUDA graphs are used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_RECORDING = threading.Lock()
"""torch allows one recording at a time in a process."""


class Graph(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Start it on the current stream, on the addresses and with the numbers that the recording saw."""


class Recorder(Protocol):
    """Records work that takes its memory from one pool.

    What is recorded does not run. Tensors made meanwhile lie in the pool: those that are still referenced at the end of
    the recording keep their memory to themselves, that of the others serves later recordings too. So a replay
    overwrites what later recordings of the same pool have made, but nothing of earlier ones.
    """

    def record(self, run: Callable[[], T]) -> tuple[Graph, T]:
        """Record what ``run`` does and return what it returns: tensors without values until the replay.

        Raises:
            RuntimeError: it does what cannot be recorded, such as waiting for the device, or memory runs out.
        """

    def using(self, memory: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Replays inside the context, and what it does with ``memory``, follow those of earlier contexts.

        Args:
            memory: tensors that do not lie in the pool and are read or written here.
        """


def recorder_for(device: torch.device) -> Recorder | None:
    """A recorder with a new pool, ``None`` where there are no CUDA graphs."""
    return CudaRecorder(device) if device.type == "cuda" else None


def is_recording(device: torch.device) -> bool:
    """Whether the current stream is being recorded, by whomever."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class CudaRecorder:
    """A :class:`Recorder` of one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # torch.cuda.graph's own is one for all GPUs
        self._used_on: torch.cuda.Stream | None = None
        self._done = torch.cuda.Event()

    def record(self, run: Callable[[], T]) -> tuple[Graph, T]:
        graph = torch.cuda.CUDAGraph()
        # Of other threads only what disturbs this recording is an error, not an allocation of theirs.
        how = {"pool": self._pool, "stream": self._stream, "capture_error_mode": "thread_local"}
        with _RECORDING, torch.cuda.device(self._device), _undisturbed(), torch.cuda.graph(graph, **how):
            result = run()
        return graph, result

    @contextmanager
    def using(self, memory: Sequence[Tensor]) -> Iterator[None]:
        stream = torch.cuda.current_stream(self._device)
        if self._used_on is not None and stream != self._used_on:
            stream.wait_event(self._done)
            for tensor in memory:
                tensor.record_stream(stream)
        try:
            yield
        finally:
            self._done.record(stream)
            self._used_on = stream


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let cuBLAS take its workspace from the recording's pool, and put the current stream back.

    torch keeps a workspace for each stream. A recording would bake in the one that it finds, which dies when somebody
    clears it or, since torch 2.12, when another graph of the same stream does; and a later recording would find that
    of this one. Where a recording fails, ``torch.cuda.graph`` leaves its stream as the current one.
    """
    stream = torch.cuda.current_stream()
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.set_stream(stream)
