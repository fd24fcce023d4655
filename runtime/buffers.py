"""Memory for outputs on the CPU, used again from step to step.

A training step makes the same large tensors as the one before. malloc gives memory of this size back to the system at
once and asks for it again, and every page that is touched for the first time costs a fault: filling a fresh matrix
takes several times as long as filling one that is there. So memory of outputs is kept here and handed out again as soon
as no tensor, storage object or saved value of autograd refers to it any more.

On a GPU torch's caching allocator does the same.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, UntypedStorage

_SMALLEST = 1 << 20  # bytes; malloc itself keeps smaller blocks
_LOOSE = 1.75  # how many times larger than a request a buffer may be: less and more of them wait, each for its own size
_WASTE = 1.25  # how many times larger all buffers may be than what was in use at once
_HUGE_PAGE = 1 << 21
_MADV_HUGEPAGE = 14


class _Buffer:
    """Memory that is idle while only this object refers to it."""

    def __init__(self, nbytes: int) -> None:
        self._storage = torch.empty(nbytes, dtype=torch.uint8).untyped_storage()
        self.nbytes = nbytes
        _use_huge_pages(self._storage)
        self._own = self._references()

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(0, dtype=dtype).set_(self._storage, 0, shape)  # type: ignore[call-overload,no-any-return]

    def is_idle(self) -> bool:
        return self._references() == self._own

    def is_spoilt(self) -> bool:
        """Whether a user has resized it, or another process may read it (``Tensor.share_memory_``)."""
        return self._storage.nbytes() != self.nbytes or self._storage.is_shared()

    def _references(self) -> tuple[int, int]:
        """How many tensors and names share the memory; counted in one place, so that its own names count alike."""
        return torch._C._storage_Use_Count(self._storage._cdata), sys.getrefcount(self._storage)


class Pool:
    """Buffers that are in use or wait to be used again.

    Together they take at most 1.25 times the memory that was in use at once at some time: before a new one is made,
    those that wait the longest are freed. All methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._buffers: list[_Buffer] = []  # in the order of their last use
        self._most = 0
        self._lock = threading.Lock()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor on the CPU with undefined values, as :func:`torch.empty` gives."""
        shape = tuple(shape)
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < _SMALLEST or torch.are_deterministic_algorithms_enabled():  # torch fills new tensors then
            return torch.empty(shape, dtype=dtype)
        with self._lock:
            return self._take(nbytes).tensor(shape, dtype)

    def clear(self) -> None:
        """Free what waits, and forget how much once was in use."""
        with self._lock:
            self._buffers = [buffer for buffer in self._buffers if not buffer.is_idle()]
            self._most = 0

    def nbytes(self) -> tuple[int, int]:
        """Bytes in use and bytes that wait."""
        with self._lock:
            waiting = sum(buffer.nbytes for buffer in self._buffers if buffer.is_idle())
            return sum(buffer.nbytes for buffer in self._buffers) - waiting, waiting

    def _take(self, nbytes: int) -> _Buffer:
        best = None
        for buffer in self._buffers:
            fits = nbytes <= buffer.nbytes <= nbytes * _LOOSE and (best is None or buffer.nbytes < best.nbytes)
            if fits and buffer.is_idle():
                best = buffer
                if best.nbytes == nbytes:
                    break
        if best is not None:
            self._buffers.remove(best)
        if best is None or best.is_spoilt():
            self._make_room(nbytes)
            best = _Buffer(nbytes)
        self._buffers.append(best)
        return best

    def _make_room(self, nbytes: int) -> None:
        idle = [buffer for buffer in self._buffers if buffer.is_idle()]
        total = nbytes + sum(buffer.nbytes for buffer in self._buffers)
        self._most = max(self._most, total - sum(buffer.nbytes for buffer in idle))
        for buffer in idle:
            if total <= self._most * _WASTE:
                break
            total -= buffer.nbytes
            self._buffers.remove(buffer)


def _use_huge_pages(memory: UntypedStorage) -> None:
    """Ask for pages of 2 MiB, where the system leaves that to programs: fewer faults and cheaper random access."""
    begin = -(-memory.data_ptr() // _HUGE_PAGE) * _HUGE_PAGE
    end = (memory.data_ptr() + memory.nbytes()) // _HUGE_PAGE * _HUGE_PAGE
    if begin < end and sys.platform == "linux":
        _libc().madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_HUGEPAGE)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


POOL = Pool()
"""Of this process."""


def empty_cache() -> None:
    """Give memory that waits to be used again back to the system."""
    POOL.clear()
