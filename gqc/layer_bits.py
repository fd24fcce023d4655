"""Bit widths a layer: what a mapping given as ``Policy.bits`` means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from numbers import Integral
from typing import ClassVar, TypeVar

from gqc.errors import PolicyError

WIDTHS = range(2, 9)
Bits = int | str
AUTO, EXACT, DEFAULT = "auto", 32, 8
BITS: tuple[Bits, ...] = (*WIDTHS, EXACT, AUTO)

L = TypeVar("L", bound="LayerBits")


@dataclass(frozen=True)
class LayerBits:
    """Widths by module, hashable and in the order in which they were given.

    An entry is the path of a module (``"conv1"``) or a pattern of :mod:`fnmatch` (``"conv*"``) and covers the module
    and all modules in it. A path goes before patterns; of several paths the innermost holds, of several patterns the
    first. What no entry covers has 8 bits.

    Attributes:
        entries: pairs of a path or pattern and 2 to 8, 32 or ``"auto"``.
    """

    entries: tuple[tuple[str, Bits], ...]

    option: ClassVar[str] = "Policy.bits"
    default: ClassVar[Bits] = DEFAULT

    def __post_init__(self) -> None:
        checked = []
        for name, bits in self.entries:
            if not isinstance(name, str):
                raise PolicyError(f"{self.option}: key {name!r} is neither the path of a module nor a pattern")
            checked.append((name, self.checked(f"{self.option}[{name!r}]", bits)))
        object.__setattr__(self, "entries", tuple(checked))

    @staticmethod
    def checked(field: str, bits: object) -> Bits:
        """A width of an entry, see :func:`checked_bits`."""
        return checked_bits(field, bits)

    @classmethod
    def of(cls: type[L], widths: Mapping[str, Bits]) -> L:
        """Check a mapping and freeze it.

        Raises:
            PolicyError: a key is no string, or a value no width.
        """
        return cls(tuple(widths.items()))

    def find(self, module: str) -> tuple[str | None, Bits]:
        """The entry that covers a module and its width, ``None`` and the default if there is none."""
        paths = around(module)
        widths = dict(self.entries)
        for path in paths:
            if path in widths:
                return path, widths[path]
        for pattern, bits in self.entries:
            if any(fnmatchcase(path, pattern) for path in paths):
                return pattern, bits
        return None, self.default

    def check_names(self, modules: Iterable[str], model: str) -> None:
        """Refuse entries that cover none of a model's modules.

        Args:
            modules: paths of all modules, ``""`` for the model itself.
            model: class name of the model, for the message.

        Raises:
            PolicyError: naming the entry and near misses.
        """
        known = list(modules)
        for name, _ in self.entries:
            if not any(fnmatchcase(path, name) or path == name for path in known):
                near = get_close_matches(name, known, n=3, cutoff=0.5)
                hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {', '.join(known[1:])}"
                raise PolicyError(f"{self.option}[{name!r}]: {model} has no module of this name; {hint}")

    def __repr__(self) -> str:
        return repr(dict(self.entries))


def is_auto(bits: object) -> bool:
    """Whether a value of ``Policy.bits`` leaves a width to Tango's rule."""
    return bits == AUTO or (isinstance(bits, LayerBits) and AUTO in dict(bits.entries).values())


def checked_bits(field: str, bits: object) -> Bits:
    """A width as Python's own int or str, which NumPy's integers become.

    Raises:
        PolicyError: it is no width; the message names the field.
    """
    if isinstance(bits, Integral) and not isinstance(bits, bool) and int(bits) in BITS:
        return int(bits)
    if isinstance(bits, str) and bits == AUTO:
        return bits
    expected = ", ".join(map(repr, BITS))
    raise PolicyError(f"{field}={bits!r}: expected one of {expected}")


def around(module: str) -> list[str]:
    """The path of a module and of all that contain it, innermost first, the model itself last."""
    parts = module.split(".") if module else []
    return [".".join(parts[:end]) for end in range(len(parts), -1, -1)]
