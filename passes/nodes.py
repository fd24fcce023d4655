"""What the passes ask of a node of the joint graph, and how they add one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

FORWARD, BACKWARD = "forward", "backward"

EARLY = "early"
"""Key of a node's meta: it is computed in the forward and saved, even if the backward could compute it too."""

aten = torch.ops.aten

IDENTITIES = frozenset({aten.detach.default, aten.alias.default, aten.clone.default, aten.lift_fresh_copy.default})
"""Ops whose result has the values and the shape of their operand."""

RESHAPES = frozenset(
    {
        aten.t.default,
        aten.transpose.int,
        aten.permute.default,
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
    }
)
"""Ops whose result holds the values of their operand in another shape, each exactly once."""

PARTS = frozenset({aten.slice.Tensor, aten.select.int, aten.index_select.default, aten.index.Tensor})
"""Ops whose result holds some of the values of their operand."""

FOR_BACKWARD = "for_backward"
"""Key of ``node.meta`` of what the forward computes for the backward alone. It shares no kernel that would change what
the forward computes for its results."""

_SCALINGS = frozenset({aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar, aten.pow.Tensor_Scalar})
_DROPOUTS = ("native_dropout", "dropout")

_MOVES = (aten.t.default, aten.transpose.int, aten.permute.default)
VIEWS = (aten.view.default, aten._unsafe_view.default)
"""Reshapes that are possible with some strides of their operand only."""


@dataclass(frozen=True)
class Origin:
    """Where a node comes from in the user's model.

    Attributes:
        id: number of the recorded call, the same on the backward nodes that AOTAutograd derives from it; -1 if unknown.
        module: dotted path of the module that made the call, ``""`` for the model itself.
        type: class name of that module.
    """

    id: int = -1
    module: str = ""
    type: str = ""


def origin(node: fx.Node) -> Origin:
    """The recorded call behind a node."""
    recorded = node.meta.get("custom", {}).get("gqc", {})
    return Origin(recorded.get("id", -1), recorded.get("module", ""), recorded.get("type", ""))


def half(node: fx.Node) -> str:
    """``"backward"`` for what AOTAutograd derived, ``"forward"`` otherwise."""
    return BACKWARD if node.meta.get("partitioner_tag") == "is_backward" else FORWARD


def is_tensor(node: object) -> bool:
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), Tensor)


def is_float(node: fx.Node) -> bool:
    """Whether the node is a floating-point tensor."""
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()


