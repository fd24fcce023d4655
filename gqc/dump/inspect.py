"""The dump of a model for one call, outside training."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from gqc.errors import DumpError, DumpWarning
from gqc.policy import Policy


def write_dump(
    model: nn.Module,
    args: Sequence[Any],
    folder: str | Path,
    *,
    kwargs: Mapping[str, Any] | None = None,
    policy: Policy | None = None,
) -> list[Path]:
    """Compile a model for one call and dump what the passes do with it.

    The call runs once, so buffers that forward updates change; parameters do not.

    Args:
        model: as for :func:`gqc.compile`, in training or in eval mode.
        args, kwargs: arguments of the call.
        folder: where to; made if missing.
        policy: how to quantize; default ``Policy()``.

    Returns:
        The ``index.html`` of every stage.

    Raises:
        DumpError: the folder cannot be written to, or the model runs eagerly, so that there is nothing to dump.
    """
    from gqc.compile import compile, state_of

    compiled = compile(model, policy, dump=folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DumpWarning)
        compiled(*args, **dict(kwargs or {}))
    state = state_of(compiled)
    assert state.dumper is not None
    if not state.dumper.pages:
        why = "; ".join(map(str, state.fallbacks.values())) or "no part of it was compiled"
        raise DumpError(f"{type(model).__name__} has no graph to dump: {why}")
    return state.dumper.pages
