"""Guesses of a largest magnitude, by what it was when the same memory was quantized the last times.

Node features are the same tensor in every step. To quantize them takes one pass over memory for their largest magnitude
and another to round them. A kernel that is given a guess rounds by it and looks for the largest magnitude in the same
pass; where both agree the result is that of two passes, bit for bit, and where they do not it begins again. So a tensor
that was written to costs time and never a wrong value.
"""

from __future__ import annotations

import ctypes
import math
from collections import OrderedDict
from collections.abc import Hashable

FEWEST_ELEMENTS = 1 << 18
"""Smaller tensors lie in a cache, where a second pass is short beside the call."""

_MOST = 256


class Guess:
    """What is known of one tensor.

    Attributes:
        address: of a float32 in which a kernel finds the guess, NaN for none, and leaves the largest magnitude.
    """

    def __init__(self) -> None:
        self._value = ctypes.c_float(math.nan)
        self._last, self._repeats = math.nan, False
        self.address = ctypes.addressof(self._value)

    def ask(self) -> int:
        """Write the guess, one only if the last two calls found the same; gives the address."""
        self._value.value = self._last if self._repeats else math.nan
        return self.address

    def learn(self) -> None:
        """Read what a kernel found."""
        found = self._value.value
        self._repeats = found == self._last
        self._last = found


class LastAbsmax:
    """The guesses of the last tensors that were quantized.

    Two threads that quantize one tensor at once may get one another's guesses; a kernel takes none for true.
    """

    def __init__(self) -> None:
        self._guesses: OrderedDict[Hashable, Guess] = OrderedDict()

    def of(self, *key: Hashable) -> Guess:
        """The guess for what is known by a key, such as an address and a size."""
        guess = self._guesses.setdefault(key, Guess())
        while len(self._guesses) > _MOST:
            self._guesses.popitem(last=False)
        return guess


LAST_ABSMAX = LastAbsmax()
