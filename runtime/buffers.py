"""Memory for outputs on the CPU, used again from step to step.

A training step makes the same large tensors as the one before. malloc gives memory of this size back to the system at
once and asks for it again, and every page that is touched for the first time costs a fault: filling a fresh matrix
takes several times as long as filling one that is there. So memory of outputs is kept here and handed out again as soon
as no tensor, storage object or saved value of autograd refers to it any more.

What is free is one space, not a list of buffers each for its own size: a freed matrix in float32 holds two in bfloat16,
neighbours that are free make room for a larger one. So a step keeps little more than it has in use at once.

On a GPU torch's caching allocator does the same.
"""

from __future__ import annotations

import math
import mmap
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch
from torch import Tensor

_SMALLEST = 1 << 20  # bytes; malloc itself keeps smaller blocks
_WASTE = 1.25  # how many times larger all memory may be than what was in use at once
_PAGE = mmap.PAGESIZE
_ARENA = 1 << 32  # bytes of addresses that are reserved at a time; memory comes when it is touched


@dataclass
class _Hole:
    """Free addresses of an arena.

    Attributes:
        begin, size: in bytes from the start of the arena.
        wet: how many of them, at their begin, may have memory.
    """

    begin: int
    size: int
    wet: int


class _Arena:
    """Addresses, of which blocks are in use and the rest are holes.

    Raises:
        OSError: the system does not give so many.
    """

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # the kernel may know no pages of 2 MiB: fewer faults and cheaper random access
            self.memory.madvise(mmap.MADV_HUGEPAGE)
        self.holes = [_Hole(0, size, 0)]  # by address, no two side by side
        self.size = size

    def is_free(self) -> bool:
        return self.holes[0].size == self.size if self.holes else False

    def wet(self) -> int:
        return sum(hole.wet for hole in self.holes)

    def take(self, hole: _Hole, size: int) -> int:
        """Use the begin of a hole; returns where that is."""
        begin = hole.begin
        hole.begin, hole.size, hole.wet = begin + size, hole.size - size, max(0, hole.wet - size)
        if not hole.size:
            self.holes.remove(hole)
        return begin

    def release(self, begin: int, size: int) -> None:
        """Make a hole of a block, and one of it and the holes beside it."""
        at = next((i for i, hole in enumerate(self.holes) if hole.begin > begin), len(self.holes))
        self.holes.insert(at, _Hole(begin, size, size))
        for left, right in ((at, at + 1), (at - 1, at)):
            if left >= 0 and right < len(self.holes):
                self._join(left, right)

    def _join(self, left: int, right: int) -> None:
        first, second = self.holes[left], self.holes[right]
        if first.begin + first.size == second.begin:
            first.wet = first.size + second.wet if second.wet else first.wet
            first.size += second.size
            del self.holes[right]

    def dry(self) -> None:
        """Give the memory of holes back to the system."""
        for hole in self.holes:
            if hole.wet:
                self.memory.madvise(mmap.MADV_DONTNEED, hole.begin, hole.wet)
                hole.wet = 0


class _Block:
    """Memory of an arena that is idle while only this object refers to it."""

    def __init__(self, arena: _Arena, begin: int, size: int, nbytes: int) -> None:
        self.arena, self.begin, self.size = arena, begin, size
        whole = torch.frombuffer(arena.memory, dtype=torch.uint8, count=nbytes, offset=begin)
        self._storage = whole.untyped_storage()
        del whole
        self._own = self._references()

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(0, dtype=dtype).set_(self._storage, 0, shape)  # type: ignore[call-overload,no-any-return]

    def is_idle(self) -> bool:
        return self._references() == self._own

    def _references(self) -> tuple[int, int]:
        """How many tensors and names share the memory; counted in one place, so that its own names count alike."""
        return torch._C._storage_Use_Count(self._storage._cdata), sys.getrefcount(self._storage)


class Pool:
    """Memory that is in use or waits to be used again.

    Together it is at most 1.25 times what was in use at once at some time: before more is asked for, what waits is
    given back. All methods may be called from any thread. Only on Linux; elsewhere memory is torch's.
    """

    def __init__(self) -> None:
        self._arenas: list[_Arena] = []
        self._blocks: list[_Block] = []
        self._most = 0
        self._lock = threading.Lock()
        self._bypassed = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor on the CPU with undefined values, as :func:`torch.empty` gives.

        Its storage cannot grow: ``resize_`` to more elements raises torch's error.
        """
        shape = tuple(shape)
        nbytes = math.prod(shape) * dtype.itemsize
        fills = torch.are_deterministic_algorithms_enabled()  # torch fills new tensors then
        if nbytes < _SMALLEST or fills or self._bypassed or sys.platform != "linux":
            return torch.empty(shape, dtype=dtype)
        with self._lock:
            return self._take(nbytes).tensor(shape, dtype)

    @contextmanager
    def bypassed(self) -> Iterator[None]:
        """Take memory from torch inside the context, whose allocator then tells who asked for how much."""
        self._bypassed += 1
        try:
            yield
        finally:
            self._bypassed -= 1

    def clear(self) -> None:
        """Free what waits, and forget how much once was in use."""
        with self._lock:
            self._collect()
            for arena in self._arenas:
                arena.dry()
            self._arenas = [arena for arena in self._arenas if not arena.is_free()]
            self._most = 0

    def nbytes(self) -> tuple[int, int]:
        """Bytes in use and bytes that wait."""
        with self._lock:
            self._collect()
            return self._in_use(), self._waiting()

    def _in_use(self) -> int:
        return sum(block.size for block in self._blocks)

    def _waiting(self) -> int:
        return sum(arena.wet() for arena in self._arenas)

    def _collect(self) -> None:
        """Make holes of what nobody refers to any more."""
        idle = {block for block in self._blocks if block.is_idle()}
        self._blocks = [block for block in self._blocks if block not in idle]
        for block in idle:
            block.arena.release(block.begin, block.size)

    def _take(self, nbytes: int) -> _Block:
        self._collect()
        size = -(-nbytes // _PAGE) * _PAGE
        fitting = [(arena, hole) for arena in self._arenas for hole in arena.holes if hole.size >= size]
        arena, hole = next(((a, h) for a, h in fitting if h.wet >= size), fitting[0] if fitting else self._new(size))
        self._make_room(size, max(0, size - hole.wet))
        block = _Block(arena, arena.take(hole, size), size, nbytes)
        self._blocks.append(block)
        return block

    def _new(self, size: int) -> tuple[_Arena, _Hole]:
        try:
            arena = _Arena(max(size, _ARENA))
        except OSError:  # fewer addresses than that are allowed
            arena = _Arena(size)
        self._arenas.append(arena)
        return arena, arena.holes[0]

    def _make_room(self, size: int, more: int) -> None:
        """Give back what waits if a block of ``size`` needs ``more`` memory than may be held."""
        in_use = self._in_use() + size
        self._most = max(self._most, in_use)
        if more and self._in_use() + self._waiting() + more > self._most * _WASTE:
            for arena in self._arenas:
                arena.dry()


POOL = Pool()
"""Of this process."""


def empty_cache() -> None:
    """Give memory that waits to be used again back to the system."""
    POOL.clear()
