"""Do torch's threads and those of gqc's kernels disturb each other?

Ops of torch and of gqc take turns, call by call, beside as many calls of either alone, in two processes: as installed,
where both use one OpenMP runtime and so the same threads, and with a copy of gqc's library that is bound to a second
runtime, whose threads wait for work while the others compute. A process that loads two by accident, as when torch was
built with another one, is like that. What taking turns costs in the first is the caches; in the second it is that and
the threads that wait.

python -m benchmarks.openmp --rows 169343 2708
python -m benchmarks.openmp --runtime DIR/libiomp5.so  # of `pip download intel-openmp`
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.graphs import LAWS, relation
from benchmarks.timer import Timing, paired
from gqc.runtime import native, ops  # noqa: F401  registers torch.ops.gqc

gqc = torch.ops.gqc
NEEDED, OTHER = b"libgomp.so.1\0", b"libgomp.so.2\0"
"""Of one length: the name that gqc's library asks the loader for, and the one that its copy asks for."""

WIDTH, CALLS = 128, 8
TORCH, OWN = "torch", "gqc"


def runtimes() -> list[str]:
    """Files of the OpenMP runtimes that this process has loaded."""
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    return sorted(p for p in paths if any(name in Path(p).name for name in ("libgomp", "libiomp", "libomp")))


def bind_to_second(folder: Path, runtime: Path) -> Path:
    """Put a copy of gqc's library and the runtime that it asks for into ``folder``, and give the library."""
    library = folder / "libgqc_cpu.so"
    library.write_bytes(native.library_path().read_bytes().replace(NEEDED, OTHER))
    (folder / OTHER.strip(b"\0").decode()).write_bytes(runtime.read_bytes())
    return library


def pairs(rows: int) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Ops of torch and of gqc on ``rows`` rows, by the name of the pair."""
    torch.manual_seed(0)
    x, weight, seed = torch.randn(rows, WIDTH), torch.randn(WIDTH, WIDTH), torch.tensor([1, 2])
    g = relation(LAWS["arxiv"].scaled(rows / LAWS["arxiv"].nodes))
    q, scale = gqc.quantize(x, None, seed, 0, 8, True)
    target, absmax = torch.empty_like(x), x.abs().amax()
    torchs = {"relu": lambda: torch.clamp_min(x, 0, out=target), "mm": lambda: torch.mm(x, weight, out=target)}
    owns = {
        "quantize": lambda: gqc.quantize(x, absmax, seed, 0, 8, True),
        "int8 sum": lambda: gqc.qspmm(g, "copy_lhs", q, scale, None, None, torch.float32),
    }
    return {f"{one}, {other}": (torchs[one], owns[other]) for one in torchs for other in owns}


def measure(rows: int, rounds: int) -> Iterator[dict[str, Any]]:
    """A record a pair: seconds of a call of torch and of gqc alone, and of both in turns."""
    for name, (one, other) in pairs(rows).items():

        def turns(one: Callable[[], object] = one, other: Callable[[], object] = other) -> None:
            for _ in range(CALLS):
                one()
                other()

        timings = paired({TORCH: _repeated(one), OWN: _repeated(other), "turns": turns}, rounds)
        yield {"rows": rows, "pair": name, **{key: [s / CALLS for s in t.seconds] for key, t in timings.items()}}


def _repeated(call: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        for _ in range(CALLS):
            call()

    return run


def child(args: argparse.Namespace) -> None:
    """Measure in this process, with the library at ``--library`` if that is given."""
    library = native.library_path()
    if args.library:
        library = Path(args.library)
        # The runtime first, as any other library; then gqc's, bound to it and not to what torch has made visible.
        ctypes.CDLL(str(library.with_name(OTHER.strip(b"\0").decode())), mode=os.RTLD_NOW)
        ctypes.CDLL(str(library), mode=os.RTLD_NOW | os.RTLD_DEEPBIND)
    with patch.object(native, "library_path", lambda: library):
        records = [record for rows in args.rows for record in measure(rows, args.rounds)]
    threads = len(os.listdir("/proc/self/task"))
    Path(args.json).write_text(json.dumps({"runtimes": runtimes(), "threads": threads, "records": records}))


def run_child(args: argparse.Namespace, runtime: Path | None, folder: Path) -> dict[str, Any]:
    """What :func:`child` writes, in a process of its own."""
    result = folder / "result.json"
    command = [sys.executable, "-m", "benchmarks.openmp", "--json", str(result), "--rounds", str(args.rounds)]
    command += ["--rows", *map(str, args.rows)]
    environment = dict(os.environ)
    if runtime is not None:
        command += ["--library", str(bind_to_second(folder, runtime))]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))
    subprocess.run(command, env=environment, check=True)
    return json.loads(result.read_text())


def table(title: str, found: dict[str, Any]) -> Table:
    """One row a pair: milliseconds a call, and what taking turns costs beside calls alone."""
    loaded = "\n".join(found["runtimes"])
    out = Table(title=f"{title}, {found['threads']} threads in the process\n{loaded}", title_justify="left")
    for heading in ("rows", "torch, gqc", "torch alone, ms", "gqc alone, ms", "in turns, ms", "in turns / alone"):
        out.add_column(heading, justify="left" if heading == "torch, gqc" else "right")
    for record in found["records"]:
        one, other, turns = (Timing(tuple(record[key])) for key in (TORCH, OWN, "turns"))
        alone = Timing(tuple(a + b for a, b in zip(one.seconds, other.seconds, strict=True)))
        cells = [f"{1e3 * t.median:.3f}" for t in (one, other, turns)]
        out.add_row(f"{record['rows']:,}", record["pair"], *cells, f"{1 / turns.speedup_over(alone):.2f}")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[169_343, 2_708])
    parser.add_argument("--runtime", type=Path, help="file of the second runtime; by default a copy of the first")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--library", help=argparse.SUPPRESS)
    parser.add_argument("--json", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.json:
        child(args)
        return
    second = args.runtime or Path(runtimes()[0])
    for title, runtime in (("as installed", None), (f"gqc with a second runtime, {second.name}", second)):
        with tempfile.TemporaryDirectory() as folder:
            Console().print(table(title, run_child(args, runtime, Path(folder))))


if __name__ == "__main__":
    main()
