"""Memory and time of a training step under each way to save activations in fewer bytes, in one run.

python -m benchmarks.memory --model gcn gat sage --data arxiv --scale 0.2 --json memory.json
python -m benchmarks.plot memory.json memory.svg

Contestants: DGL in fp32, the same with torch.utils.checkpoint around each layer but the last, under bf16 autocast; gqc
in full precision, with activations saved in 8, 4, 2 and 1 bits, by ``"auto"``, and with int8 products too.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import gqc
from benchmarks import malloc
from benchmarks.graphs import LAWS, node_data
from benchmarks.models import ARCHITECTURES, DglNet, dgl_net, prepared
from benchmarks.peak import peak_bytes
from benchmarks.peers import EAGER, Setting, Step, training_step
from benchmarks.timer import paired
from examples.datasets import DATASETS, load
from gqc.peak import allocated, most_allocated
from gqc.runtime.buffers import POOL

Record = dict[str, Any]
Context = Callable[[], AbstractContextManager[Any]]
_PEAK_STEPS = 3
_WIDTHS = (8, 4, 2, 1)


class Checkpointed(nn.Module):
    """A network of DGL's layers that saves the inputs of its layers alone and computes the rest twice."""

    def __init__(self, net: DglNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        def layer(conv: nn.Module, x: Tensor) -> Tensor:
            return self.net.dropout(F.relu(conv(graph, x).flatten(1)))

        for conv in self.net.convs[:-1]:
            x = checkpoint(layer, conv, x, use_reentrant=False)
        return self.net.convs[-1](graph, x).flatten(1)


def _autocast() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


def _compiled(**options: Any) -> Callable[[nn.Module], nn.Module]:
    return lambda model: gqc.compile(model, **options)


CONTESTANTS: dict[str, tuple[Callable[[Any], nn.Module], Context]] = {
    EAGER: (lambda model: model, nullcontext),
    "checkpoint": (Checkpointed, nullcontext),
    "DGL bf16 autocast": (lambda model: model, _autocast),
    "gqc bits=32": (_compiled(bits=32), nullcontext),
    **{f"gqc save_bits={b}": (_compiled(bits=32, save_bits=b), nullcontext) for b in _WIDTHS},
    "gqc save_bits=auto": (_compiled(bits=32, save_bits="auto"), nullcontext),
    "gqc int8": (_compiled(), nullcontext),
    "gqc int8, save_bits=2": (_compiled(save_bits=2), nullcontext),
}
"""What prepares the network, and the context in which its forward runs, by name."""


class Contest:
    """The steps of one network on one graph.

    Args:
        setting: network, data and sizes.
        names: contestants; the base is always among them.
    """

    def __init__(self, setting: Setting, names: list[str] | None) -> None:
        torch.manual_seed(0)
        self.setting = setting
        self.names = [name for name in CONTESTANTS if names is None or name in (EAGER, *names)]
        self._data = prepared(setting.name, setting.data)
        self._net = dgl_net(setting.name, self._data, setting.hidden, setting.layers, setting.dropout)

    def make(self, name: str) -> tuple[Step, Callable[[], Tensor]]:
        """A full training step of a contestant, and its forward alone."""
        prepare, context = CONTESTANTS[name]
        model = prepare(copy.deepcopy(self._net))

        def forward() -> Tensor:
            with context():
                return model(self._data.graph, self._data.features)

        return training_step(model, self._data.graph, self._data, context), forward


def saved_bytes(forward: Callable[[], Tensor]) -> int:
    """Bytes that a forward has allocated and keeps for the backward, its result apart.

    Hooks on saved tensors do not see what ``checkpoint`` keeps, so the allocator is asked.
    """
    result, changes = allocated(forward)
    waiting = POOL.nbytes()[1]
    return sum(changes) - waiting - result.nbytes


def measure(contest: Contest, rounds: int, console: Console) -> list[Record]:
    """Saved bytes, peaks and paired times, one record a contestant; the console is told who cannot run."""
    steps: dict[str, Step] = {}
    saved: dict[str, int] = {}
    peaks: dict[str, int] = {}
    for name in contest.names:
        try:
            steps[name], forward = contest.make(name)
            steps[name]()
            saved[name] = saved_bytes(forward)
            peaks[name] = most_allocated(steps[name], torch.device("cpu"))
        except Exception as error:
            if "gqc" in name or name == EAGER:
                raise
            # As DGL's GATConv under autocast, which mixes bf16 and fp32.
            steps.pop(name, None)
            console.print(f"{name} cannot run: {type(error).__name__}: {str(error).splitlines()[0]}")
    timings = paired(steps, rounds)
    setting = contest.setting
    return [
        {
            "model": setting.name,
            "data": setting.data.name,
            "hidden": setting.hidden,
            "layers": setting.layers,
            "dropout": setting.dropout,
            "threads": torch.get_num_threads(),
            "contestant": name,
            "saved_bytes": saved[name],
            "most_allocated": peaks[name],
            "median_ms": 1e3 * timing.median,
            "quartiles_ms": [1e3 * bound for bound in timing.quartiles],
            "time_ratio": 1 / timing.speedup_over(timings[EAGER]),
            **_of_exact(name, timings),
        }
        for name, timing in timings.items()
    ]


def _of_exact(name: str, timings: Any) -> Record:
    """How the time compares with that of gqc in full precision, which is what compression costs."""
    exact = timings.get("gqc bits=32")
    return {"time_of_exact": 1 / timings[name].speedup_over(exact)} if exact is not None and "gqc" in name else {}


def table(title: str, records: list[Record]) -> Table:
    """One row a contestant: saved bytes, how many times less than the base, the most that tensors took in a step, times
    and, where measured, the growth of resident memory with all compilation."""
    out = Table(title=title, title_justify="left")
    out.add_column("contestant")
    headings = ["saved, MB", "less than DGL", "most tensors, MB", "step, ms", "middle half", "of DGL's", "of bits=32"]
    for heading in [*headings, "peak, MB"]:
        out.add_column(heading, justify="right")
    base = records[0]
    for r in records:
        low, high = r["quartiles_ms"]
        out.add_row(
            r["contestant"],
            f"{r['saved_bytes'] / 1e6:.1f}",
            f"{base['saved_bytes'] / r['saved_bytes']:.1f}x",
            f"{r['most_allocated'] / 1e6:.1f}",
            f"{r['median_ms']:.1f}",
            f"{low:.1f} - {high:.1f}",
            f"{r['time_ratio']:.2f}",
            f"{r['time_of_exact']:.2f}" if "time_of_exact" in r else "",
            f"{(r['peak_bytes'] - r['before_bytes']) / 1e6:.0f}" if "peak_bytes" in r else "",
        )
    return out


def _peak(args: argparse.Namespace, model: str, name: str) -> Record:
    """Resident memory of a process that takes a few steps of one contestant."""
    chosen = {**vars(args), "model": [model], "peak_of": name, "memory": False, "json": None}
    return malloc.run_for_json("benchmarks.memory", malloc.command_line(chosen), malloc.current())[0]


def _settings(args: argparse.Namespace) -> list[Setting]:
    data = node_data(args.data, args.scale) if args.data in LAWS else load(args.data, args.data_root)
    return [Setting(name, data, args.hidden, args.layers, 0.5 if args.dropout else 0.0) for name in args.model]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--model", nargs="+", choices=ARCHITECTURES, default=["gcn", "gat", "sage"])
    out.add_argument("--data", choices=[*LAWS, *DATASETS], default="arxiv", help="a law to draw by, or a data set")
    out.add_argument("--scale", type=float, default=1.0, help="times the nodes and edges of the law")
    out.add_argument("--data-root", type=Path, help="folder of the public data sets")
    out.add_argument("--hidden", type=int, default=128)
    out.add_argument("--layers", type=int, default=3)
    out.add_argument("--dropout", action=argparse.BooleanOptionalAction, default=True)
    out.add_argument("--contestant", nargs="+", choices=CONTESTANTS, help="only these and the base")
    out.add_argument("--rounds", type=int, default=10)
    out.add_argument("--threads", type=int, default=torch.get_num_threads())
    peak = "peak of each contestant, in a process of its own"
    out.add_argument("--memory", action=argparse.BooleanOptionalAction, default=False, help=peak)
    out.add_argument("--peak-of", choices=CONTESTANTS, help="measure only the peak of this contestant, in this process")
    out.add_argument("--json", type=Path, help="write the numbers to this file too")
    return out


def main() -> None:
    args = parser().parse_args()
    torch.set_num_threads(args.threads)
    console = Console(width=None if sys.stdout.isatty() else 160)
    records: list[Record] = []
    for setting in _settings(args):
        contest = Contest(setting, args.contestant)
        if args.peak_of:
            before, most = peak_bytes(lambda c=contest: _repeat(c.make(args.peak_of)[0]))
            records.append({"before_bytes": before, "peak_bytes": most})
            continue
        measured = measure(contest, args.rounds, console)
        if args.memory:
            for record in measured:
                record |= _peak(args, setting.name, record["contestant"])
        title = f"{setting.name}, {setting.layers} layers, hidden {setting.hidden}, on {setting.data.name}"
        console.print(table(f"{title}; {args.threads} threads, dropout {setting.dropout:g}", measured))
        records += measured
    if args.json:
        args.json.write_text(json.dumps(records, indent=2) + "\n")


def _repeat(step: Step) -> None:
    for _ in range(_PEAK_STEPS):
        step()


if __name__ == "__main__":
    main()
