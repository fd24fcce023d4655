"""Reports as plain text."""

from __future__ import annotations

from rich.console import Console


def printed(report: object) -> str:
    """What rich prints of an object, 160 columns wide and without colours."""
    console = Console(width=160, no_color=True, highlight=False)
    with console.capture() as captured:
        console.print(report)
    return captured.get()
