"""What is saved for the backward, drawn as stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gqc.passes.saved_plan import SavedPlan
from gqc.text import bytes_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MIB = 2**20
_COLOURS = 10  # of matplotlib's default cycle


def stacked(model: str, entries: Sequence[SavedPlan], eager: int | None) -> Figure:
    """Bars of the eager model, of what is saved if it stayed as it is, and as it is saved.

    Args:
        model: for the title.
        entries: the segments, coloured by module.
        eager: bytes that the eager model saves, if known.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    totals = [("before", sum(e.before for e in entries)), ("after", sum(e.after for e in entries))]
    if eager is not None:
        totals.insert(0, ("eager", eager))
        axes.bar("eager", eager / _MIB, color="lightgrey", edgecolor="white")
    modules = list(dict.fromkeys(e.module for e in entries))
    at = {"before": 0.0, "after": 0.0}
    for number, module in enumerate(modules):
        label: str | None = module or "(model)"
        for entry in (e for e in entries if e.module == module):
            for name, nbytes in (("before", entry.before), ("after", entry.after)):
                colour = f"C{number % _COLOURS}"
                axes.bar(
                    name, nbytes / _MIB, bottom=at[name], color=colour, edgecolor="white", linewidth=0.3, label=label
                )
                at[name] += nbytes / _MIB
                label = None
    for name, total in totals:
        axes.annotate(bytes_text(total), (name, total / _MIB), ha="center", va="bottom")
    axes.set(title=f"{model}: saved for the backward", ylabel="MiB")
    axes.margins(y=0.1)
    if modules:
        axes.legend(title="module", loc="upper right", fontsize="small")
    return figure
