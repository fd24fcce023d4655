"""What becomes of each value that the backward reads: saved as it is, in fewer bits, or computed again."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import fx

from gqc.joint import JointGraph
from gqc.passes.int8_copies import copied, is_copy
from gqc.passes.kept_as_is import KeptAsIs
from gqc.passes.nodes import example, example_numel, inputs_of_values
from gqc.passes.primitive import ops
from gqc.passes.saved_values import SavedTensor, is_repeated, tangent_dependent
from gqc.passes.saving_modules import saving_modules
from gqc.save_bits import SaveBits

PLAN = "saved_plan"
"""Key of ``node.meta`` under which the packed values of a tensor have their :class:`SavedPlan`."""

WIDTHS = "saved_widths"
"""Key of ``node.meta`` of the same node: what the tensor would take in each width that it may have."""

MASK_SHAPE = "mask_shape"
"""Key of ``node.meta`` of a mask that its kernel writes in 1 bit an element: the shape of the mask."""

AS_IS, INT8_OPERAND, MASK, RECOMPUTED = "as is", "int8 operand", "mask in 1 bit", "recomputed"
FLOAT24 = "float24"


def compressed_to(bits: int) -> str:
    """:attr:`SavedPlan.how` of a tensor that is compressed."""
    return f"compressed to {bits} bit{'' if bits == 1 else 's'}"


@dataclass(frozen=True)
class SavedPlan:
    """One value that the backward reads of the forward.

    Attributes:
        name: its node in the joint graph.
        module: dotted path of the module whose backward reads it, of that which computes it where that is not known;
            ``""`` for the model itself.
        shape: at the example call.
        dtype: of the value, before it is compressed.
        before: bytes of the value at the example call, if the forward saved it as it is: 0 for the int8 copy of a
            parameter or an input, which the caller holds anyway.
        after: bytes that are saved of it.
        how: ``"as is"``, ``"int8 operand"``, ``"mask in 1 bit"``, ``"float24"``, ``"compressed to 2 bits"`` or
            ``"recomputed"``.
        reason: one sentence fragment for people.
    """

    name: str
    module: str
    shape: tuple[int, ...]
    dtype: str
    before: int
    after: int
    how: str
    reason: str

    def __str__(self) -> str:
        where = f" of {self.module}" if self.module else ""
        shape = ", ".join(map(str, self.shape))
        memory = f"{self.before:,} to {self.after:,} B"
        return f"{self.name}{where}, {self.dtype} [{shape}]: {self.how}, {memory}: {self.reason}"

    @classmethod
    def of(cls, node: fx.Node, after: int, how: str, reason: str, late: Container[fx.Node] = ()) -> SavedPlan:
        """The plan of a tensor.

        Args:
            node: the tensor.
            after: bytes that are saved.
            how: what becomes of it.
            reason: why.
            late: the nodes that depend on a gradient.
        """
        value = node.meta["val"]
        dtype = str(value.dtype).removeprefix("torch.")
        before = example_numel(value) * value.dtype.itemsize
        module, shape = saving_modules(node, late)[0], tuple(map(example, value.shape))
        return cls(node.name, module, shape, dtype, before, after, how, reason)


def plan_of(joint: JointGraph, saved: Iterable[SavedTensor], saves: SaveBits | None = None) -> list[SavedPlan]:
    """What is saved for the backward that the caller does not hold, in the order of ``saved``.

    The packed values, least elements and ranges of a tensor are one entry, so the bytes after add up to those of
    ``saved``.

    Args:
        joint: the graph after all passes.
        saved: what crosses from its forward to its backward, as :func:`gqc.passes.partition.partition` has it.
        saves: ``Policy.saves``.
    """
    nodes = {node.name: node for node in joint.graph.nodes}
    kept = KeptAsIs(joint, saves) if saves is not None else None
    tensors = [nodes[s.name] for s in saved if not s.held and s.dtype is not None]
    late = tangent_dependent(joint)
    return [plan for node in tensors for plan in _plan(node, kept, late)]


def _plan(node: fx.Node, kept: KeptAsIs | None, late: set[fx.Node]) -> Iterator[SavedPlan]:
    value = node.meta["val"]
    nbytes = example_numel(value) * value.dtype.itemsize
    maker = node.args[0] if isinstance(node.args[0], fx.Node) else node
    if PLAN in node.meta:
        yield node.meta[PLAN]
    elif maker.target is ops.compress_rows.default:
        return  # least elements or ranges, which the entry of the packed values holds
    elif value.dtype is torch.int8 or (maker.target is ops.quantize_int4.default and value.dtype is torch.uint8):
        held = _held(maker if is_copy(maker) else node)
        if held is not None:
            reason = f"an operand of an int8 product; in full precision it is {held.name}, which the caller holds"
            yield replace(SavedPlan.of(node, nbytes, INT8_OPERAND, reason, late), before=0)
            return
        values = nbytes if value.dtype is torch.int8 else 2 * nbytes
        plan = SavedPlan.of(node, nbytes, INT8_OPERAND, "an operand of an int8 product is the saved activation", late)
        yield replace(plan, before=values * torch.float32.itemsize)
    elif MASK_SHAPE in node.meta:
        plan = SavedPlan.of(node, nbytes, MASK, "one bit an element, as the kernel that computes it writes it", late)
        shape = tuple(map(example, node.meta[MASK_SHAPE]))
        yield replace(plan, shape=shape, dtype="bool", before=prod(shape))
    else:
        reason = "save_bits is None" if kept is None else kept.reason(node)
        yield SavedPlan.of(node, nbytes, AS_IS, reason or "a pass after compress_saved lets the backward read it", late)


def _held(copy: fx.Node) -> fx.Node | None:
    """The parameter or input that an int8 copy holds, views aside; ``None`` if it holds something else."""
    if not is_copy(copy):
        return None
    values = copied(copy)
    while is_repeated(values):
        values = values.args[0]  # type: ignore[assignment]
    return values if values.op == "placeholder" else None


def hand_on(old: fx.Node, new: fx.Node) -> None:
    """Let what is said of a saved value be said of the node that takes its place."""
    new.meta.update({key: old.meta[key] for key in (PLAN, MASK_SHAPE) if key in old.meta})


def given_to_backward(node: fx.Node) -> SavedPlan:
    """The plan of a tensor that a stage gets from another or from an eager island, and that its backward reads."""
    value = node.meta["val"]
    nbytes = example_numel(value) * value.dtype.itemsize
    return SavedPlan.of(node, nbytes, AS_IS, "crosses from one stage to another: an eager island lies between")


def recomputed(node: fx.Node, late: Container[fx.Node]) -> SavedPlan:
    """The plan of a value that both halves or only the backward computes."""
    given = ", ".join(n.name for n in inputs_of_values(node))
    return SavedPlan.of(node, 0, RECOMPUTED, f"from {given}" if given else "from sizes", late)
