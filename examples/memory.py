"""How much memory a forward pass keeps for the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def saved_bytes(forward: Callable[[], Tensor], exist: Iterable[Tensor] = ()) -> int:
    """Bytes of the activations that autograd keeps after ``forward``, each storage counted once.

    Parameters, inputs and graph structure are saved too but exist anyway; they are told from activations by running
    ``forward`` twice and keeping both results alive: only what is not shared between the two belongs to one pass.

    Args:
        forward: may take other inputs the second time, so that what it computes from them is counted.
        exist: inputs of the second time that are not those of the first.
    """
    known = {x.untyped_storage().data_ptr() for x in exist}
    first, _first_output = _saved_storages(forward)
    second, _second_output = _saved_storages(forward)
    return sum(size for address, size in second.items() if address not in first and address not in known)


def _saved_storages(forward: Callable[[], Tensor]) -> tuple[dict[int, int], Tensor]:
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = forward()
    return storages, output
