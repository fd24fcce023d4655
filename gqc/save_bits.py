"""In how many bits activations are saved for the backward: what ``Policy.save_bits`` means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from typing import ClassVar

from gqc.errors import PolicyError
from gqc.layer_bits import AUTO, EXACT, Bits, LayerBits

SAVED_WIDTHS = (1, 2, 4, 8)
ROUNDINGS = ("stochastic", "nearest")
STATS = ("bf16", "fp32")
GROUP_MULTIPLE = 8
"""A group is a multiple of so many values: those of a byte in 1 bit."""

DEFAULT_MIN_SIZE = 4096
_EXPECTED = f"expected one of {', '.join(map(str, SAVED_WIDTHS))}"


class LayerSaveBits(LayerBits):
    """Widths of saved activations by module: a :class:`gqc.layer_bits.LayerBits` in which what no entry covers stays.

    Attributes:
        entries: pairs of a path or pattern and 1, 2, 4, 8 or 32, which leaves the activations of a module as they are.
    """

    option: ClassVar[str] = "Policy.save_bits"
    default: ClassVar[Bits] = EXACT

    @staticmethod
    def checked(field: str, bits: object) -> Bits:
        if _is_one_of(bits, (*SAVED_WIDTHS, EXACT)):
            return int(bits)  # type: ignore[call-overload,no-any-return]
        raise PolicyError(f"{field}={bits!r}: {_EXPECTED}, or {EXACT}, which leaves the module's activations")


@dataclass(frozen=True)
class SaveBits:
    """How activations are compressed between forward and backward (TinyKG, RecSys'22; EXACT, ICLR'22; ActNN, ICML'21).

    Attributes:
        bits: 1, 2, 4 or 8; ``"auto"`` gives each tensor the width that fits ``budget``; a mapping gives modules widths
            of their own, by path or pattern: ``{"conv1": 2, "*": 8}``, where 32 leaves a module as it is, and so does
            no entry. A tensor is that of the modules whose backward reads it, in the width of the widest.
        group: values of a row that share the least element and the range, a multiple of 8 (ActNN: 256); ``None``: a
            row, which is the last axis (TinyKG). Of tensors with short rows, groups of 256 reach over rows.
        stats: what the least element and the range are kept in: ``"bf16"`` or ``"fp32"``.
        rounding: ``"stochastic"`` (unbiased) or ``"nearest"``.
        project: fraction of the width of a row that a random projection keeps before compression (EXACT); ``None``
            projects nothing.
        budget: with ``bits="auto"``, for all that is saved: bytes, an int, or a fraction of what full precision saves,
            a float below 1; ``None``: as much as 2 bits for each tensor would take (:mod:`gqc.save_rule`).
        min_size: a tensor of fewer elements stays as it is.
    """

    bits: int | str | Mapping[str, int] | LayerSaveBits
    group: int | None = None
    stats: str = "bf16"
    rounding: str = "stochastic"
    project: float | None = None
    budget: int | float | None = None
    min_size: int = DEFAULT_MIN_SIZE

    def __post_init__(self) -> None:
        if isinstance(self.bits, Mapping):
            self._set("bits", LayerSaveBits.of(self.bits))
        elif not isinstance(self.bits, LayerSaveBits) and self.bits != AUTO:
            if not _is_one_of(self.bits, SAVED_WIDTHS):
                raise PolicyError(f"SaveBits.bits={self.bits!r}: {_EXPECTED}, {AUTO!r} or a mapping by module")
            self._set("bits", int(self.bits))  # type: ignore[call-overload]
        if self.group is not None:
            if not _is_integer(self.group) or self.group <= 0 or self.group % GROUP_MULTIPLE:
                raise PolicyError(f"SaveBits.group={self.group!r}: expected None or a multiple of {GROUP_MULTIPLE}")
            self._set("group", int(self.group))
        self._check("stats", STATS)
        self._check("rounding", ROUNDINGS)
        if self.project is not None:
            if not _is_number(self.project) or not 0 < self.project <= 1:
                raise PolicyError(
                    f"SaveBits.project={self.project!r}: expected None or a fraction, above 0 and up to 1"
                )
            self._set("project", float(self.project))
        if not _is_integer(self.min_size) or self.min_size < 0:
            raise PolicyError(f"SaveBits.min_size={self.min_size!r}: expected a number of elements, 0 or more")
        self._set("min_size", int(self.min_size))
        self._check_budget()

    def _check_budget(self) -> None:
        budget = self.budget
        if budget is not None and self.bits != AUTO:
            raise PolicyError(
                f"SaveBits(bits={self.bits!r}, budget={budget!r}): is for bits='auto': bytes, or a fraction of what "
                f"full precision saves, as in SaveBits({AUTO!r}, budget=0.1)"
            )
        if budget is not None:
            if not (_is_integer(budget) and budget > 0) and not (_is_number(budget) and 0 < budget < 1):
                raise PolicyError(
                    f"SaveBits.budget={budget!r}: expected bytes, an integer above 0, or a fraction between 0 and 1"
                )
            self._set("budget", int(budget) if _is_integer(budget) else float(budget))

    @classmethod
    def of(cls, given: object) -> SaveBits:
        """What a value of ``Policy.save_bits`` stands for.

        Raises:
            PolicyError: it is none.
        """
        if isinstance(given, cls):
            return given
        if isinstance(given, str) and given == AUTO:
            return cls(AUTO)
        if _is_one_of(given, SAVED_WIDTHS) or isinstance(given, Mapping | LayerSaveBits):
            return cls(given)  # type: ignore[arg-type]
        raise PolicyError(
            f"Policy.save_bits={given!r}: {_EXPECTED}, {AUTO!r}, a mapping by module, a gqc.SaveBits or None"
        )

    def width(self, module: str) -> tuple[str | None, int]:
        """The entry that covers a module, ``None`` without entries, and the width of its activations, 32: as they are.

        With ``bits="auto"``, which knows no modules, 8.
        """
        if isinstance(self.bits, LayerSaveBits):
            return self.bits.find(module)  # type: ignore[return-value]
        return None, SAVED_WIDTHS[-1] if self.bits == AUTO else self.bits  # type: ignore[return-value]

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _check(self, field: str, allowed: tuple[str, ...]) -> None:
        value = getattr(self, field)
        if not isinstance(value, str) or value not in allowed:
            expected = " or ".join(map(repr, allowed))
            raise PolicyError(f"SaveBits.{field}={value!r}: expected {expected}")


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)


def _is_one_of(value: object, allowed: tuple[int, ...]) -> bool:
    return _is_integer(value) and int(value) in allowed  # type: ignore[call-overload]
