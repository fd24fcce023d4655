"""The dump of one stage of one variant."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gqc.dump.example_inputs import example_inputs
from gqc.dump.graphml import graphml
from gqc.dump.page import page
from gqc.dump.program import halves_program, joint_program
from gqc.dump.reasons import reasons
from gqc.dump.relations import find_relations
from gqc.dump.sizes import SizeNames
from gqc.dump.snapshot import Names, Snapshot, take
from gqc.joint import JointGraph
from gqc.passes.report import Report


class StageDump:
    """Takes a snapshot after each pass and writes them all at the end.

    Args:
        title: names the model, the variant and the stage.
        reads: names of the model's values that the stage reads.
    """

    def __init__(self, title: str, reads: Sequence[str]) -> None:
        self.title = title
        self.reads = reads
        self.snapshots: list[Snapshot] = []
        self._names: Names | None = None
        self._programs: list[str] = []
        self._halves = self._graphml = ""

    def watch(self, joint: JointGraph, report: Report) -> None:
        """Record the graph after a pass; see :data:`gqc.passes.pipeline.Watch`."""
        if self._names is None:
            relations = find_relations(joint.graph)
            self._names = Names(relations, SizeNames(joint.graph, relations), self.reads)
        relations = self._names.relations
        snapshot = take(joint, report, self._names)
        inputs = example_inputs(joint, relations)
        self.snapshots.append(snapshot)
        about = f"{self.title}: forward and backward as one graph.\n\n{_RUN.format(sizes=self._sizes, call='joint()')}"
        self._programs.append(joint_program(snapshot, inputs, relations, about))
        about = f"{self.title}: the two halves that run.\n\n{_RUN.format(sizes=self._sizes, call='both')}"
        self._halves = halves_program(snapshot, inputs, relations, about)
        self._graphml = graphml(joint, snapshot)

    def write(self, folder: Path, errors: Mapping[str, str] | None = None) -> Path:
        """Write all files into a folder, which is made; returns the page.

        Args:
            folder: where to.
            errors: for nodes of the last graph, how far they are from full precision; the page shows it.

        Raises:
            OSError: a file cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"{i:02}_{s.report.name}" for i, s in enumerate(self.snapshots)]
        diffs = [""]
        for i, (name, program) in enumerate(zip(names, self._programs, strict=True)):
            _write(folder / f"{name}.py", program)
            if i:
                diffs.append(_diff(names[i - 1], self._programs[i - 1], name, program))
                _write(folder / f"{name}.diff", diffs[-1])
        halves = f"{len(names):02}_halves.py"
        _write(folder / halves, self._halves)
        entries = reasons(self.snapshots)
        _write(folder / "reasons.json", json.dumps(self._reasons(entries), indent=1, ensure_ascii=False) + "\n")
        _write(folder / "graph.graphml", self._graphml)
        assert self._names is not None
        index = folder / "index.html"
        files = [f"{name}.py" for name in names]
        text = page(
            self.title,
            self.snapshots,
            files,
            diffs,
            entries,
            self._names.sizes.values,
            halves,
            self._halves,
            errors or {},
        )
        _write(index, text)
        return index

    @property
    def _sizes(self) -> str:
        assert self._names is not None
        values = self._names.sizes.values.items()
        return ", ".join(f"{n} = {v}" if v is not None else f"{n} not fixed" for n, v in values) or "all fixed"

    def _reasons(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        last = self.snapshots[-1]
        return {
            "stage": self.title,
            "decisions": entries,
            "numbers": {s.report.name: s.report.numbers for s in self.snapshots if s.report.numbers},
            "int8_copies": [asdict(life) for s in self.snapshots for life in s.report.lifetimes],
            "saved": [{"node": s.name, "type": s.type, "nbytes": s.nbytes, "held": s.held} for s in last.saved],
        }


_RUN = """Sizes at the example call: {sizes}. Behind each line: dtype and shape, module, source line.
Run this file: it makes random inputs of these sizes, calls {call} and lists the results.
"""


def _diff(before: str, old: str, after: str, new: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"{before}.py", f"{after}.py", n=2
    )
    return "".join(lines)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
