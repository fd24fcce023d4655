"""Reports as plain text."""

from __future__ import annotations

from rich.console import Console

_WIDTH = 160


def printed(report: object) -> str:
    """What rich prints of an object, 160 columns wide and without colours."""
    console = Console(width=_WIDTH, no_color=True, highlight=False)
    with console.capture() as captured:
        console.print(report)
    return captured.get()


def show(report: object) -> None:
    """Print an object with rich: as wide as the terminal or, in a file or pipe, 160 columns wide."""
    console = Console()
    if not (console.is_terminal or console.is_jupyter):
        console = Console(width=_WIDTH)
    console.print(report)


def a_kind(value: object) -> str:
    """The type of an object with its article: ``"an int"``."""
    name = type(value).__name__
    return f"a{'n' * (name[0] in 'aeiouAEIOU')} {name}"


def bytes_text(nbytes: int) -> str:
    """A number of bytes with its unit."""
    for unit, step in (("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= step:
            return f"{nbytes / step:.1f} {unit}"
    return f"{nbytes} B"
