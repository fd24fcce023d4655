"""The page that shows a dump: one HTML file that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from gqc.dump.folder import GENERATOR
from gqc.dump.measure import Measures
from gqc.dump.reasons import EXPLAINED, about
from gqc.dump.snapshot import NodeRecord, Snapshot, exact_bytes
from gqc.passes import PIPELINE

_HERE = Path(__file__).parent
_ABOUT = {step.name: (step.run.__doc__ or "").partition("\n")[0].replace("``", "") for step in PIPELINE}
_ABOUT |= {"joint": "Forward and backward of the model in one graph, before any pass."}


def page(
    title: str,
    snapshots: Sequence[Snapshot],
    files: Sequence[str],
    diffs: Sequence[str],
    entries: Sequence[dict[str, Any]],
    sizes: dict[str, int | None],
    halves_file: str,
    halves: str,
    measures: Measures,
    policy: str,
) -> str:
    """The page of one stage: template, style, script and data in one text.

    Args:
        title: names the model, the variant and the stage.
        snapshots: the graph after each pass, the first before any.
        files, diffs: name of the Python file of each snapshot, and its difference to the one before.
        entries: all decisions, see :func:`gqc.dump.reasons.reasons`.
        sizes: symbolic sizes at the example call.
        halves_file, halves: the Python file of the two halves.
        measures: scales and errors of the nodes after the last pass.
        policy: under which the model was compiled.
    """
    numbers: dict[NodeRecord, int] = {}
    passes = []
    for snapshot, file, diff in zip(snapshots, files, diffs, strict=True):
        shown = [numbers.setdefault(n, len(numbers)) for n in snapshot.nodes]
        passes.append(
            {
                "name": snapshot.report.name,
                "about": _ABOUT.get(snapshot.report.name, ""),
                "file": file,
                "diff": diff,
                "nodes": shown,
                "outputs": snapshot.outputs,
                "gradients": snapshot.gradients,
                "saved": [asdict(s) for s in snapshot.saved],
                "forward": [i for i, n in enumerate(snapshot.nodes) if n.name in snapshot.forward],
                "backward": [i for i, n in enumerate(snapshot.nodes) if n.name in snapshot.backward],
                "numbers": snapshot.report.numbers,
                "lifetimes": {life.producer: str(life) for life in snapshot.copies},
            }
        )
    records = [asdict(n) | {"primitive": n.primitive, "about": about(n, entries)} for n in numbers]
    data = {"title": title, "sizes": sizes, "passes": passes, "records": records, "decisions": entries}
    data |= {
        "policy": policy,
        "exact_bytes": exact_bytes(snapshots),
        "gathers": [n.name for n in snapshots[-1].nodes if n.is_gather],
        "halves": {"file": halves_file, "code": halves},
        "measures": asdict(measures),
        "explained": EXPLAINED,
    }
    # "<" could end the script element.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    style, script = read("base.css") + read("page.css"), read("layout.js") + read("page.js")
    return fill("page.html", TITLE=escape(title), STYLE=style, DATA=text, SCRIPT=script)


def fill(template: str, **parts: str) -> str:
    """The text of a template with ``<!--NAME-->`` replaced."""
    html = read(template).replace("<!--GENERATOR-->", GENERATOR)
    for name, part in parts.items():
        html = part.join(html.split(f"<!--{name}-->"))
    return html


def read(name: str) -> str:
    """A file beside this one."""
    return (_HERE / name).read_text(encoding="utf-8")
