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
from gqc.dump.measure import UNMEASURED
from gqc.dump.page import page
from gqc.dump.program import halves_program, joint_program
from gqc.dump.reasons import reasons
from gqc.dump.relations import find_relations
from gqc.dump.settings import settings, settings_text
from gqc.dump.sizes import SizeNames
from gqc.dump.snapshot import Names, Place, Snapshot, take
from gqc.joint import JointGraph
from gqc.passes.report import Lifetime, Report
from gqc.passes.saved_plan import SavedPlan
from gqc.policy import Policy


class StageDump:
    """Takes a snapshot after each pass and writes them all at the end.

    Args:
        title: names the model, the variant and the stage.
        reads: names of the model's values that the stage reads.
        structure: those that are computed once a graph, with the place that computes each.
        policy: under which the model was compiled.

    Attributes:
        snapshots: the graph after each pass, the first before any.
        measures: scales and errors of the last graph.
        plan: what becomes of what the backward reads of the forward.
    """

    def __init__(self, title: str, reads: Sequence[str], structure: Mapping[str, Place], policy: Policy) -> None:
        self.title = title
        self.reads = reads
        self.structure = structure
        self.policy = policy
        self.snapshots: list[Snapshot] = []
        self.measures = UNMEASURED
        self.plan: Sequence[SavedPlan] = ()
        self._names: Names | None = None
        self._entries: list[dict[str, Any]] = []
        self._diffs: list[str] = []
        self._programs: list[str] = []
        self._halves = self._graphml = ""

    def watch(self, joint: JointGraph, report: Report) -> None:
        """Record the graph after a pass; see :data:`gqc.passes.pipeline.Watch`."""
        if self._names is None:
            relations = find_relations(joint.graph)
            self._names = Names(relations, SizeNames(joint.graph, relations), self.reads, self.structure)
        relations = self._names.relations
        snapshot = take(joint, report, self._names)
        inputs = example_inputs(joint, relations)
        self.snapshots.append(snapshot)
        about = f"{self.title}: forward and backward as one graph.\n\n{self._run('joint()')}"
        self._programs.append(joint_program(snapshot, inputs, relations, about))
        about = f"{self.title}: the two halves that run.\n\n{self._run('both')}"
        self._halves = halves_program(snapshot, inputs, relations, about)
        self._graphml = graphml(joint, snapshot)

    def write(self, folder: Path) -> None:
        """Write all files into a folder, which is made.

        Raises:
            OSError: a file cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        names = self._file_names
        self._diffs = [""]
        for i, (name, program) in enumerate(zip(names, self._programs, strict=True)):
            _write(folder / f"{name}.py", program)
            if i:
                self._diffs.append(_diff(names[i - 1], self._programs[i - 1], name, program))
                _write(folder / f"{name}.diff", self._diffs[-1])
        _write(folder / self.halves_name, self._halves)
        self._entries = reasons(self.snapshots)
        _write(folder / "reasons.json", _json(self._reasons(self._entries)))
        _write(folder / "graph.graphml", self._graphml)
        self.write_measures(folder)

    def write_measures(self, folder: Path) -> None:
        """Write those files anew that tell scales and errors; :meth:`write` comes before.

        Raises:
            OSError: a file cannot be written.
        """
        assert self._names is not None
        _write(folder / "errors.json", _json(asdict(self.measures)))
        text = page(
            self.title,
            self.snapshots,
            [f"{name}.py" for name in self._file_names],
            self._diffs,
            self._entries,
            self._names.sizes.values,
            self.halves_name,
            self._halves,
            self.measures,
            settings_text(self.policy),
        )
        _write(folder / "index.html", text)

    @property
    def _file_names(self) -> list[str]:
        return [f"{i:02}_{s.report.name}" for i, s in enumerate(self.snapshots)]

    @property
    def halves_name(self) -> str:
        """The file of the two halves."""
        return f"{len(self.snapshots):02}_halves.py"

    @property
    def _sizes(self) -> str:
        assert self._names is not None
        values = self._names.sizes.values.items()
        return ", ".join(f"{n} = {v}" if v is not None else f"{n} not fixed" for n, v in values) or "all fixed"

    def _run(self, call: str) -> str:
        return _RUN.format(policy=settings_text(self.policy), sizes=self._sizes, call=call)

    def _reasons(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        last = self.snapshots[-1]
        return {
            "stage": self.title,
            "policy": settings(self.policy),
            "decisions": entries,
            "numbers": {s.report.name: s.report.numbers for s in self.snapshots if s.report.numbers},
            "int8_copies": [_copy(life, last) for life in last.copies],
            "structure": [{"node": n.name, "type": n.type, "module": n.module, "line": n.line} for n in last.structure],
            **({"saved_plan": [asdict(plan) for plan in self.plan]} if self.policy.saves is not None else {}),
            "saved": [{"node": s.name, "type": s.type, "nbytes": s.nbytes, "held": s.held} for s in last.saved],
        }


_RUN = """Policy: {policy}.
Sizes at the example call: {sizes}. Behind each line: dtype and shape, module, source line.
Run this file: it makes random inputs of these sizes, calls {call} and lists the results.
"""


def _copy(life: Lifetime, snapshot: Snapshot) -> dict[str, Any]:
    tensor = snapshot.record(life.tensor)
    return asdict(life) | {"tensor_module": tensor.module, "tensor_line": tensor.line}


def _diff(before: str, old: str, after: str, new: str) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"{before}.py", f"{after}.py", n=2
    )
    return "".join(lines) or f"# {after}.py is {before}.py: the pass changed nothing\n"


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
