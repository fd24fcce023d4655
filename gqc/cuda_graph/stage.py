"""A compiled stage that records its halves as CUDA graphs and replays them where that is right."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gqc.cuda_graph.capture import MOVED, Call, Capture
from gqc.cuda_graph.recorder import is_recording, recorder_for
from gqc.cuda_graph.refusal import why_refused, written_values
from gqc.cuda_graph.usage import Usage
from gqc.execute import Executable
from gqc.joint import JointGraph

MAX_LAYOUTS = 4
"""Kinds of sizes that are recorded; each costs the memory of a step."""

WARM_UPS = 4
"""Calls of a kind that run op by op first: they load kernels, and :mod:`gqc.runtime.cuda.fastest` measures at the
fourth, which it cannot in a recording."""

MAX_RECORDINGS = 8
"""Of one kind of sizes, whose addresses change time and again."""

_REMEMBERED = 64
"""Kinds of sizes whose calls are counted."""

WARMING_UP = "the first calls with values of these sizes load kernels"
MOVES = f"values of these sizes lie at other addresses time and again: recorded {MAX_RECORDINGS} times"
NEEDED = "the call before still waits for its backward, whose saved tensors a replay would overwrite"
MANY = f"{MAX_LAYOUTS} other kinds of sizes are recorded"
WITHIN = "a CUDA graph of the caller's is being recorded"
HOOKS = "hooks on saved tensors are set, as by checkpointing or offloading"
MODES = "a dispatch mode or a transform of torch.func is active"


@dataclass
class _Kind:
    """Calls whose values have the same sizes, strides and types.

    Attributes:
        addresses: of the values in the last call.
        moves: how often each value has changed its address.
        copied: the values that a capture copies to memory of its own.
        warm_ups: calls still to come before one is recorded.
        recordings: how often one was recorded.
        capture: the last one, if it still holds.
    """

    addresses: list[int]
    moves: Counter[int] = field(default_factory=Counter)
    copied: set[int] = field(default_factory=set)
    warm_ups: int = field(default_factory=lambda: WARM_UPS)
    recordings: int = 0
    capture: Capture | None = None


class GraphedStage:
    """Runs an executable, by replaying graphs where its values allow it, else op by op.

    Args:
        run: what runs.
        joint: its graph.
        state: how many of its values are parameters and buffers, which come first. They are read where they stand, and
            so are inputs that stay where they are, such as the structure of a graph; inputs that move are copied.

    Attributes:
        usage: what became of its calls.
    """

    def __init__(self, run: Executable, joint: JointGraph, state: int) -> None:
        self._run = run
        self._device = joint.device
        self._state = state
        self._written: Set[int] = written_values(run.halves)
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()
        self._lock = threading.RLock()
        self.usage = Usage(why_refused(joint, run.halves))

    def __call__(self, values: list[Any]) -> Sequence[Any]:
        call = None if self.usage.refusal else self._call(values)
        return self._run(values) if call is None else self._run.run(call, values)

    def _call(self, values: Sequence[Any]) -> Call | None:
        """The way to replay a call, ``None`` if it runs op by op."""
        reason = self._why_not_now()
        if not reason:
            with self._lock:
                found = self._find(values)
            if isinstance(found, Call):
                return found
            reason = found
        if reason:
            self.usage.launched[reason] += 1
        return None

    def _why_not_now(self) -> str:
        if is_recording(self._device):
            return WITHIN
        if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
            return MODES
        if self._run.backward_half is not None and torch._C._autograd._top_saved_tensors_default_hooks(True):
            return HOOKS
        return ""

    def _find(self, values: Sequence[Any]) -> Call | str:
        """A way to replay a call, recorded if need be, or why there is none."""
        key = _layout(values)
        addresses = [value.data_ptr() if isinstance(value, Tensor) else 0 for value in values]
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind(addresses)
            self._forget()
        self._kinds.move_to_end(key)
        self._notice_moves(kind, addresses)
        if kind.capture is None:
            reason = self._record(kind, values)
            if reason:
                return reason
        assert kind.capture is not None
        return kind.capture.call(self.usage, self._refuse) or NEEDED

    def _notice_moves(self, kind: _Kind, addresses: list[int]) -> None:
        moved = [i for i, at in enumerate(addresses) if at != kind.addresses[i] and i not in kind.copied]
        kind.addresses = addresses
        if not moved:
            return
        kind.moves.update(moved)
        # Parameters and buffers move once with ``.to()`` or a loaded state; one that moves again does so at each step.
        kind.copied.update(i for i in moved if i not in self._written and (i >= self._state or kind.moves[i] > 1))
        if not kind.copied.issuperset(moved):
            kind.warm_ups = max(kind.warm_ups, 1)
        kind.capture = None

    def _record(self, kind: _Kind, values: Sequence[Any]) -> str:
        """Record a call; returns why it was not recorded."""
        if kind.warm_ups:
            kind.warm_ups -= 1
            return MOVED if kind.recordings else WARMING_UP
        if kind.recordings >= MAX_RECORDINGS:
            return MOVES
        if sum(other.capture is not None for other in self._kinds.values()) >= MAX_LAYOUTS:
            return MANY
        recorder = recorder_for(self._device)
        assert recorder is not None
        try:
            kind.capture = Capture(self._run, recorder, values, kind.copied, self._written)
        except RuntimeError as error:
            self._refuse(error)
            return self.usage.refusal
        kind.recordings += 1
        self.usage.recordings += 1
        return ""

    def _refuse(self, error: RuntimeError) -> None:
        """Record no more, after a half that could not be."""
        with self._lock:
            self.usage.refusal = f"recording failed with {type(error).__name__}: {error}"
            self._kinds.clear()

    def _forget(self) -> None:
        """Drop the kind that was called the longest ago, one that is not recorded."""
        if len(self._kinds) > _REMEMBERED:
            del self._kinds[next(key for key, kind in self._kinds.items() if kind.capture is None)]


def _layout(values: Sequence[Any]) -> Hashable:
    """What the recorded kernels depend on beside addresses."""
    sizes = tuple((x.dtype, x.size(), x.stride(), x.is_neg()) if isinstance(x, Tensor) else x for x in values)
    return sizes, torch.backends.cuda.matmul.fp32_precision, torch.are_deterministic_algorithms_enabled()
