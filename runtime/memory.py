"""Results that are remembered by the identity of the tensors from which they were computed."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch import SymInt, Tensor


class ByIdentity:
    """Remembers the last results of a function of integer tensors and numbers.

    A result holds while the tensors are the same objects in the same version; it is dropped when one of them dies.
    A view (``edge_index[0]``) may be another object if it shows the same part of the same tensor.
    Tensors made in inference mode have no version, and those of a trace no numbers as sizes or no values: nothing is
    remembered for them.
    """

    def __init__(self, fn: Callable[..., Any], capacity: int = 8) -> None:
        self._fn = fn
        self._capacity = capacity
        self._results: OrderedDict[Any, tuple[list[weakref.ref[Tensor]], Any]] = OrderedDict()

    def __call__(self, *args: Any) -> Any:
        key: list[Any] = []
        owners = []
        for x in args:
            if isinstance(x, Tensor):
                if x.is_inference() or any(isinstance(length, SymInt) for length in x.size()):
                    return self._fn(*args)
                owner = _owner(x)
                owners.append(owner)
                key.append((id(owner), x._version, x.dtype, x.storage_offset(), x.size(), x.stride()))
            else:
                key.append(x)
        signature = tuple(key)
        hit = self._results.get(signature)
        if hit is not None and all(ref() is not None for ref in hit[0]):
            return hit[1]
        result = self._fn(*args)
        made = result if isinstance(result, tuple | list) else (result,)
        if any(isinstance(x, Tensor) and type(x) is not Tensor for x in made):
            return result
        results = self._results

        def forget(_: Any) -> None:
            results.pop(signature, None)

        results[signature] = ([weakref.ref(x, forget) for x in owners], result)
        while len(results) > self._capacity:
            results.popitem(last=False)
        return result


def _owner(x: Tensor) -> Tensor:
    """The tensor whose memory a view shows, which has the version of the view too."""
    return x._base if x._is_view() else x  # type: ignore[return-value]
