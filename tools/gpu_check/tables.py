"""The record as text: a table of sections, then a table a section."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tools.gpu_check.record import Result


def markdown(title: str, results: list[Result]) -> str:
    """Tables for docs/gpu.md."""
    lines = [f"## {title}", ""]
    lines += _table([{"section": r.name, "result": r.status, "seconds": f"{r.seconds:.1f}"} for r in results])
    for result in results:
        found = result.found
        if not (found.facts or found.rows or found.problems or found.missing):
            continue
        lines += ["", f"### {result.name}", ""]
        if found.facts:
            lines += [", ".join(f"{name} {value}" for name, value in found.facts.items()), ""]
        lines += _table(found.rows)
        lines += [f"- FAILED: {text}" for text in found.problems]
        lines += [f"- not checked: {text}" for text in found.missing]
    return "\n".join(lines) + "\n"


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    if not columns:
        return
    yield _line(columns)
    yield _line(["---"] * len(columns))
    for row in rows:
        yield _line([_cell(row.get(column, "")) for column in columns])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1 else str(value)
