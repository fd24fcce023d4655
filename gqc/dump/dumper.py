"""Where a compiled model writes its dump, and that a failing dump does not stop training."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from gqc.capture.islands import Island, StructureIsland
from gqc.dump.folder import ENTRY, prepare, remove_earlier
from gqc.dump.measure import MeasuredCall, Measures
from gqc.dump.overview import models_page, overview
from gqc.dump.snapshot import Place
from gqc.dump.stage import StageDump
from gqc.errors import DumpWarning
from gqc.passes.pipeline import Watch
from gqc.policy import Policy
from gqc.stages import IslandCall, Stage
from gqc.variant import RunStep

VARIABLE = "GQC_DUMP"

_claimed: set[Path] = set()
"""Folders below ``GQC_DUMP`` of this process's models, so that a second model of one class gets one of its own."""


class Dumper:
    """Dumps the variants of one compiled model, one folder each.

    Args:
        folder: where to; made if missing. Variants that an earlier run has dumped there are removed.
        model: class name of the model.
        policy: under which it is compiled.

    Attributes:
        variants: those that were written.
        eager: kinds of calls that run eagerly, each with its reason.
        root: the folder of ``GQC_DUMP``, if that has asked for the dump.
        gradients: where the gradients come from that the backward starts with, to tell.

    Raises:
        DumpError: nothing can be written there.
    """

    def __init__(self, folder: str | Path, model: str, policy: Policy) -> None:
        self.folder = prepare(Path(folder))
        self.model = model
        self.policy = policy
        self.variants: list[VariantDump] = []
        self.eager: list[str] = []
        self.root: Path | None = None
        self._begun = False
        self.gradients = ", with the gradients of its loss"

    @classmethod
    def of(cls, dump: str | os.PathLike[str] | None, model: str, policy: Policy) -> Dumper | None:
        """The dumper that an argument ``dump`` or else the variable ``GQC_DUMP`` asks for.

        Below ``GQC_DUMP`` each model has a folder with the name of its class, and a page there leads to all of them.
        """
        if dump is not None:
            return cls(Path(dump), model, policy)
        if not os.environ.get(VARIABLE):
            return None
        root = prepare(Path(os.environ[VARIABLE]).resolve())
        folder, number = root / model, 1
        while folder in _claimed:
            number += 1
            folder = root / f"{model}_{number}"
        _claimed.add(folder)
        dumper = cls(folder, model, policy)
        dumper.root = root
        return dumper

    def variant(self, training: bool) -> VariantDump:
        """Start the dump of a variant, compiled while the model is in training mode or not."""
        return VariantDump(self, f"variant{len(self.variants) + 1}_{'train' if training else 'eval'}")

    def fall_back(self, reason: str) -> None:
        """Tell on the entry page that a kind of call runs eagerly."""
        self.eager.append(reason)

        def write() -> None:
            self.begin()
            self.write_entry()

        self.attempt(write)

    def begin(self) -> None:
        """Remove what an earlier run has left, before anything is written."""
        if not self._begun:
            remove_earlier(self.folder)
        self._begun = True

    def attempt(self, step: Callable[[], None]) -> bool:
        """Take a step, whose failure is a :class:`gqc.DumpWarning`; returns whether it went well."""
        try:
            step()
        except Exception as error:
            # A dump is only looked at; whatever goes wrong with it, the model trains on.
            message = f"the dump of {self.model} into {self.folder} failed, training goes on: "
            warnings.warn(f"{message}{type(error).__name__}: {error}", DumpWarning, stacklevel=4)
            return False
        return True

    @property
    def entry(self) -> Path:
        """The page that leads to all others."""
        return self.folder / ENTRY

    def write_entry(self) -> None:
        """Write the entry page for the variants so far, and the page of all models.

        Raises:
            OSError: it cannot be written.
        """
        self.entry.write_text(overview(self.model, self.variants, self.eager, self.policy), encoding="utf-8")
        if self.root is not None:
            (self.root / ENTRY).write_text(models_page(self.root), encoding="utf-8")


class VariantDump:
    """The dump of one variant. What fails here becomes a :class:`gqc.DumpWarning`, after which it writes nothing.

    Attributes:
        name: its folder.
        why: why it was compiled.
        parts: its stages by number and the islands between them, in running order, without what only prepares graphs.
        stages: the dump of each stage by number.
        failed: whether it has stopped.
    """

    def __init__(self, dumper: Dumper, name: str) -> None:
        self.dumper = dumper
        self.name = name
        self.why = ""
        self.parts: list[int | Island] = []
        self.stages: dict[int, StageDump] = {}
        self.failed = False
        self._measured = False

    def stage(self, number: int, stage: Stage, parts: Sequence[Stage | IslandCall]) -> Watch:
        """The observer of the passes over a stage, counted from 1, which is one of the parts of a variant."""
        remembered = {name for p in parts if isinstance(p, IslandCall) and _is_structure(p) for name in p.writes}
        nodes = zip(stage.reads, stage.graph.graph.find_nodes(op="placeholder"), strict=True)
        structure = {name: Place.of(node) for name, node in nodes if name in remembered}
        title = f"{self.dumper.model}, {self.name}, stage {number}"
        dump = self.stages[number] = StageDump(title, stage.reads, structure, self.dumper.policy)
        return lambda joint, report: self._try(lambda: dump.watch(joint, report))

    def write(self, why: str, parts: Sequence[Stage | IslandCall]) -> None:
        """Write the stages and the entry page; the first variant removes what an earlier run has left.

        Args:
            why: why the variant was compiled.
            parts: its stages and the islands between them, in running order.
        """
        numbers = iter(sorted(self.stages))
        self.why = why
        for part in parts:
            if isinstance(part, Stage):
                self.parts.append(next(numbers))
            elif not _is_structure(part):
                self.parts.append(part.island)
        self._try(self._write)

    def measured_step(self) -> RunStep | None:
        """What runs the steps of the next call to measure it; ``None`` if a call has been measured."""
        if self.failed or self._measured:
            return None

        def found(number: int, measures: Measures) -> None:
            self._try(lambda: self._found(number, measures))

        return MeasuredCall(self.dumper.gradients, len(self.stages) > 1, found)

    def _write(self) -> None:
        dumper = self.dumper
        dumper.begin()
        dumper.variants.append(self)
        for number, stage in self.stages.items():
            stage.write(self._folder(number))
        dumper.write_entry()

    def _found(self, number: int, measures: Measures) -> None:
        self._measured = True
        self.stages[number].measures = measures
        self.stages[number].write_measures(self._folder(number))
        self.dumper.write_entry()

    def _folder(self, number: int) -> Path:
        return self.dumper.folder / self.name / f"stage{number}"

    def _try(self, step: Callable[[], None]) -> None:
        self.failed = self.failed or not self.dumper.attempt(step)


def _is_structure(part: IslandCall) -> bool:
    return isinstance(part.island, StructureIsland)
