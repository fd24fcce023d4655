"""Where the kernels under test run: a CUDA device or, dry, the emulator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from benchmarks.timer import Timing
from tools.gpu_check.record import Missing

_FLUSHED_BYTES = 2**29


@dataclass(frozen=True)
class Place:
    """A CUDA device, or the emulator on CPU tensors.

    Attributes:
        dry: whether it is the emulator.
    """

    dry: bool

    @property
    def device(self) -> torch.device:
        """Of the tensors."""
        return torch.device("cpu" if self.dry else "cuda")

    def require_gpu(self) -> None:
        """Refuse to do what only a GPU can.

        Raises:
            Missing: there is none.
        """
        if self.dry:
            raise Missing("needs a GPU")

    def to(self, tree: Any) -> Any:
        """The same tensors there."""
        return tree_map_only(Tensor, lambda t: t.to(self.device), tree)

    @contextmanager
    def running(self, poisoned: bool = False, capability: tuple[int, int] = (9, 0)) -> Iterator[None]:
        """Run gqc's ops on the device inside the context.

        Args:
            poisoned: fill new tensors with NaN or the largest integer, so that what a kernel leaves out is seen.
            capability: of the GPU that the emulator stands for.
        """
        if self.dry:
            from tests.emu import emulator

            target = emulator.Emulator(emulator.library(), "random", torch.initial_seed(), capability).running()
        else:
            target = nullcontext()
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(poisoned, warn_only=True)
        try:
            with target:
                yield
        finally:
            torch.use_deterministic_algorithms(before)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Let ``cuda_graph=True`` record: dry, the tests' stand-in for CUDA graphs, from the second call on."""
        if not self.dry:
            yield
            return
        from gqc.cuda_graph import refusal, stage
        from tests.fake_graphs import FakeRecorder

        with ExitStack() as stack:
            for module in (refusal, stage):
                stack.enter_context(patch.object(module, "recorder_for", lambda device: FakeRecorder()))
            stack.enter_context(patch.object(stage, "WARM_UPS", 1))
            yield

    @contextmanager
    def waiting_refused(self) -> Iterator[None]:
        """Inside the context, what waits for the GPU is an error."""
        if self.dry:
            yield
            return
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def synchronize(self) -> None:
        """Wait for all kernels."""
        if not self.dry:
            torch.cuda.synchronize()

    def paired(self, contestants: Mapping[str, Callable[[], object]], rounds: int, until: float) -> dict[str, Timing]:
        """Device time of contestants that take turns, as :func:`benchmarks.timer.paired`, in at least one round.

        Before each call the L2 cache is overwritten, which also keeps the device busy until the call is launched.
        """
        names = list(contestants)
        seconds: dict[str, list[float]] = {name: [] for name in names}
        flushed = torch.empty(0 if self.dry else _FLUSHED_BYTES, dtype=torch.int8, device=self.device)
        for number in range(-1 if self.dry else -2, rounds):
            if number > 0 and time.monotonic() > until:
                break
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                elapsed = self._time(contestants[name], flushed)
                if number >= 0:
                    seconds[name].append(elapsed)
        return {name: Timing(tuple(values)) for name, values in seconds.items()}

    def _time(self, run: Callable[[], object], flushed: Tensor) -> float:
        if self.dry:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flushed.zero_()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """The most memory that torch held for tensors while ``run`` ran, beyond what it held before; 0 dry."""
        if self.dry:
            run()
            return 0
        self.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        self.synchronize()
        return torch.cuda.max_memory_allocated() - before
