"""What a user may ask of the compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from math import inf
from numbers import Integral
from typing import TYPE_CHECKING, Any

from gqc.cost.model import CostModel
from gqc.errors import PolicyError
from gqc.layer_bits import Bits, LayerBits, checked_bits
from gqc.save_bits import ROUNDINGS, SaveBits

if TYPE_CHECKING:
    from gqc.joint import JointGraph
    from gqc.passes.report import Report

PRECISIONS = ("fp32", "int8")
FLOAT_PRODUCTS = ("bf16x3", "fp32")
FLOAT_STORAGE = ("bf16", "fp32")

Pass = Callable[["JointGraph", "Policy"], "Report"]
"""Rewrites or marks a joint graph in place and says what it did."""


@dataclass(frozen=True)
class Insert:
    """A pass of your own and its place among those of :data:`gqc.passes.PIPELINE`; give ``before`` or ``after``.

    Attributes:
        run: the pass.
        before: name of the pass that runs next.
        after: name of the pass that ran last.
        name: name for reports and messages; default: that of the function.
    """

    run: Pass
    before: str | None = None
    after: str | None = None
    name: str = ""

    def __repr__(self) -> str:
        place = f"before={self.before!r}" if self.after is None else f"after={self.after!r}"
        return f"Insert({self.name}, {place})"

    def __post_init__(self) -> None:
        if not callable(self.run):
            raise PolicyError(f"Insert({self.run!r}): expected a function (JointGraph, Policy) -> Report")
        for what in ("before", "after", "name"):
            if not isinstance(getattr(self, what), str | None):
                raise PolicyError(f"Insert({_named(self.run)}): {what}={getattr(self, what)!r} is no name")
        object.__setattr__(self, "name", self.name or getattr(self.run, "__name__", ""))
        if not self.name:
            raise PolicyError(f"Insert({_named(self.run)}): it has no __name__, so give Insert a name=...")
        if (self.before is None) == (self.after is None):
            raise PolicyError(f"Insert({self.name}): say either before= or after= which pass it runs")

    @property
    def anchor(self) -> str:
        """The pass that it stands beside."""
        return self.after if self.before is None else self.before  # type: ignore[return-value]


@dataclass(frozen=True)
class Policy:
    """How a model is quantized. Every field is also a keyword argument of :func:`gqc.compile`.

    Attributes:
        bits: width of the quantized operands of GEMM, SPMM and SDDMM: 2 to 8, or 32, which captures the model and
            runs all passes without quantizing and equals eager up to the rounding of reordered sums. ``"auto"`` takes
            the smallest width that Tango's rule allows (equation 4, :mod:`gqc.passes.choose_bits`), measured on the
            first training call of a capture. A mapping gives layers widths of their own, by module path or pattern:
            ``{"conv1": 4, "*": 8}``; see :class:`gqc.layer_bits.LayerBits`, which it becomes.
        rounding: ``"stochastic"`` (unbiased to 1/512 of a step, Tango section 3.2) or ``"nearest"``.
        keep_output_layer: keep the layer that computes the model's output in full precision
            (Tango section 3.3: the layer before softmax).
        attention_logits: precision of the primitives that feed an edge softmax, or a softmax that primitives follow:
            ``"fp32"`` or ``"int8"``.
        float_products: how a CPU with AMX multiplies the float32 matrices of what stays in full precision:
            ``"bf16x3"``, three products of bfloat16 with an error of at most 2^-15 of each product (torch's float32
            matmul precision "high"), or ``"fp32"``. Layers of 32 bits, and other processors, multiply in float32.
        float_storage: how a CPU stores floats that only a ``quantize`` reads: ``"bf16"``, sums over neighbours always
            and results of a matrix product where that is estimated to take less time than to compute them again
            (docs/cost.md), or ``"fp32"``, in which the fusion of kernels changes no bit of an int8 value. With
            ``"bf16"`` and ``float_products="bf16x3"`` it also stores large matrices that only products and sums in full
            precision read in three bytes an element, within 2^-16 of each (float24).
        min_size: a primitive whose largest operand has fewer elements stays in full precision; 0 quantizes small ones
            too. ``None``: those stay that int8 is estimated to make far slower, by ``costs`` on a CPU and by a size of
            4,096 elements elsewhere (docs/cost.md).
        costs: constants of the machine that estimates follow from. ``None``: those that ``gqc doctor --tune`` measured
            on this machine, else built-in ones.
        seed: seed of stochastic rounding. ``None`` follows ``torch.manual_seed``: one number is drawn from
            torch's default generator at each training step.
        keep: what else stays in full precision: modules by path or pattern (``"classifier"``, ``"conv*"``) with all
            that is in them, primitives by kind (``"spmm"``) or op (``"addmm"``), each with its backward; one node alone
            as ``"node:mm_1"``. In inference a node's name may be that of a backward node.
        skip: names of passes that do not run, such as ``"share_quantized"``; see :data:`gqc.passes.PIPELINE`;
            or ``"find_messages"``, which runs before these.
        passes: passes of your own and their places, see :class:`Insert`.
        remember_inputs: compute what depends on inputs alone, such as the int8 copy of node features, once as long as
            the same tensors come unchanged. Their rounding is then drawn once, not at each step.
        save_bits: compress what the forward saves for the backward to 1, 2, 4 or 8 bits a value; the forward stays as
            it is. A mapping gives modules widths of their own, ``{"conv1": 2, "*": 8}``, ``"auto"`` gives tensors
            theirs under a budget of memory; see :class:`gqc.SaveBits`, which all become. What is saved as an int8
            operand stays so. ``None`` compresses nothing.
        cuda_graph: on a GPU, record forward and backward as CUDA graphs for sizes that come again, and replay them: one
            launch in place of hundreds. :func:`gqc.explain` tells where that was possible (docs/cuda.md).
    """

    bits: Bits | Mapping[str, Bits] | LayerBits = 8
    rounding: str = "stochastic"
    keep_output_layer: bool = True
    attention_logits: str = "fp32"
    float_products: str = "bf16x3"
    float_storage: str = "bf16"
    min_size: int | None = None
    costs: CostModel | None = None
    seed: int | None = None
    keep: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    passes: tuple[Insert, ...] = ()
    remember_inputs: bool = False
    cuda_graph: bool = False
    save_bits: int | str | Mapping[str, int] | SaveBits | None = None

    def __post_init__(self) -> None:
        if isinstance(self.bits, Mapping):
            object.__setattr__(self, "bits", LayerBits.of(self.bits))
        elif not isinstance(self.bits, LayerBits):
            object.__setattr__(self, "bits", checked_bits("Policy.bits", self.bits))
        _check("rounding", self.rounding, ROUNDINGS)
        _check("attention_logits", self.attention_logits, PRECISIONS)
        _check("float_products", self.float_products, FLOAT_PRODUCTS)
        _check("float_storage", self.float_storage, FLOAT_STORAGE)
        _check("keep_output_layer", self.keep_output_layer, (True, False))
        _check("remember_inputs", self.remember_inputs, (True, False))
        _check("cuda_graph", self.cuda_graph, (True, False))
        if self.remember_inputs and self.cuda_graph:
            raise PolicyError(
                "remember_inputs and cuda_graph exclude one another: a replayed graph computes everything"
            )
        if self.save_bits is not None:
            object.__setattr__(self, "save_bits", SaveBits.of(self.save_bits))
        if self.min_size is not None:
            size = _integer("min_size", self.min_size, "None or a number of elements, 0 or more")
            object.__setattr__(self, "min_size", size)
        if not isinstance(self.costs, CostModel | None):
            raise PolicyError(f"Policy.costs={self.costs!r}: expected None or a gqc.cost.CostModel")
        if self.seed is not None:
            seed = _integer("seed", self.seed, "None or an integer from 0 to 2**63 - 1", 2**63)
            object.__setattr__(self, "seed", seed)
        object.__setattr__(self, "keep", _tuple("keep", self.keep, str))
        object.__setattr__(self, "skip", _tuple("skip", self.skip, str))
        object.__setattr__(self, "passes", _tuple("passes", self.passes, Insert))

    @property
    def saves(self) -> SaveBits | None:
        """``save_bits`` as it was checked; ``None``: saved activations stay as they are."""
        return self.save_bits  # type: ignore[return-value]

    @classmethod
    def of(cls, policy: Policy | None, options: dict[str, Any]) -> Policy:
        """Merge a policy with keyword arguments of :func:`gqc.compile`; unknown names list near misses."""
        if not (policy is None or isinstance(policy, cls)):
            raise PolicyError(f"policy={policy!r}: expected a gqc.Policy, or its fields as keyword arguments")
        known = [f.name for f in fields(cls)]
        for name in options:
            if name not in known:
                raise PolicyError(f"gqc.compile has no option {name!r}{did_you_mean(name, known)}")
        base = policy if policy is not None else cls()
        return cls(**({f.name: getattr(base, f.name) for f in fields(cls)} | options))


def did_you_mean(name: str, known: Iterable[str], count: int = 3) -> str:
    """The end of a message about an unknown name: near misses, or all known names where there is none."""
    known = list(dict.fromkeys(known))
    near = get_close_matches(name, known, n=count)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else f"; known: {', '.join(known)}"


def _tuple(field: str, value: object, kind: type) -> tuple[Any, ...]:
    if isinstance(value, list | tuple) and all(isinstance(item, kind) for item in value):
        return tuple(value)
    if kind is Insert and isinstance(value, list | tuple):
        wrong = next(item for item in value if not isinstance(item, Insert))
        way_out = f"; wrap it: gqc.passes.Insert({_named(wrong)}, before=...)" if callable(wrong) else ""
        raise PolicyError(f"Policy.{field} holds {_named(wrong)}: expected a list of Insert{way_out}")
    what = f"a list of {'names' if kind is str else kind.__name__}"
    example = f", such as [{value!r}]" if isinstance(value, kind) else ""
    raise PolicyError(f"Policy.{field}={value!r}: expected {what}{example}")


def _named(function: object) -> str:
    """A function's name, or another object as it prints."""
    return getattr(function, "__name__", repr(function))


def _integer(field: str, value: object, expected: str, limit: float = inf) -> int:
    """A number as Python's own int, which NumPy's integers become."""
    if isinstance(value, Integral) and not isinstance(value, bool) and 0 <= int(value) < limit:
        return int(value)
    raise PolicyError(f"Policy.{field}={value!r}: expected {expected}")


def _check(field: str, value: object, allowed: tuple[object, ...]) -> None:
    if type(value) is not type(allowed[0]) or value not in allowed:
        expected = ", ".join(map(repr, allowed))
        raise PolicyError(f"Policy.{field}={value!r}: expected one of {expected}")
