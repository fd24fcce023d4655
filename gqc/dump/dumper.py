"""Where a compiled model writes its dump, and that a failing dump does not stop training."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from gqc.dump.folder import prepare, remove_earlier
from gqc.dump.stage import StageDump
from gqc.errors import DumpWarning
from gqc.passes.pipeline import Watch

VARIABLE = "GQC_DUMP"

_claimed: set[Path] = set()
"""Folders below ``GQC_DUMP`` of this process's models, so that a second model of one class gets one of its own."""


class Dumper:
    """Dumps the variants of one compiled model, one folder each.

    Args:
        folder: where to; made if missing. Variants that an earlier run has dumped there are removed.
        model: class name of the model.

    Attributes:
        variants: how many were written.
        stages: their stages and the folder of each.

    Raises:
        DumpError: nothing can be written there.
    """

    def __init__(self, folder: str | Path, model: str) -> None:
        self.folder = prepare(Path(folder))
        self.model = model
        self.variants = 0
        self.stages: list[tuple[StageDump, Path]] = []

    @classmethod
    def of(cls, dump: str | os.PathLike[str] | None, model: str) -> Dumper | None:
        """The dumper that an argument ``dump`` or else the variable ``GQC_DUMP`` asks for.

        Below ``GQC_DUMP`` each model has a folder with the name of its class.
        """
        if dump is not None:
            return cls(Path(dump), model)
        root = os.environ.get(VARIABLE)
        if not root:
            return None
        folder, number = Path(root).resolve() / model, 1
        while folder in _claimed:
            number += 1
            folder = Path(root).resolve() / f"{model}_{number}"
        _claimed.add(folder)
        return cls(folder, model)

    def variant(self, training: bool) -> VariantDump:
        """Start the dump of a variant, compiled while the model is in training mode or not."""
        return VariantDump(self, f"variant{self.variants + 1}_{'train' if training else 'eval'}")


class VariantDump:
    """The dump of one variant. What fails here becomes a :class:`gqc.DumpWarning`, after which it writes nothing."""

    def __init__(self, dumper: Dumper, name: str) -> None:
        self.dumper = dumper
        self.name = name
        self.stages: dict[int, StageDump] = {}
        self.failed = False

    def stage(self, number: int, reads: Sequence[str]) -> Watch:
        """The observer of the passes over a stage, counted from 1, which reads these values of the model."""
        stage = self.stages[number] = StageDump(f"{self.dumper.model}, {self.name}, stage {number}", reads)
        return lambda joint, report: self._try(lambda: stage.watch(joint, report))

    def write(self) -> None:
        """Write the stages; the first variant removes what an earlier run has left."""
        self._try(self._write)

    def _write(self) -> None:
        dumper = self.dumper
        if dumper.variants == 0:
            remove_earlier(dumper.folder)
        dumper.variants += 1
        for number, stage in sorted(self.stages.items()):
            folder = dumper.folder / self.name / f"stage{number}"
            stage.write(folder)
            dumper.stages.append((stage, folder))

    def _try(self, step: Callable[[], None]) -> None:
        if self.failed:
            return
        try:
            step()
        except Exception as error:
            # A dump is only looked at; whatever goes wrong with it, the model trains on.
            self.failed = True
            message = f"the dump of {self.dumper.model} into {self.dumper.folder} failed, training goes on: "
            warnings.warn(f"{message}{type(error).__name__}: {error}", DumpWarning, stacklevel=3)
