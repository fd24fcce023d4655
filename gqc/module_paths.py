"""A module may stand at several paths of a model; what is captured names it by the first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TypeVar

from torch import nn

from gqc.layer_bits import LayerBits
from gqc.policy import Policy


def first_paths(model: nn.Module) -> dict[str, str]:
    """The first path of the module at each path of a model, first paths before further ones."""
    first = {id(module): path for path, module in model.named_modules()}
    every = {path: first[id(module)] for path, module in model.named_modules(remove_duplicate=False)}
    return {path: path for path in first.values()} | every


def by_first_paths(policy: Policy, paths: dict[str, str]) -> Policy:
    """A policy that also names by its first path each module that it names by a further one alone.

    Args:
        policy: ``keep``, ``bits`` and ``save_bits`` name modules.
        paths: :func:`first_paths` of the model.
    """
    keep = dict.fromkeys((*policy.keep, *(path for entry in policy.keep for path in _behind(entry, paths))))
    bits, saves = policy.bits, policy.saves
    if isinstance(bits, LayerBits):
        bits = _with_first_paths(bits, paths)
    if saves is not None and isinstance(saves.bits, LayerBits):
        saves = replace(saves, bits=_with_first_paths(saves.bits, paths))
    return replace(policy, keep=tuple(keep), bits=bits, save_bits=saves)


B = TypeVar("B", bound=LayerBits)


def _with_first_paths(bits: B, paths: dict[str, str]) -> B:
    added = []
    for entry, width in bits.entries:
        for path in _behind(entry, paths):
            covered, _ = bits.find(path)
            if covered is None or (entry in paths and covered != path):  # a path goes before patterns
                added.append((path, width))
    return replace(bits, entries=(*bits.entries, *added))


def _behind(entry: str, paths: dict[str, str]) -> Iterable[str]:
    """First paths of the modules of which a path or pattern names only a further path."""
    named = {path for path in paths if path == entry or fnmatchcase(path, entry)}
    return dict.fromkeys(paths[path] for path in paths if path in named and paths[path] not in named)