def is_size(node: fx.Node) -> bool:
    """Whether the node is a number computed from tensor sizes."""
    return isinstance(node.meta.get("val"), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def example(size: int | torch.SymInt) -> int:
    """A size at the example call; 1 for a size that the example does not fix."""
    hint = size if isinstance(size, int) else size.node.hint
    return 1 if hint is None else int(hint)


def example_numel(value: Tensor) -> int:
    """Number of elements at the example call."""
    count = 1
    for size in value.shape:
        count *= example(size)
    return count


def is_random(node: fx.Node) -> bool:
    """Whether the node draws from a generator, so that running it twice gives two results."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def mutates(node: fx.Node) -> bool:
    """Whether running the node has an effect besides its result."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and (schema.is_mutable or not schema.returns)


def is_updated(node: fx.Node) -> bool:
    """Whether the graph updates the node's tensor in place."""
    return any(mutates(user) and user.args[0] is node for user in node.users)


def is_neutral(node: fx.Node) -> bool:
    """Whether the node computes what its operand already is: times 1, by 1, its power of 1, cast to its type."""
    if node.target in _SCALINGS:
        factor = node.args[1]
        neutral = isinstance(factor, (int, float)) and not isinstance(factor, bool) and factor == 1
    else:
        neutral = node.target is aten._to_copy.default
    if not neutral or not is_tensor(node.args[0]):
        return False
    operand, result = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    return (operand.dtype, operand.device, operand.shape) == (result.dtype, result.device, result.shape)


def undropped(node: fx.Node) -> fx.Node | None:
    """The operand of a dropout that drops nothing, if the node is its result."""
    if node.target is not operator.getitem or node.args[1] != 0:
        return None
    dropout: fx.Node = node.args[0]  # type: ignore[assignment]
    schema = getattr(dropout.target, "_schema", None)
    if schema is None or schema.name.split("::")[1] not in _DROPOUTS:
        return None
    off = dropout.args[1] == 0 or (dropout.target is aten.native_dropout.default and dropout.args[2] is False)
    return dropout.args[0] if off else None  # type: ignore[return-value]


def source(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """The node that first held a node's values, and the reshapes from there to the node in order."""
    path: list[fx.Node] = []
    while node.op == "call_function" and (node.target in RESHAPES or node.target in IDENTITIES):
        if node.target in RESHAPES:
            path.append(node)
        node = node.args[0]  # type: ignore[assignment]
    return node, path[::-1]


def size(node: fx.Node, axis: int) -> fx.Node | int:
    """A size of a tensor as an argument of a call at the graph's insertion point."""
    value = node.meta["val"].shape[axis]
    if isinstance(value, int):
        return value
    axis %= node.meta["val"].dim()  # part of a name
    return call(aten.sym_size.int, (node, axis), node, f"{node.name}_size_{axis}")


def same_rows(node: fx.Node) -> bool:
    """Whether a row of the tensor that first held a node's values is a row of the node, in another shape at most."""
    values, path = source(node)
    moved = any(step.target in _MOVES for step in path)
    sizes = node.meta["val"].shape[0], values.meta["val"].shape[0]
    return not moved and statically_known_true(sizes[0] == sizes[1])


def needed_for(ends: Iterable[object], given: Container[fx.Node] = ()) -> set[fx.Node]:
    """The nodes among ``ends`` and all that they are computed from, without and not behind those that are ``given``."""
    found: set[fx.Node] = set()
    stack = [n for n in ends if isinstance(n, fx.Node)]
    while stack:
        node = stack.pop()
        if node not in found and node not in given:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return found


def by_name(node: fx.Node) -> dict[str, Any]:
    """The arguments of a call of an op by their names in its schema; what is left out has its default."""
    given = dict(node.kwargs)
    for position, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if position < len(node.args):
            given[argument.name] = node.args[position]
        given.setdefault(argument.name, argument.default_value)
    return given


def inputs_of_values(node: fx.Node) -> Iterator[fx.Node]:
    """Inputs whose values, not sizes, a node reads."""
    return (n for n in node.all_input_nodes if not is_size(n))


def first_call(graph: fx.Graph) -> fx.Node:
    """The first node after the placeholders."""
    return next(n for n in graph.nodes if n.op != "placeholder")


def pick(node: fx.Node, index: int, name: str | None = None) -> fx.Node:
    """The node that takes one result of a node with several, added after it as ``name`` if it is not there yet."""
    for user in node.users:
        if user.target is operator.getitem and user.args[1] == index:
            return user
    with node.graph.inserting_after(node):
        picked = node.graph.create_node("call_function", operator.getitem, (node, index), name=name)
    picked.meta.update(node.meta, val=node.meta["val"][index])
    picked.meta.pop("gqc", None)
    return picked


def call(target: Callable[..., Any], args: tuple[Any, ...], like: fx.Node, name: str, **options: Any) -> fx.Node:
    """Add a call at the graph's insertion point.

    Its fake value comes from running the op on its arguments' fake values; origin and half are those of ``like``.
    """
    node = like.graph.create_node("call_function", target, args, options, name)
    values = fx.map_arg(args, lambda n: n.meta["val"])
    modes = [v.fake_mode for n in node.all_input_nodes if hasattr(v := n.meta["val"], "fake_mode")]
    with modes[0]:
        node.meta["val"] = target(*values, **options)
    for key in ("custom", "partitioner_tag"):
        if key in like.meta:
            node.meta[key] = like.meta[key]
    return node


def replay(step: fx.Node, contiguous: fx.Node, name: str) -> fx.Node:
    """Reshape another tensor as ``step``, one of :data:`RESHAPES`, reshapes its operand."""
    # What is a view of the operand may need a copy of a contiguous tensor.
    target = aten.reshape.default if step.target in VIEWS else step.target
    return call(target, (contiguous, *step.args[1:]), step, name)  # type: ignore[arg-type]


def drop_unused(graph: fx.Graph) -> None:
    """Erase the calls whose result nobody reads and that have no other effect."""
    graph.eliminate_dead_code(lambda n: n.op in ("placeholder", "output") or mutates(n))
