"""``python -m tools.gpu_check``."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from tools.gpu_check import basics, ceilings, ops, primitives, sanitizer, tables, training, whole_steps
from tools.gpu_check.graphs import laws
from tools.gpu_check.place import Place
from tools.gpu_check.record import FAILED, Record, Section

BUDGET = 520.0
DRY_PATIENCE = 10
"""How many times longer everything may take on a CPU, of which a test run may get a share only."""


def sections(place: Place) -> list[Section]:
    """All of them in the order in which they run: what is wrong is known before anything is timed."""
    return [
        Section("build", 90, partial(basics.build, place)),
        Section("fragments", 20, partial(basics.fragments, place)),
        Section("ops", 70, partial(ops.check, place)),
        Section("training steps", 50, partial(training.steps, place)),
        Section("CUDA graph", 20, partial(training.replay, place)),
        Section("ceilings", 20, partial(ceilings.ceilings, place)),
        Section("dense primitives", 20, partial(primitives.dense, place)),
        *(Section(f"primitives on {law}", 25, partial(primitives.sparse, place, law=law)) for law in laws(place.dry)),
        *(
            Section(f"steps on {law}", 100 if law == "arxiv" else 45, partial(whole_steps.whole_steps, place, law=law))
            for law in laws(place.dry)
        ),
        Section("sanitizer", 120, partial(sanitizer.sanitizer, place)),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_check", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="on the CPU, kernels in the emulator, tiny sizes")
    parser.add_argument("--out", type=Path, default=Path("build/gpu_check"), help="folder of the results")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds for all")
    parser.add_argument("--only", action="append", help="a section by name; may be given again")
    parser.add_argument("--no-fork", dest="fork", action="store_false", help="run sections in this process")
    args = parser.parse_args()

    place = Place(args.dry)
    small = Section("ops-small", args.budget, partial(ops.check, place, small=True, poisoned=False))
    chosen = [s for s in (*sections(place), small) if (s.name in args.only if args.only else s is not small)]
    if not chosen:
        parser.error(f"--only: choose from {', '.join(section.name for section in sections(place))}")

    args.out.mkdir(parents=True, exist_ok=True)
    if args.dry:
        torch.set_num_threads(1)
    title = f"{_device(args.dry)}, {time.strftime('%Y-%m-%d')}"
    patience = DRY_PATIENCE if args.dry else 1
    about = {"title": title, "arguments": sys.argv[1:]}
    record = Record(args.out / "gpu_check.json", patience * args.budget, about)
    for section in chosen:
        section = replace(section, seconds=patience * section.seconds)
        result = record.run(section, args.fork)
        print(f"{section.name}: {result.status} [{result.seconds:.1f} s]", flush=True)
    text = tables.markdown(title, record.results)
    (args.out / "gpu_check.md").write_text(text)
    print(text)
    return any(result.status == FAILED for result in record.results)


def _device(dry: bool) -> str:
    if dry:
        return "emulator (no figure says anything about a GPU)"
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.splitlines()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return "no GPU found"


if __name__ == "__main__":
    sys.exit(main())
