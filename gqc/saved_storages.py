"""What autograd keeps between a forward and its backward."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class _Packed:
    """What autograd holds in place of a saved tensor, and nobody else does."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@dataclass
class SavedStorages:
    """The memory that was saved inside a context of :func:`watched`.

    Attributes:
        known: addresses of memory that exists anyway, which does not count; more may be added.
    """

    known: set[int]
    _packed: list[weakref.ref[_Packed]] = field(default_factory=list)

    def __len__(self) -> int:
        """How many tensors have been saved so far."""
        return len(self._packed)

    def since(self, start: int) -> list[Tensor]:
        """What is saved at this moment, in the order of saving, without the tensors that were the first ``start``."""
        packed = [reference() for reference in self._packed[start:]]
        return [p.tensor for p in packed if p is not None]

    def nbytes(self) -> int:
        """Bytes of the storages that are saved at this moment, each counted once."""
        storages = {address(tensor): tensor.untyped_storage().nbytes() for tensor in self.since(0)}
        return sum(nbytes for at, nbytes in storages.items() if at not in self.known)


@contextmanager
def watched(known: set[int]) -> Iterator[SavedStorages]:
    """See what autograd saves inside the context."""
    saved = SavedStorages(known)

    def pack(tensor: Tensor) -> _Packed:
        packed = _Packed(tensor)
        saved._packed.append(weakref.ref(packed))
        return packed

    with saved_tensors_hooks(pack, lambda packed: packed.tensor):
        yield saved


def address(tensor: Tensor) -> int:
    """Where the memory of a tensor begins, the same for all its views."""
    return tensor.untyped_storage().data_ptr()
