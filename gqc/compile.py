"""``gqc.compile``: the same model, running on quantized primitives."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from torch import nn

from gqc.capture import Call, UncapturedInput, capture, is_capturing, read_call
from gqc.errors import CaptureError, FallbackWarning
from gqc.keys import mode_key, module_key
from gqc.policy import Policy
from gqc.seed import SeedSource
from gqc.variant import Variant

MAX_VARIANTS = 16

M = TypeVar("M", bound=nn.Module)


def compile(model: M, policy: Policy | None = None, **options: Any) -> M:
    """Return the model with quantized forward and backward.

    The result is an instance of a subclass of ``type(model)`` that shares the model's whole state: the same
    ``Parameter`` objects, ``state_dict`` keys, hooks and attributes, so optimizers, ``.to()``, ``.train()`` and
    checkpoints work on either. Only calling it differs: the first call with a new kind of input captures and compiles
    the model, later calls reuse that. ``model`` itself stays eager.

    Args:
        model: a module whose forward takes DGL graphs, PyG tensors or plain tensors.
        policy: how to quantize; default ``Policy()``.
        **options: fields of :class:`gqc.Policy` that override ``policy``.

    Raises:
        PolicyError: an option is unknown or has an unknown value.
        TypeError: ``model`` is not a ``torch.nn.Module``.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"gqc.compile takes a torch.nn.Module, not {type(model).__name__}: put a function in a module")
    original = state_of(model).model if is_compiled(model) else model
    state = CompileState(original, Policy.of(policy, options))
    compiled = object.__new__(_compiled_class(type(original)))  # type: ignore[arg-type]  # a class is hashable
    object.__setattr__(compiled, "__dict__", original.__dict__)
    object.__setattr__(compiled, "_gqc", state)
    return cast(M, compiled)


def is_compiled(model: object) -> bool:
    """Whether ``model`` came from :func:`compile`."""
    return hasattr(type(model), "_gqc")


def state_of(model: nn.Module) -> CompileState:
    """What gqc knows about a compiled model.

    Raises:
        TypeError: the model did not come from :func:`compile`.
    """
    if not is_compiled(model):
        raise TypeError(f"{type(model).__name__} was not compiled; pass the result of gqc.compile(model)")
    return cast(CompileState, model._gqc)


@functools.cache
def _compiled_class(original: type[nn.Module]) -> type[nn.Module]:
    """A subclass whose forward is the compiled one and whose state lives outside the shared ``__dict__``."""

    def forward(self: nn.Module) -> CompileState:
        return state_of(self)

    def reduce(self: nn.Module) -> tuple[Any, ...]:
        state = state_of(self)
        return compile, (state.model, state.policy)

    body = {
        "__slots__": ("_gqc",),
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "__reduce__": reduce,
        "forward": property(forward),
    }
    return type(original.__name__, (original,), body)


@dataclass(frozen=True)
class Fallback:
    """A kind of call that runs in eager full precision, and why."""

    module: str
    location: str
    reason: str


@dataclass
class CompileState:
    """The compiled variants of one model; calling it runs the model's forward.

    Attributes:
        model: the eager model that shares its state with the compiled one.
        policy: how to quantize.
        variants: compiled variants by the key of the calls that they serve; those of one key differ in their guards.
        fallbacks: keys that run in eager full precision, with the reason.
    """

    model: nn.Module
    policy: Policy
    variants: dict[Hashable, list[Variant]] = field(default_factory=dict)
    fallbacks: dict[Hashable, Fallback] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seed = SeedSource(self.policy.seed)
        self.__signature__ = inspect.signature(self.model.forward)

    @property
    def num_variants(self) -> int:
        return sum(map(len, self.variants.values()))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_capturing():
            return self.model.forward(*args, **kwargs)  # part of a larger model that is compiled as a whole
        try:
            call = read_call(args, kwargs)
        except UncapturedInput as error:
            return self._fall_back(str(error), CaptureError(str(error)), args, kwargs)
        key = (call.key, module_key(self.model), mode_key())
        why = "first call with inputs of this kind"
        for variant in self.variants.get(key, ()):
            failed = variant.captured.guards.check(call.flat)
            if failed is None:
                return variant.run(call, args, kwargs)
            why = f"guard failed: {failed}"
        if key in self.fallbacks:
            return self.model.forward(*args, **kwargs)
        return self._compile(key, why, call, args, kwargs)

    def _compile(self, key: Hashable, why: str, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            if self.num_variants >= MAX_VARIANTS:
                raise CaptureError(f"it was compiled {MAX_VARIANTS} times already, the last time because: {why}")
            variant = Variant.build(self.model, capture(self.model, args, kwargs), self.policy, self.seed, why)
        except CaptureError as error:
            return self._fall_back(key, error, args, kwargs)
        self.variants.setdefault(key, []).append(variant)
        return variant.run(call, args, kwargs)

    def _fall_back(self, key: Hashable, error: CaptureError, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self.model.forward(*args, **kwargs)
        if key not in self.fallbacks:
            self.fallbacks[key] = Fallback(error.module, error.location, error.reason)
            message = f"{error}. It runs in eager full precision; see gqc.explain(model)."
            warnings.warn(message, FallbackWarning, stacklevel=6)
        return result
