"""Groups of elementwise nodes that one pass over memory can compute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from torch import fx

from gqc.joint import JointGraph
from gqc.passes.nodes import FOR_BACKWARD, aten, is_random, is_updated
from gqc.passes.pointwise_steps import (
    FLAT_VIEWS,
    SUM,
    Size,
    equals_aten,
    holder,
    is_same,
    is_sum,
    operands_of,
    size_of,
    step_of,
    summed_axis,
    unexpanded,
    values_of,
)
from gqc.passes.saved_values import choose_saved, halves_of

MOST_MEMBERS = 32
MOST_INPUTS = 12
"""Beyond, the values of a tile leave the cache that is nearest."""


@dataclass(eq=False)
class Group:
    """Nodes that iterate over one size.

    Attributes:
        size: the iteration, with the axes of the member that has most.
        half: which side of the joint graph they run on.
        members: in graph order.
    """

    size: Size
    half: bool
    members: list[fx.Node] = field(default_factory=list)

    def values(self) -> list[fx.Node]:
        """The tensors that the members give, without sums, which no member reads."""
        return [value for node in self.members if node.target is not SUM for value in values_of(node)]


def find_groups(joint: JointGraph) -> list[Group]:
    """Elementwise nodes and sums of a joint graph in groups that exclude one another, in graph order.

    No group needs what another computes of its own results, so each can run at once. What crosses from the forward to
    the backward stays what it is: a group never holds nodes of both sides.
    """
    grouping = _Grouping(joint)
    for node in joint.graph.nodes:
        grouping.place(node)
    groups = dict.fromkeys(grouping.of.values())
    return [group for group in groups if any(node.target is not SUM for node in group.members)]


def sides(joint: JointGraph) -> dict[fx.Node, bool]:
    """For each node that runs on one side of the cut between forward and backward, whether that is the backward."""
    forward, backward = halves_of(joint, choose_saved(joint))
    return {node: node in backward for node in forward ^ backward}


class _Grouping:
    def __init__(self, joint: JointGraph) -> None:
        self.of: dict[fx.Node, Group] = {}
        self._sides = sides(joint)
        self._order = {node: i for i, node in enumerate(joint.graph.nodes)}
        self._readers: dict[fx.Node, list[fx.Node]] = {}
        random = [node for node in joint.graph.nodes if is_random(node)]
        self._next_random = dict(pairwise(random))

    def place(self, node: fx.Node) -> None:
        """Put a node into the groups that it can join, or into one of its own."""
        if node not in self._sides or (step_of(node) is None and not is_sum(node)):
            return
        operands = [unexpanded(n) for n in operands_of(node)]
        if any(is_updated(holder(n)) for n in operands):
            return
        group = self.of[node] = Group(size_of(node), self._sides[node], [node])
        for neighbour in self._neighbours(operands):
            group = self._merge(neighbour, group) if neighbour is not group else group
        for operand in operands:
            self._readers.setdefault(holder(operand), []).append(node)

    def _neighbours(self, operands: Iterable[fx.Node]) -> Iterator[Group]:
        """The groups of those that compute the operands, then of those that read them too."""
        held = [holder(n) for n in operands]
        for node in held:
            producer = node if node in self.of else next(iter(node.all_input_nodes), None)
            if producer in self.of and node in values_of(producer):  # type: ignore[arg-type]
                yield self.of[producer]  # type: ignore[index]
        for node in held:
            for reader in list(self._readers.get(node, ())):
                yield self.of[reader]

    def _merge(self, a: Group, b: Group) -> Group:
        """The two as one if that is possible, else the second."""
        size = a.size if len(a.size) >= len(b.size) else b.size
        members = sorted([*a.members, *b.members], key=self._order.__getitem__)
        fits = a.half == b.half and all(aligned(size_of(node), size) is not None for node in members)
        if not fits or len(members) > MOST_MEMBERS or not self._sums_fit(members, size):
            return b
        if not a.half and not _share_kernel(members):
            return b
        if len(set(self._inputs(members))) > MOST_INPUTS or self._comes_back(set(members)):
            return b
        merged = Group(size, a.half, members)
        self.of.update(dict.fromkeys(members, merged))
        return merged

    @staticmethod
    def _sums_fit(members: list[fx.Node], size: Size) -> bool:
        """Whether the axis of each sum is an axis of the size and no member reads a sum, as of an axis of length 1."""
        sums = {node for node in members if node.target is SUM}
        if any(holder(unexpanded(n)) in sums for node in members for n in operands_of(node)):
            return False
        return all(is_same(size_of(node)[summed_axis(node)], size[summed_axis(node)]) for node in sums)

    def _inputs(self, members: Iterable[fx.Node]) -> Iterator[fx.Node]:
        inside = {value for node in members for value in values_of(node)}
        for node in members:
            yield from (n for n in map(unexpanded, operands_of(node)) if holder(n) not in inside)

    def _comes_back(self, members: set[fx.Node]) -> bool:
        """Whether something outside runs after a member and before one, so that they cannot run at once.

        What reads a node runs after it, and so does the next random op after a random op.
        """
        inside = members | {value for node in members for value in values_of(node)}
        stack = [after for node in inside for after in self._after(node, readers(node)) if after not in inside]
        seen: set[fx.Node] = set()
        while stack:
            node = stack.pop()
            if node in members:
                return True
            if node in seen:
                continue
            together = self.of[node].members if node in self.of else [node]
            seen.update(together)
            stack.extend(after for other in together for after in self._after(other, other.users))
        return False

    def _after(self, node: fx.Node, users: Iterable[fx.Node]) -> Iterator[fx.Node]:
        yield from users
        if node in self._next_random:
            yield self._next_random[node]


def _share_kernel(members: list[fx.Node]) -> bool:
    """Whether results of the forward stay what they are if all members run in one program."""
    extra = [node for node in members if FOR_BACKWARD in node.meta]
    return not extra or all(equals_aten(node) for node in members if FOR_BACKWARD not in node.meta)


def readers(node: fx.Node) -> Iterator[fx.Node]:
    """What reads a tensor; in the place of views, what reads those."""
    for user in node.users:
        if user.target in FLAT_VIEWS or user.target is aten.expand.default:
            yield from readers(user)
        else:
            yield user


def aligned(shape: Size, size: Size) -> list[tuple[int, int]] | None:
    """The axes ``first .. end`` of ``size`` that each axis of ``shape`` stands for; ``None`` if they do not fit."""
    found, at = [], 0
    for length in shape:
        first = at
        while not is_same(prod(size[first:at]), length):
            if at == len(size):
                return None
            at += 1
        if at == first and at < len(size) and is_same(size[at], 1):
            at += 1
        found.append((first, at))
    return found if all(is_same(length, 1) for length in size[at:]) else None
