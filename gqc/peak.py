"""The most memory that tensors took at one time while something ran."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import torch
from torch.profiler import ProfilerActivity, profile

from gqc.runtime import empty_cache


def most_allocated(run: Callable[[], object], device: torch.device) -> int:
    """Bytes that tensors on a device took at one time during ``run``, beyond what was there before.

    On the CPU it is what torch's allocator gave away, as its profiler records it; the memory that gqc keeps between
    steps is given back before, so that what ``run`` takes of it counts, in use or waiting. On a GPU it is what the
    caching allocator calls allocated.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    empty_cache()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    on_cpu = sorted((e.start_ns(), e.nbytes()) for e in events if e.device_type() == torch._C._autograd.DeviceType.CPU)
    return max(0, *accumulate(nbytes for _, nbytes in on_cpu), 0)
