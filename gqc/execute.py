"""Running the two generated halves of a compiled stage as one autograd function.

AOTAutograd's own wrapper enables grad again and fails under inference mode, so the halves are driven by a small
:class:`torch.autograd.Function`; without a backward half the forward half is called as it is. The casts of autocast
are part of the halves, so autocast is off while they run. The backward frees what was saved value by value, each after
its last reader, unless ``retain_graph`` keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from gqc.errors import GqcError
from gqc.joint import SEED, TANGENT, JointGraph
from gqc.passes.partition import Halves
from gqc.seed import SeedSource


class Way(Protocol):
    """How the halves run in one call: launched one op after another, or replayed as CUDA graphs."""

    def forward(self, values: Sequence[Any]) -> Sequence[Any]:
        """The forward outputs, then the saved values."""

    def backward(self, saved: list[Any], tangents: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """One gradient or ``None`` a value of the forward; may empty ``saved``, so that it keeps nothing alive."""


class Executable:
    """The callable form of a compiled stage.

    Called with the values of the joint graph's parameters, buffers and inputs in placeholder order, it returns the
    forward outputs; gradients flow to every tensor among them that requires grad. It is a :class:`Way` itself.

    Attributes:
        halves: what runs.
        seed_device: where the forward half wants a seed as its last argument, ``None`` if it draws none.
        seed: gives it.
        tangents: the forward outputs that have a gradient, in the order of the backward half's last placeholders.
        differentiable: positions of the values for which the backward half has a gradient.
    """

    def __init__(self, joint: JointGraph, halves: Halves, seed: SeedSource) -> None:
        self.halves = halves
        self.forward_half = halves.forward.forward
        self.num_outputs = joint.num_forward_outputs
        self.seed_device = next((p.node.meta["val"].device for p in joint.placeholders if p.kind == SEED), None)
        self.seed = seed
        self.backward_half = _freeing(halves.backward) if halves.backward is not None else None
        tangents = [p.index for p in joint.placeholders if p.kind == TANGENT]
        self.tangents = tangents
        self.constant_outputs = [i for i in range(self.num_outputs) if i not in set(tangents)]
        primals = [p.node for p in joint.placeholders if p.kind != TANGENT]
        gradients = dict(zip(joint.gradient_of, joint.output.args[0][joint.num_forward_outputs :], strict=True))  # type: ignore[index]
        self.differentiable = [i for i, node in enumerate(primals) if gradients.get(node) is not None]

    def __call__(self, values: list[Any]) -> Sequence[Any]:
        if self.seed_device is not None:
            values.append(self.seed(self.seed_device))
        return self.run(self, values)

    def run(self, way: Way, values: list[Any]) -> Sequence[Any]:
        """The forward outputs, computed one way, which the backward takes too."""
        if self.backward_half is None:
            return way.forward(values)
        return _Step.apply(self, way, values, *[values[i] for i in self.differentiable])

    def forward(self, values: Sequence[Any]) -> Sequence[Any]:
        with torch._C._DisableAutocast():
            return self.forward_half(*values)

    def backward(self, saved: list[Any], tangents: Sequence[Tensor]) -> Sequence[Tensor | None]:
        assert self.backward_half is not None
        values = [*saved, *tangents]
        saved.clear()
        with torch._C._DisableAutocast():
            return self.backward_half(values)


def _freeing(module: fx.GraphModule) -> Callable[[list[Any]], Sequence[Tensor | None]]:
    """The same function of one list, which it empties: arguments of a call would live as long as the call."""
    graph = fx.Graph()
    values = graph.placeholder("values")
    copies: dict[fx.Node, fx.Node] = {}
    for node in reversed(module.graph.find_nodes(op="placeholder")):
        copies[node] = graph.call_method("pop", (values,))
    for node in module.graph.nodes:
        if node.op != "placeholder":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.lint()
    return fx.GraphModule(module, graph).forward


class _Step(torch.autograd.Function):
    """One call of a compiled stage; the differentiable values are arguments, all others come in a list."""

    @staticmethod
    def forward(ctx: Any, run: Executable, way: Way, values: list[Any], *_: Tensor) -> tuple[Any, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            results = way.forward(values)
        outputs, saved = results[: run.num_outputs], results[run.num_outputs :]
        ctx.run, ctx.way = run, way
        ctx.save_for_backward(*[s for s in saved if isinstance(s, Tensor)])
        ctx.layout = [None if isinstance(s, Tensor) else s for s in saved]
        ctx.mark_non_differentiable(*[outputs[i] for i in run.constant_outputs if isinstance(outputs[i], Tensor)])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise GqcError(
                "a compiled model has no second derivative (create_graph=True): take it of the eager model, "
                "which gqc.state_of(model).model is"
            )
        run: Executable = ctx.run
        tensors = list(reversed(ctx.saved_tensors))
        saved = [tensors.pop() if s is None else s for s in ctx.layout]
        ctx.maybe_clear_saved_tensors()
        with torch._C._AutoDispatchBelowAutograd():
            results = ctx.way.backward(saved, [grads[i] for i in run.tangents])
        return (None, None, None, *[results[i] for i in run.differentiable])
