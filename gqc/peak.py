"""The most memory that tensors took at one time while something ran."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

from gqc.runtime import empty_cache
from gqc.runtime.buffers import POOL

T = TypeVar("T")


def most_allocated(run: Callable[[], object], device: torch.device) -> int:
    """Bytes that tensors on a device took at one time during ``run``, beyond what was there before.

    On the CPU it is what torch's allocator gave away, as its profiler records it; gqc's pool, which keeps some memory
    beyond that, stands aside. On a GPU it is what the caching allocator calls allocated.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    _, changes = allocated(run)
    return max(0, *accumulate(changes), 0)


def allocated(run: Callable[[], T]) -> tuple[T, list[int]]:
    """The result of ``run``, and the bytes that torch's allocator on the CPU gave away (> 0) and got back, in order.

    What gqc keeps between steps is given back before, and meanwhile it keeps nothing.
    """
    empty_cache()
    with POOL.bypassed(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = run()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    on_cpu = [e for e in events if e.device_type() == torch._C._autograd.DeviceType.CPU]
    return result, [e.nbytes() for e in sorted(on_cpu, key=lambda e: e.start_ns())]
