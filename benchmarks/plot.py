"""Draw what a benchmark has written with ``--json``.

python -m benchmarks.plot step.json docs/step.svg
python -m benchmarks.plot scaling.json docs/scaling.svg
python -m benchmarks.plot memory.json docs/memory.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.peers import EAGER

Records = list[dict[str, Any]]


def steps(records: Records) -> Any:
    """Bars: how many times faster than DGL in fp32 each contestant is, one panel a model and malloc."""
    from matplotlib.figure import Figure

    panels: dict[str, Records] = {}
    for record in records:
        panels.setdefault(f"{record['model']}, {record['malloc']} malloc", []).append(record)
    heights = [len(shown) + 2 for shown in panels.values()]  # labels are long: panels stand one below the other
    figure = Figure(figsize=(8, 0.3 * sum(heights)), layout="constrained")
    rows = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, shown) in zip(rows, panels.items(), strict=True):
        names = [record["contestant"] for record in shown]
        bars = axes.barh(names, [record["speedup"] for record in shown])
        axes.bar_label(bars, [f"{record['speedup']:.2f}x, {record['median_ms']:.0f} ms" for record in shown], padding=3)
        axes.axvline(1, color="grey", linewidth=0.8)
        axes.set(title=title, xlabel=f"step, times faster than {EAGER}")
        axes.invert_yaxis()
        axes.margins(x=0.4)
    return figure


def memory(records: Records) -> Any:
    """Points: bytes saved by time of a step, both as shares of the first contestant's, one panel a model."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(record["model"] for record in records))
    figure = Figure(figsize=(5 * len(names), 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        shown = [record for record in records if record["model"] == name]
        base = shown[0]
        for record in shown:
            at = record["time_ratio"], record["saved_bytes"] / base["saved_bytes"]
            axes.plot(*at, marker="o")
            axes.annotate(record["contestant"], at, textcoords="offset points", xytext=(5, 3), fontsize="x-small")
        axes.axvline(1, color="grey", linewidth=0.8)
        axes.set(title=name, xlabel=f"step, times as long as {base['contestant']}", ylabel="saved, share", yscale="log")
        axes.margins(x=0.3)
    return figure


def scaling(records: Records) -> Any:
    """Lines: milliseconds and megabytes by factor, one column of panels an axis that grows."""
    from matplotlib.figure import Figure

    records = [record for record in records if "median_ms" in record]
    names = list(dict.fromkeys(record["axis"] for record in records))
    figure = Figure(figsize=(4 * len(names), 6), layout="constrained")
    for column, name in enumerate(names):
        for row, (label, value) in enumerate(
            (
                ("ms a step", lambda r: r["median_ms"]),
                ("peak MB", lambda r: (r["peak_bytes"] - r["before_bytes"]) / 1e6),
            )
        ):
            axes = figure.add_subplot(2, len(names), row * len(names) + column + 1)
            for contestant in dict.fromkeys(record["contestant"] for record in records):
                of = [r for r in records if (r["axis"], r["contestant"]) == (name, contestant)]
                axes.loglog([r["factor"] for r in of], [value(r) for r in of], marker="o", label=contestant, base=2)
            axes.set(xlabel=f"{name}, times the smallest", ylabel=label)
            axes.legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path)
    parser.add_argument("image", type=Path, help="its suffix is the format: .svg, .png, .pdf")
    args = parser.parse_args()
    records = json.loads(args.json.read_text())
    try:
        kinds = {"axis": scaling, "saved_bytes": memory}
        figure = next((draw for field, draw in kinds.items() if field in records[0]), steps)(records)
    except ImportError as error:
        parser.error(f"{error}: pip install '.[bench]'")
    figure.savefig(args.image)


if __name__ == "__main__":
    main()
