"""What the names in ``Policy.keep`` mean."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import fx

from gqc.errors import PolicyError
from gqc.layer_bits import around
from gqc.passes.nodes import origin
from gqc.passes.primitive import KINDS, Primitive
from gqc.policy import Policy, did_you_mean

NODE = "node:"
"""Prefix of the name of one node, as :func:`gqc.explain` prints it."""

_OPS = {target: target._schema.name.split("::")[1] for target in KINDS}  # type: ignore[attr-defined]
_KINDS = frozenset(KINDS.values()) | frozenset(_OPS.values())


def by_name(policy: Policy, node: fx.Node) -> str | None:
    """The reason why the user keeps this very node, if its name is in ``Policy.keep``."""
    return f"Policy.keep={NODE + node.name!r}" if NODE + node.name in policy.keep else None


def by_origin(policy: Policy, node: fx.Node, primitive: Primitive) -> str | None:
    """The reason why the user keeps a primitive by its module, kind or op, and with it the backward of its call.

    A path or a pattern of :mod:`fnmatch` covers a module and all modules in it.
    """
    kinds, paths = (primitive.kind, _OPS[node.target]), around(origin(node).module)  # type: ignore[index]
    for entry in policy.keep:
        if entry in kinds or any(path == entry or fnmatchcase(path, entry) for path in paths):
            return f"Policy.keep={entry!r}"
    return None


def check_names(policy: Policy, modules: Iterable[str], model: str) -> None:
    """Refuse entries that name no module of a model, nor a kind of primitive or op.

    Args:
        policy: its ``keep`` is checked, but for names of nodes, which a model has once it is captured.
        modules: paths of all modules, ``""`` for the model itself.
        model: class name of the model, for the message.

    Raises:
        PolicyError: naming the entry and near misses.
    """
    paths = list(modules)
    for entry in policy.keep:
        if not entry.startswith(NODE) and entry not in _KINDS and not any(fnmatchcase(path, entry) for path in paths):
            known = [*filter(None, paths), *sorted(_KINDS)]
            what = f"{model} has no module of this name, nor is it a kind of primitive"
            raise PolicyError(f"Policy.keep={entry!r}: {what}{did_you_mean(entry, known)}")


def check_nodes(policy: Policy, primitives: Iterable[str]) -> None:
    """Refuse names of nodes that are no primitives of a captured model.

    Args:
        policy: its ``keep`` is checked.
        primitives: names of all primitives that were found.

    Raises:
        PolicyError: naming the node and near misses.
    """
    known = [NODE + name for name in primitives]
    for entry in policy.keep:
        if entry.startswith(NODE) and entry not in known:
            raise PolicyError(f"Policy.keep={entry!r}: the graph has no such primitive{did_you_mean(entry, known)}")
