"""The constants of this machine: from a file that ``gqc doctor --tune`` has written, else built in.

A file holds the constants of one processor, instruction set, number of threads and version of gqc, in
``$XDG_CACHE_HOME/gqc`` (``~/.cache/gqc``).
"""

from __future__ import annotations

import json
import os
import platform
import warnings
import zlib
from dataclasses import asdict, fields
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from gqc.cost.model import BUILT_IN, CostModel
from gqc.errors import GqcError, TuneWarning
from gqc.runtime import native


def key() -> dict[str, Any]:
    """What constants depend on."""
    try:
        version = metadata.version("gqc")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return {
        "processor": processor(),
        "isa": native.isa(),
        "threads": torch.get_num_threads(),
        "gqc": version,
        "torch": torch.__version__,
    }


@cache
def processor() -> str:
    """The name by which the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def file() -> Path:
    """Where the constants of this machine are kept."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gqc"
    return folder / f"costs-{zlib.crc32(json.dumps(key()).encode()):08x}.json"


def save(costs: CostModel) -> Path:
    """Keep measured constants; returns the file.

    Raises:
        OSError: it cannot be written.
    """
    path = file()
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps({"machine": key(), "costs": asdict(costs)}, indent=1) + "\n")
    new.replace(path)
    return path


def read(path: Path) -> CostModel:
    """The constants in a file.

    Raises:
        GqcError: the file is damaged, or another machine's.
        OSError: it cannot be read.
    """
    try:
        held = json.loads(path.read_text())
        machine, costs = held["machine"], held["costs"]
        if costs.keys() != {f.name for f in fields(CostModel)}:
            raise GqcError(f"{path} has other constants than this gqc")
        model = CostModel(**costs)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise GqcError(f"{path} is damaged: {error}") from error
    if machine != key():
        raise GqcError(f"{path} was measured on another machine: {machine}")
    return model


def costs() -> CostModel:
    """The constants of this machine and number of threads; a file that is of no use is reported and ignored."""
    path = file()
    if path.exists():
        try:
            return read(path)
        except (GqcError, OSError) as error:
            warnings.warn(f"{error}; `gqc doctor --tune` measures anew", TuneWarning, stacklevel=2)
    return BUILT_IN[native.isa()]
