"""Dotted names of parameters and buffers as targets of get_attr nodes."""

from __future__ import annotations

from keyword import iskeyword
from typing import Any


class AttributePath(str):
    """A dotted name whose parts may be keywords, such as ``mods.in.weight`` for a relation called ``in``.

    torch.fx writes a part into its code as ``.part``, and as ``getattr(..., "part")`` where it is no identifier. It
    takes keywords for identifiers, so the parts of this name know better.
    """

    __slots__ = ()

    def split(self, *args: Any, **kwargs: Any) -> list[str]:
        return [_Part(part) for part in super().split(*args, **kwargs)]


class _Part(str):
    __slots__ = ()

    def isidentifier(self) -> bool:
        return super().isidentifier() and not iskeyword(self)
