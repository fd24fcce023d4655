"""Lays statements out as ``ruff format`` does at its default line length, so that generated code needs no formatter.

What fits on a line stays on it. What does not is broken at its outermost brackets: the arguments of a call go to one
line of their own if they fit there; else, and in all other brackets, each item does.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

WIDTH = 88
"""Line length, ruff's default."""


@dataclass(frozen=True)
class Group:
    """Items in brackets: a call, a list, a tuple.

    Attributes:
        head: what stands before the items, the opening bracket included.
        items: texts or groups.
        tail: what stands after the items, the closing bracket included.
        is_tuple: whether one item alone needs a comma.
    """

    head: str
    items: Sequence[Text]
    tail: str = ")"
    is_tuple: bool = False

    @property
    def is_call(self) -> bool:
        """Whether the brackets belong to a call or a signature."""
        return self.head.endswith("(") and self.head[-2:-1] not in ("", "=", " ")

    def __str__(self) -> str:
        comma = "," if self.is_tuple and len(self.items) == 1 else ""
        return f"{self.head}{', '.join(map(str, self.items))}{comma}{self.tail}"


@dataclass(frozen=True)
class Operation:
    """A binary operation, and the call that is written where it does not fit on a line."""

    text: str
    call: Group

    def __str__(self) -> str:
        return self.text


class Subscript(Operation):
    """A slice, and the call that is written where it does not fit on a line."""


Text = str | Group | Operation


def tuple_of(items: Sequence[Text]) -> Group:
    """A tuple."""
    return Group("(", items, is_tuple=True)


def keyword(name: str, value: Text) -> Text:
    """A keyword argument."""
    if isinstance(value, Group):
        return replace(value, head=f"{name}={value.head}")
    return f"{name}={value}"


def statement(prefix: str, value: Text, indent: int = 4, suffix: str = "") -> list[str]:
    """The lines of ``prefix value suffix``, indented.

    Args:
        prefix: such as ``"x = "``.
        value: what may be broken.
        indent: spaces before the first line.
        suffix: such as ``":"``.
    """
    flat = f"{' ' * indent}{prefix}{value}{suffix}"
    if len(flat) <= WIDTH or isinstance(value, str) or (isinstance(value, Group) and not value.items):
        return [flat]
    group = value.call if isinstance(value, Operation) else value
    lines = [f"{' ' * indent}{prefix}{group.head}"]
    inner = f"{' ' * (indent + 4)}{', '.join(map(str, group.items))}"
    if group.is_call and len(inner) <= WIDTH:
        return [*lines, inner, f"{' ' * indent}{group.tail}{suffix}"]
    for item in group.items:
        lines += statement("", item, indent + 4, ",")
    return [*lines, f"{' ' * indent}{group.tail}{suffix}"]


def result(items: Sequence[Text], indent: int = 4) -> list[str]:
    """A return statement of a tuple, or of its only item."""
    if len(items) == 1:
        return statement("return ", items[0], indent)
    flat = f"{' ' * indent}return {', '.join(map(str, items))}"
    return [flat] if items and len(flat) <= WIDTH else statement("return ", tuple_of(items), indent)


def docstring(text: str, indent: int = 4) -> list[str]:
    """A docstring, filled to the line length."""
    margin = " " * indent
    paragraphs = text.strip().split("\n\n")
    filled = [textwrap.fill(p, WIDTH - indent) if not p.startswith("    ") else p for p in paragraphs]
    lines = "\n\n".join(filled).splitlines()
    if len(lines) == 1 and len(lines[0]) + indent + 6 <= WIDTH:
        return [f'{margin}"""{lines[0]}"""']
    first, *rest = textwrap.fill('"""' + paragraphs[0], WIDTH - indent).splitlines()
    rest += [line for p in filled[1:] for line in ("", *p.splitlines())]
    return [margin + first, *((margin + line).rstrip() for line in rest), margin + '"""']


def comment(text: str, indent: int = 4) -> str:
    """A comment on one line, cut at the line length."""
    line = f"{' ' * indent}# {text}"
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 4].rstrip()} ..."


def deletions(names: Iterable[str], indent: int = 4) -> list[str]:
    """``del`` statements for names, as few as fit."""
    lines: list[str] = []
    for name in names:
        if lines and len(lines[-1]) + len(name) + 2 <= WIDTH:
            lines[-1] += f", {name}"
        else:
            lines.append(f"{' ' * indent}del {name}")
    return lines
