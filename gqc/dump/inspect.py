"""The dump of a model for one call, outside training."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from gqc.dump.stage import StageDump
from gqc.errors import DumpError, DumpWarning
from gqc.policy import Policy

if TYPE_CHECKING:
    from gqc.error_report import NodeError


def write_dump(
    model: nn.Module,
    args: Sequence[Any],
    folder: str | Path,
    *,
    kwargs: Mapping[str, Any] | None = None,
    policy: Policy | None = None,
    errors: bool = False,
) -> list[Path]:
    """Compile a model for one call and dump what the passes do with it.

    The call runs once, so buffers that forward updates change; parameters do not.

    Args:
        model: as for :func:`gqc.compile`, in training or in eval mode.
        args, kwargs: arguments of the call.
        folder: where to; made if missing.
        policy: how to quantize; default ``Policy()``.
        errors: run the call quantized and exact side by side, as :func:`gqc.error_report` does, and show in the page
            how far every quantized tensor, primitive and gradient is off.

    Returns:
        The ``index.html`` of every stage.

    Raises:
        DumpError: the folder cannot be written to, or the model runs eagerly, so that there is nothing to dump.
    """
    from gqc.compile import compile, state_of
    from gqc.error_report import measure_errors

    compiled = compile(model, policy, dump=folder)
    kwargs = dict(kwargs or {})
    with warnings.catch_warnings():
        warnings.simplefilter("error", DumpWarning)
        compiled(*args, **kwargs)
    state = state_of(compiled)
    assert state.dumper is not None
    if not state.dumper.stages:
        why = "; ".join(map(str, state.fallbacks.values())) or "no part of it was compiled"
        raise DumpError(f"{type(model).__name__} has no graph to dump: {why}")
    measured = measure_errors(compiled, tuple(args), kwargs).nodes if errors else ()
    return [stage.write(to, _of_stage(stage, measured)) for stage, to in state.dumper.stages]


def _of_stage(stage: StageDump, errors: Sequence[NodeError]) -> dict[str, str]:
    """The errors of a stage's nodes as text. Stages may have nodes of one name, which their modules tell apart."""
    nodes = {(n.name, n.module, n.half) for n in stage.snapshots[-1].nodes}
    places = Counter((e.node, e.module, e.half) for e in errors)
    return {e.node: _text(e) for e in errors if (key := (e.node, e.module, e.half)) in nodes and places[key] == 1}


def _text(error: NodeError) -> str:
    own = "" if error.own is None else f", {error.own:.2%} by itself"
    return f"{error.relative:.2%}{own}; cosine {error.cosine:.5f}"
