"""What a user may ask of the compiler."""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from gqc.errors import PolicyError

BITS = (8, 32)
ROUNDINGS = ("stochastic", "nearest")
PRECISIONS = ("fp32", "int8")


@dataclass(frozen=True)
class Policy:
    """How a model is quantized. Every field is also a keyword argument of :func:`gqc.compile`.

    Attributes:
        bits: 8 quantizes the operands of GEMM, SPMM and SDDMM to INT8; 32 captures the model and runs all
            passes without quantizing, which equals eager up to the rounding of reordered sums.
        rounding: ``"stochastic"`` (unbiased, Tango section 3.2) or ``"nearest"``.
        keep_output_layer: keep the layer that computes the model's output in full precision
            (Tango section 3.3: the layer before softmax).
        attention_logits: precision of the primitives that feed an edge softmax, ``"fp32"`` or ``"int8"``.
        min_size: a primitive whose largest operand has fewer elements stays in full precision, because
            quantizing it costs more than it saves.
        seed: seed of stochastic rounding. ``None`` follows ``torch.manual_seed``: one number is drawn from
            torch's default generator at each training step.
    """

    bits: int = 8
    rounding: str = "stochastic"
    keep_output_layer: bool = True
    attention_logits: str = "fp32"
    min_size: int = 4096
    seed: int | None = None

    def __post_init__(self) -> None:
        _check("bits", self.bits, BITS)
        _check("rounding", self.rounding, ROUNDINGS)
        _check("attention_logits", self.attention_logits, PRECISIONS)
        _check("keep_output_layer", self.keep_output_layer, (True, False))
        if not isinstance(self.min_size, int) or self.min_size < 0:
            raise PolicyError(f"Policy.min_size={self.min_size!r}: expected a number of elements, 0 or more")
        if self.seed is not None and not (isinstance(self.seed, int) and 0 <= self.seed < 2**63):
            raise PolicyError(f"Policy.seed={self.seed!r}: expected None or an integer from 0 to 2**63 - 1")

    @classmethod
    def of(cls, policy: Policy | None, options: dict[str, Any]) -> Policy:
        """Merge a policy with keyword arguments of :func:`gqc.compile`; unknown names list near misses."""
        known = [f.name for f in fields(cls)]
        for name in options:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known options: {', '.join(known)}"
                raise PolicyError(f"gqc.compile has no option {name!r}{hint}")
        base = policy if policy is not None else cls()
        return cls(**({f.name: getattr(base, f.name) for f in fields(cls)} | options))


def _check(field: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
        expected = ", ".join(map(repr, allowed))
        raise PolicyError(f"Policy.{field}={value!r}: expected one of {expected}")
