"""One step of a compiled model, taken to look at it, that leaves nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gqc.capture import Call, StateChange
from gqc.errors import CaptureError, GqcError
from gqc.generators import generators_kept
from gqc.seed import SeedSource
from gqc.text import a_kind
from gqc.variant import Variant

if TYPE_CHECKING:
    from gqc.compile import CompileState


def variant_of(state: CompileState, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Variant, Call]:
    """The variant that serves a call, compiled if there is none yet, and the call as it reads it.

    Raises:
        CaptureError: calls of this kind run eagerly, or the first one would fill a cache.
    """
    try:
        return state.variant_of(inputs, kwargs)
    except StateChange as change:
        reason = f"{change.reason}; if that fills a cache, call the model once before"
        raise CaptureError(reason, module=change.module, location=change.location) from change


@contextmanager
def undone(model: nn.Module, seed: SeedSource) -> Iterator[None]:
    """What the modules hold, the generators and the steps of the seed are put back at the end."""
    held = [(m, dict(vars(m)), dict(m._buffers)) for m in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        with generators_kept(), seed.kept():
            yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for module, attributes, slots in held:
            for added in vars(module).keys() - attributes.keys():
                del vars(module)[added]
            vars(module).update(attributes)
            module._buffers.update(slots)


@contextmanager
def columns_put_back(variant: Variant, call: Call) -> Iterator[None]:
    """Columns that the model writes to graphs are put back at the end."""
    outputs = variant.captured.outputs
    before = []
    for writes in outputs.graph_writes:
        adapter, graph = outputs.inputs.graphs[writes.graph].adapter, call.graphs[writes.graph]  # type: ignore[union-attr]
        columns = adapter.tensors(graph)
        before.append((adapter, graph, {name: columns.get(name) for name in writes.columns}))
    try:
        yield
    finally:
        for adapter, graph, columns in before:
            adapter.write_back(graph, columns)


def differentiate(tool: str, result: Any, loss_fn: Callable[[Any], Tensor] | None, leaves: list[Any]) -> None:
    """Run the backward, which hands every stage its gradients, without touching ``.grad``.

    Args:
        tool: for the message.
        result: of the model.
        loss_fn: takes ``result`` and returns the scalar whose gradient starts the backward; ``None``: every element of
            every output receives a gradient drawn from N(0, 1).
        leaves: what gradients are computed for, where they require them.

    Raises:
        GqcError: ``loss_fn`` returned no number that depends on the model.
    """
    wanted = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
    outputs = [x for x in tree_leaves(result) if isinstance(x, Tensor) and x.requires_grad]
    if not wanted or not outputs:
        return
    if loss_fn is not None:
        loss = loss_fn(result)
        if not (isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad):
            got = a_kind(loss)
            if isinstance(loss, Tensor):
                got = f"a tensor of shape {list(loss.shape)}" + ", which has no gradient" * (not loss.requires_grad)
            raise GqcError(f"{tool}: loss_fn returned {got}: return one number computed from its argument")
        torch.autograd.grad(loss, wanted, allow_unused=True)
        return
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randn(x.shape, generator=generator).to(x.dtype) for x in outputs]
    torch.autograd.grad(outputs, wanted, noise, allow_unused=True)
