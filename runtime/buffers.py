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

import bisect
import math
import mmap
import os
import resource
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
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # named from Python 3.11 on


@dataclass
class _Hole:
    """Free addresses of an arena.

    Attributes:
        begin, size: in bytes from the start of the arena.
        wet: how many of them, from their begin on, to the last that may have memory.
        held: how many of these have memory, at most.
    """

    begin: int
    size: int
    wet: int
    held: int


class _Arena:
    """Addresses, of which blocks are in use and the rest are holes; memory comes when they are touched.

    Raises:
        OSError, OverflowError: the system does not give so many.
    """

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        with suppress(OSError):  # the kernel may know no pages of 2 MiB: fewer faults and cheaper random access
            self.memory.madvise(mmap.MADV_HUGEPAGE)
        self.holes = [_Hole(0, size, 0, 0)]  # by address, no two side by side
        self.size = size

    def is_free(self) -> bool:
        return bool(self.holes) and self.holes[0].size == self.size

    def take(self, hole: _Hole, size: int) -> int:
        """Use the begin of a hole; returns where that is."""
        begin = hole.begin
        hole.begin, hole.size, hole.wet = begin + size, hole.size - size, max(0, hole.wet - size)
        hole.held = min(hole.held, hole.wet)
        if not hole.size:
            self.holes.remove(hole)
        return begin

    def release(self, begin: int, size: int) -> None:
        """Make a hole of a block, and one of it and the holes beside it."""
        at = bisect.bisect(self.holes, begin, key=lambda hole: hole.begin)
        self.holes.insert(at, _Hole(begin, size, size, size))
        for left, right in ((at, at + 1), (at - 1, at)):
            if left >= 0 and right < len(self.holes):
                self._join(left, right)

    def _join(self, left: int, right: int) -> None:
        first, second = self.holes[left], self.holes[right]
        if first.begin + first.size == second.begin:
            del self.holes[right]  # first: if this is interrupted, addresses are lost and not handed out twice
            first.wet = first.size + second.wet if second.wet else first.wet
            first.held += second.held
            first.size += second.size

    def dry(self) -> None:
        """Give the memory of holes back to the system."""
        for hole in self.holes:
            if hole.wet:
                self.memory.madvise(mmap.MADV_DONTNEED, hole.begin, hole.wet)
                hole.wet = hole.held = 0


class _Block:
    """Memory of an arena that is idle while only this object refers to it."""

    def __init__(self, arena: _Arena, begin: int, size: int, nbytes: int) -> None:
        self.arena, self.begin, self.size = arena, begin, size
        whole = torch.frombuffer(arena.memory, dtype=torch.uint8, count=nbytes, offset=begin)
        self._storage = whole.untyped_storage()
        self._address = self._storage.data_ptr()
        del whole
        self._own = self._references()

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(0, dtype=dtype).set_(self._storage, 0, shape)  # type: ignore[call-overload,no-any-return]

    def is_idle(self) -> bool:
        """Whether nobody uses the memory: also if the storage has moved, as for ``share_memory_``."""
        return self._references() == self._own or self._storage.data_ptr() != self._address

    def _references(self) -> tuple[int, int]:
        """How many tensors and names share the memory; counted in one place, so that its own names count alike."""
        return torch._C._storage_Use_Count(self._storage._cdata), sys.getrefcount(self._storage)


class Pool:
    """Memory that is in use or waits to be used again.

    Together it is at most 1.25 times what was in use at once at some time: before more is asked for, what waits is
    given back. All methods may be called from any thread, also by what the garbage collector runs inside of them.
    Memory is torch's where the system is not Linux, limits a process's addresses (``ulimit -v``) or refuses to reserve
    as many as the machine has memory.
    """

    def __init__(self) -> None:
        self._arenas: list[_Arena] = []
        self._blocks: list[_Block] = []
        self._in_use = self._most = 0
        self._lock = threading.RLock()
        self._is_busy = False  # in this thread, which has been interrupted by a finalizer if it calls again
        self._bypassed = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor on the CPU with undefined values, as :func:`torch.empty` gives.

        Its storage cannot change its size: ``resize_`` to more elements, an ``out=`` of fewer elements than the result
        and ``untyped_storage().resize_`` raise torch's error.
        """
        shape = tuple(shape)
        nbytes = math.prod(shape) * dtype.itemsize
        fills = torch.are_deterministic_algorithms_enabled()  # torch fills new tensors then
        if nbytes >= _SMALLEST and not fills and not self._bypassed and _has_addresses():
            with self._busy() as is_alone:
                block = self._take(nbytes) if is_alone else None
                if block:
                    return block.tensor(shape, dtype)
        return torch.empty(shape, dtype=dtype)

    @contextmanager
    def _busy(self) -> Iterator[bool]:
        """Keep other threads out; gives whether this one is not inside already."""
        with self._lock:
            if self._is_busy:
                yield False
                return
            self._is_busy = True
            try:
                yield True
            finally:
                self._is_busy = False

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
        with self._busy() as is_alone:
            if is_alone:
                self._collect()
                self._dry()
                self._drop_free_arenas()
                self._most = 0

    def nbytes(self) -> tuple[int, int]:
        """Bytes in use and bytes that wait."""
        with self._busy() as is_alone:
            if is_alone:
                self._collect()
            return self._in_use, self._waiting()

    def _waiting(self) -> int:
        return sum(hole.held for arena in self._arenas for hole in arena.holes)

    def _dry(self) -> None:
        for arena in self._arenas:
            arena.dry()

    def _drop_free_arenas(self) -> None:
        self._arenas = [arena for arena in self._arenas if not arena.is_free()]

    def _collect(self) -> None:
        """Make holes of what nobody refers to any more."""
        idle = {block for block in self._blocks if block.is_idle()}
        if not idle:
            return
        self._blocks = [block for block in self._blocks if block not in idle]
        for block in idle:
            self._in_use -= block.size
            block.arena.release(block.begin, block.size)

    def _take(self, nbytes: int) -> _Block | None:
        """A block, or ``None`` if the system gives no addresses."""
        self._collect()
        size = -(-nbytes // _PAGE) * _PAGE
        found = self._find(size) or self._new(size)
        if not found:
            return None
        arena, hole = found
        self._make_room(size, max(0, size - hole.wet))
        block = _Block(arena, arena.take(hole, size), size, nbytes)
        self._blocks.append(block)
        self._in_use += size
        return block

    def _find(self, size: int) -> tuple[_Arena, _Hole] | None:
        """The first hole with so much memory, else the first with so many addresses."""
        dry = None
        for arena in self._arenas:
            for hole in arena.holes:
                if hole.wet >= size:
                    return arena, hole
                if not dry and hole.size >= size:
                    dry = arena, hole
        return dry

    def _new(self, size: int) -> tuple[_Arena, _Hole] | None:
        self._drop_free_arenas()  # which are too small
        try:
            arena = _Arena(max(size, _memory_of_machine()))
        except (OSError, OverflowError):
            return None
        self._arenas.append(arena)
        return arena, arena.holes[0]

    def _make_room(self, size: int, more: int) -> None:
        """Give back what waits if a block of ``size`` needs ``more`` memory than may be held."""
        self._most = max(self._most, self._in_use + size)
        if more and self._in_use + self._waiting() + more > self._most * _WASTE:
            self._dry()


def _has_addresses() -> bool:
    return sys.platform == "linux" and resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def _memory_of_machine() -> int:
    return os.sysconf("SC_PHYS_PAGES") * _PAGE


POOL = Pool()
"""Of this process."""


def empty_cache() -> None:
    """Give memory that waits to be used again back to the system."""
    POOL.clear()
