"""CUDA graphs for tensors of the CPU: ops are recorded, and a replay runs them again on the same addresses.

As with CUDA, a recording leaves all values alone, a replay runs no Python of the model, and addresses are all that it
knows. What a real replay might overwrite is filled with NaN (integers: -1); reading freed memory is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

_POISON = 0xFF


@dataclass(frozen=True)
class _At:
    """A tensor as a place in one of the recorded memories."""

    memory: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class _Launch:
    op: Any
    args: Any
    kwargs: Any
    results: list[_At]


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.launches: list[_Launch] = []
        self.memories: list[torch.UntypedStorage] = []
        self.given: set[int] = set()
        self.before: dict[int, torch.UntypedStorage] = {}
        self._numbers: dict[int, int] = {}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.data_dependent_output in op.tags:
            raise RuntimeError(f"{op} waits for the device, which is not permitted while a stream is capturing")
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self._numbers:
                self.given.add(self._at(tensor).memory)
        recorded = tree_map_only(Tensor, self._at, (args, kwargs))
        for argument, value in zip(op._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tree_leaves(value):
                    self._keep(self._at(tensor).memory)
        results = op(*args, **kwargs)
        places = [self._at(x) for x in tree_leaves(results) if isinstance(x, Tensor)]
        self.launches.append(_Launch(op, *recorded, places))
        return results

    def undo(self) -> None:
        for number, before in self.before.items():
            self.memories[number].copy_(before)

    def _keep(self, number: int) -> None:
        if number in self.given:
            self.before.setdefault(number, self.memories[number].clone())

    def _at(self, tensor: Tensor) -> _At:
        storage = tensor.untyped_storage()
        number = self._numbers.setdefault(storage._cdata, len(self.memories))
        if number == len(self.memories):
            self.memories.append(storage)  # alive, so that no other memory gets its identity
        return _At(number, tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset())


class FakeGraph:
    def __init__(self, recording: _Recording, pool: list[FakeGraph]) -> None:
        recording.undo()
        self._launches = recording.launches
        self._given = recording.given
        self._memories = [StorageWeakRef(storage) for storage in recording.memories]
        self._pool = pool
        pool.append(self)

    def poison(self) -> None:
        """Fill what the graph made and somebody still holds."""
        for number, memory in enumerate(self._memories):
            storage = _alive(memory)
            if number not in self._given and storage is not None:
                storage.fill_(_POISON)

    def replay(self) -> None:
        for later in self._pool[self._pool.index(self) + 1 :]:
            later.poison()
        found: dict[int, torch.UntypedStorage] = {}
        for launch in self._launches:
            args, kwargs = tree_map_only(_At, lambda at: self._tensor(at, found), (launch.args, launch.kwargs))
            results = [x for x in tree_leaves(launch.op(*args, **kwargs)) if isinstance(x, Tensor)]
            for at, result in zip(launch.results, results, strict=True):
                if at.memory in self._given or at.memory in found:
                    continue
                held = _alive(self._memories[at.memory])
                if held is None:
                    held = result.untyped_storage()
                else:
                    held.copy_(result.untyped_storage())
                found[at.memory] = held

    def _tensor(self, at: _At, found: dict[int, torch.UntypedStorage]) -> Tensor:
        storage = found.get(at.memory)
        if storage is None:
            assert at.memory in self._given, "a replay reads what nothing has written"
            storage = _alive(self._memories[at.memory])
            assert storage is not None, "a replay reads memory that has been freed"
        return torch.empty(0, dtype=at.dtype).set_(storage, at.offset, at.size, at.stride)


def _alive(memory: StorageWeakRef) -> torch.UntypedStorage | None:
    return None if memory.expired() else torch.UntypedStorage._new_with_weak_ptr(memory.cdata)


class FakeRecorder:
    """A :class:`gqc.cuda_graph.recorder.Recorder`."""

    def __init__(self) -> None:
        self._pool: list[FakeGraph] = []

    def record(self, run: Callable[[], Any]) -> tuple[FakeGraph, Any]:
        generator = torch.get_rng_state()
        recording = _Recording()
        try:
            with recording:
                result = run()
        finally:
            torch.set_rng_state(generator)
        graph = FakeGraph(recording, self._pool)
        del recording
        graph.poison()
        return graph, result

    @contextmanager
    def using(self, memory: Sequence[Tensor]) -> Iterator[None]:
        yield
