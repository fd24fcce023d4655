"""Measures ways to save the activations of a training step: bytes saved, most memory at one time, and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

import gqc
from benchmarks.timer import paired
from gqc.peak import allocated, most_allocated

Record = dict[str, Any]
Prepare = Callable[[nn.Module], nn.Module]
Made = tuple[Callable[[], object], Callable[[], Tensor]]
EXACT = "gqc bits=32"


class Autocast(nn.Module):
    """A model whose forward runs under bf16 autocast."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(*inputs)


def compiled(**options: Any) -> Prepare:
    """Compiles a model with the options of :func:`gqc.compile`."""
    return lambda model: gqc.compile(model, **options)


COMPILED: dict[str, Prepare] = {
    EXACT: compiled(bits=32),
    **{f"gqc save_bits={bits}": compiled(bits=32, save_bits=bits) for bits in (8, 4, 2, 1)},
}
"""Exact compute, with activations as they are and in few bits."""


@dataclass(frozen=True)
class Contest:
    """Training steps of one model that save activations in different ways.

    Attributes:
        title: of the table.
        described: what each record says of the model, the data and the sizes; ``"model"`` is among it.
        make: the full training step of a contestant and its forward alone, which gives what the backward starts from.
        names: contestants; the first is the base.
    """

    title: str
    described: Record
    make: Callable[[str], Made]
    names: list[str]

    def measure(self, rounds: int, console: Console, of_processor: bool = False) -> list[Record]:
        """Saved bytes, peaks and paired times, one record a contestant.

        Args:
            rounds: timed steps of each.
            console: is told who cannot run.
            of_processor: time of the processors instead of the clock on the wall.
        """
        steps: dict[str, Callable[[], object]] = {}
        saved: dict[str, int] = {}
        peaks: dict[str, int] = {}
        for name in self.names:
            try:
                steps[name], forward = self.make(name)
                steps[name]()
                saved[name] = saved_bytes(forward)
                peaks[name] = most_allocated(steps[name], torch.device("cpu"))
            except Exception as error:
                if "gqc" in name or name == self.names[0]:
                    raise
                # As DGL's GATConv under autocast, which mixes bf16 and fp32.
                steps.pop(name, None)
                console.print(f"{name} cannot run: {type(error).__name__}: {str(error).splitlines()[0]}")
        timings = paired(steps, rounds, clock=time.process_time if of_processor else time.perf_counter)
        base, exact = timings[self.names[0]], timings.get(EXACT)
        return [
            {
                **self.described,
                "threads": torch.get_num_threads(),
                "contestant": name,
                "saved_bytes": saved[name],
                "most_allocated": peaks[name],
                "clock": "processor" if of_processor else "wall",
                "median_ms": 1e3 * timing.median,
                "quartiles_ms": [1e3 * bound for bound in timing.quartiles],
                "time_ratio": 1 / timing.speedup_over(base),
                # Beside gqc in full precision: what compression costs.
                **({"time_of_exact": 1 / timing.speedup_over(exact)} if exact is not None and "gqc" in name else {}),
            }
            for name, timing in timings.items()
        ]


def chosen(contestants: Collection[str], names: Collection[str] | None) -> list[str]:
    """The base, which is the first contestant, and those of ``names``; all for ``None``."""
    return [name for at, name in enumerate(contestants) if names is None or at == 0 or name in names]


def saved_bytes(forward: Callable[[], Tensor]) -> int:
    """Bytes that a forward has allocated and keeps for the backward, its result apart.

    Hooks on saved tensors do not see what ``checkpoint`` keeps, so the allocator is asked.
    """
    result, changes = allocated(forward)
    return sum(changes) - result.nbytes
