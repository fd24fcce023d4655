"""The page that shows a dump: one HTML file that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gqc.dump.reasons import about
from gqc.dump.snapshot import NodeRecord, Snapshot

_HERE = Path(__file__).parent


def page(
    title: str,
    snapshots: Sequence[Snapshot],
    files: Sequence[str],
    diffs: Sequence[str],
    entries: Sequence[dict[str, Any]],
    sizes: dict[str, int | None],
    halves_file: str,
    halves: str,
    errors: Mapping[str, str],
) -> str:
    """The page of one stage: template, style, script and data in one text.

    Args:
        title: names the model, the variant and the stage.
        snapshots: the graph after each pass, the first before any.
        files, diffs: name of the Python file of each snapshot, and its difference to the one before.
        entries: all decisions, see :func:`gqc.dump.reasons.reasons`.
        sizes: symbolic sizes at the example call.
        halves_file, halves: the Python file of the two halves.
        errors: for nodes after the last pass, how far they are from full precision.
    """
    numbers: dict[NodeRecord, int] = {}
    passes = []
    for snapshot, file, diff in zip(snapshots, files, diffs, strict=True):
        shown = [numbers.setdefault(n, len(numbers)) for n in snapshot.nodes]
        passes.append(
            {
                "name": snapshot.report.name,
                "file": file,
                "diff": diff,
                "nodes": shown,
                "outputs": snapshot.outputs,
                "gradients": snapshot.gradients,
                "saved": [asdict(s) for s in snapshot.saved],
                "forward": [i for i, n in enumerate(snapshot.nodes) if n.name in snapshot.forward],
                "backward": [i for i, n in enumerate(snapshot.nodes) if n.name in snapshot.backward],
                "numbers": snapshot.report.numbers,
                "lifetimes": {life.producer: str(life) for life in snapshot.report.lifetimes},
            }
        )
    records = [asdict(n) | {"primitive": n.primitive, "about": about(n, entries)} for n in numbers]
    data = {"title": title, "sizes": sizes, "passes": passes, "records": records, "decisions": entries}
    data |= {"halves": {"file": halves_file, "code": halves}, "errors": errors}
    # "<" could end the script element.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {"TITLE": title, "STYLE": _read("page.css"), "DATA": text, "SCRIPT": _read("layout.js") + _read("page.js")}
    html = _read("page.html")
    for name, part in parts.items():
        before, _, after = html.partition(f"<!--{name}-->")
        html = before + part + after
    return html


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
