"""The dump of a model for one call, outside training."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils._pytree import tree_leaves

from gqc.errors import DumpError, DumpWarning
from gqc.policy import Policy


def write_dump(
    model: nn.Module,
    args: Sequence[Any],
    folder: str | Path,
    *,
    kwargs: Mapping[str, Any] | None = None,
    policy: Policy | None = None,
) -> Path:
    """Compile a model for one call and dump what the passes do with it.

    The call runs once, so buffers that forward updates change; parameters and ``.grad`` do not. Scales and errors are
    measured on it; with gradients, its backward starts from one drawn from N(0, 1) for every element of every output.

    Args:
        model: as for :func:`gqc.compile`, in training or in eval mode.
        args, kwargs: arguments of the call.
        folder: where to; made if missing.
        policy: how to quantize; default ``Policy()``.

    Returns:
        The page to open, ``folder/index.html``.

    Raises:
        DumpError: the folder cannot be written to, or the model runs eagerly, so that there is nothing to dump.
    """
    from gqc.compile import compile, state_of
    from gqc.trial import differentiate

    compiled = compile(model, policy, dump=folder)
    kwargs = dict(kwargs or {})
    dumper = state_of(compiled).dumper
    assert dumper is not None
    dumper.gradients = ", with gradients of the outputs drawn from N(0, 1)"
    with warnings.catch_warnings():
        warnings.simplefilter("error", DumpWarning)
        result = compiled(*args, **kwargs)
        differentiate("gqc.dump", result, None, [*compiled.parameters(), *tree_leaves((tuple(args), kwargs))])
    if not dumper.variants:
        why = "; ".join(map(str, state_of(compiled).fallbacks.values())) or "no part of it was compiled"
        raise DumpError(f"{type(model).__name__} has no graph to dump: {why}")
    return dumper.entry
