"""The policy of a model, for people and as JSON."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from gqc.cost import CostModel
from gqc.layer_bits import LayerBits
from gqc.policy import Insert, Policy
from gqc.save_bits import SaveBits

_ALWAYS = ("bits", "rounding", "keep_output_layer", "attention_logits", "min_size")
_DEFAULT = Policy()


def settings(policy: Policy) -> dict[str, Any]:
    """Every field of a policy as a JSON value; a pass is its name."""
    return {f.name: _plain(getattr(policy, f.name)) for f in fields(policy)}


def settings_text(policy: Policy) -> str:
    """A policy as the keyword arguments of :func:`gqc.compile`: what rounds, and what else is not the default."""
    plain = settings(policy)
    changed = [k for k in plain if k in _ALWAYS or getattr(policy, k) != getattr(_DEFAULT, k)]
    return ", ".join(f"{k}={plain[k]!r}" for k in changed)


def _plain(value: Any) -> Any:
    if isinstance(value, LayerBits):
        return dict(value.entries)
    if isinstance(value, CostModel):
        return asdict(value)
    if isinstance(value, SaveBits):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [item.name if isinstance(item, Insert) else item for item in value]
    return value
