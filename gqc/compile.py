"""``gqc.compile``: the same model, running on quantized primitives."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from gqc.capture import Call, Captured, StateChange, calling, capture, is_capturing, read_call
from gqc.capture.placement import device_of_call
from gqc.dump import Dumper
from gqc.errors import CaptureError, FallbackWarning, GqcError, InputError, LibraryError, PassError, PolicyError
from gqc.first_layer import measure
from gqc.keys import mode_key, module_key
from gqc.layer_bits import AUTO, LayerBits, is_auto
from gqc.module_paths import by_first_paths, first_paths
from gqc.passes import select
from gqc.passes.choose_bits import BitRule
from gqc.passes.pipeline import FIND_MESSAGES
from gqc.passes.user_keep import check_names
from gqc.policy import Policy
from gqc.runtime.rewritten import is_rewritten
from gqc.save_rule import SaveRule, choose
from gqc.seed import SeedSource
from gqc.variant import Variant

MAX_VARIANTS = 16

M = TypeVar("M", bound=nn.Module)


def compile(model: M, policy: Policy | None = None, *, dump: str | os.PathLike[str] | None = None, **options: Any) -> M:
    """Return the model with quantized forward and backward.

    The result is an instance of a subclass of ``type(model)`` that shares the model's whole state: the same
    ``Parameter`` objects, ``state_dict`` keys, hooks and attributes, so optimizers, ``.to()``, ``.train()`` and
    checkpoints work on either. Only calling it differs: the first call with a new kind of input captures and compiles
    the model, later calls reuse that. ``model`` itself stays eager.

    Args:
        model: a module whose forward takes DGL graphs, PyG tensors or plain tensors.
        policy: how to quantize; default ``Policy()``.
        dump: folder for what the passes do with each variant, to read (docs/dump.md); default: a folder for each model
            in ``$GQC_DUMP``, if that is set. A dump that fails later is a :class:`gqc.DumpWarning`.
        **options: fields of :class:`gqc.Policy` that override ``policy``.

    Raises:
        PolicyError: an option is unknown, has an unknown value, or names a module that the model lacks or an unknown
            pass or primitive.
        DumpError: the folder for the dump is a file or cannot be written to.
        TypeError: ``model`` is not a ``torch.nn.Module``.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"gqc.compile takes a torch.nn.Module, not {type(model).__name__}: put a function in a module")
    original = state_of(model).model if is_compiled(model) else model
    if is_rewritten(original):
        name = type(original).__name__
        raise GqcError(f"{name} was written down by gqc.rewrite and runs quantized as it is: call it uncompiled")
    chosen = checked_policy(Policy.of(policy, options), original)
    state = CompileState(original, chosen, Dumper.of(dump, type(original).__name__, chosen))
    compiled = object.__new__(_compiled_class(type(original)))  # type: ignore[arg-type]  # a class is hashable
    object.__setattr__(compiled, "__dict__", original.__dict__)
    object.__setattr__(compiled, "_gqc", state)
    return cast(M, compiled)


def checked_policy(policy: Policy, model: nn.Module) -> Policy:
    """A policy whose names fit a model, with the first path of each module that it names by a further one.

    Raises:
        PolicyError: naming the entry and near misses.
    """
    paths, name = first_paths(model), type(model).__name__
    select(policy)
    check_names(policy, paths, name)
    if isinstance(policy.bits, LayerBits):
        policy.bits.check_names(paths, name)
    if policy.saves is not None and isinstance(policy.saves.bits, LayerBits):
        policy.saves.bits.check_names(paths, name)
    return by_first_paths(policy, paths)


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

    def replace_forward(self: nn.Module, function: Callable[..., Any]) -> None:
        state = state_of(self)
        if function is state:  # what reading the attribute gave is put back
            vars(state.model).pop("forward", None)
        else:
            state.model.forward = function

    def reduce(self: nn.Module) -> tuple[Any, ...]:
        state = state_of(self)
        return compile, (state.model, state.policy)

    body = {
        "__slots__": ("_gqc",),
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "__reduce__": reduce,
        "forward": property(forward, replace_forward),
    }
    return type(original.__name__, (original,), body)


@dataclass(frozen=True)
class Fallback:
    """A kind of call that runs in eager full precision, and why."""

    module: str
    location: str
    reason: str

    @classmethod
    def of(cls, failure: Exception) -> Fallback:
        """What to tell of an exception that capturing, compiling or running compiled code has raised."""
        if isinstance(failure, CaptureError):
            return cls(failure.module, failure.location, failure.reason)
        if isinstance(failure, InputError):
            return cls("", "", str(failure))
        return cls("", "", f"its compiled form failed with {type(failure).__name__}: {failure}")

    def __str__(self) -> str:
        return str(CaptureError(self.reason, module=self.module, location=self.location))


@dataclass
class CompileState:
    """The compiled variants of one model; calling it runs the model's forward.

    Whatever goes wrong on the way, the call then runs eagerly: so a call that eager refuses raises eager's own error.
    A graph on the CPU with tensors on a GPU cannot run eagerly, so there the error itself is raised.
    What the user asked for beside the model raises: a name of the policy that fits nothing, and with
    ``Policy.passes`` any error of a pass. So does what is wrong with gqc's kernels and not with the call: they cannot
    be loaded, lack the instruction set that ``GQC_ISA`` names, or have no memory.

    Attributes:
        model: the eager model that shares its state with the compiled one.
        policy: how to quantize.
        dumper: writes what the passes do with each variant.
        variants: compiled variants by the key of the calls that they serve; those of one key differ in their guards.
        fallbacks: keys that run in eager full precision, with the reason.
        training_bits: what ``Policy.bits="auto"`` decided for the variant that was last compiled for training.
    """

    model: nn.Module
    policy: Policy
    dumper: Dumper | None = None
    variants: dict[Hashable, list[Variant]] = field(default_factory=dict)
    fallbacks: dict[Hashable, Fallback] = field(default_factory=dict)
    training_bits: BitRule | None = None

    def __post_init__(self) -> None:
        self.seed = SeedSource(self.policy.seed, apart=self.policy.bits == 32)
        self._ran_eagerly: set[Hashable] = set()
        with contextlib.suppress(ValueError):  # TorchScript has none
            self.__signature__ = inspect.signature(self.model.forward)

    @property
    def num_variants(self) -> int:
        return sum(map(len, self.variants.values()))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_capturing():
            return self.model.forward(*args, **kwargs)  # part of a larger model that is compiled as a whole
        key: Hashable = None
        variant: Variant | None = None
        call: Call | None = None
        failure: Exception | None = None
        try:
            call = read_call(args, kwargs, device_of_call(self.model, args, kwargs))
            key = self._key(call)
            variant, _ = self._find(key, call)
            if variant is None and key not in self.fallbacks and _ALL_OTHERS not in self.fallbacks:
                variant = self._compile(key, call, args, kwargs)
            if variant is not None:
                return variant.run(call, args, kwargs)
        except (PolicyError, LibraryError, torch.OutOfMemoryError):  # eager needs more memory
            raise
        except _FAILURES as error:
            if isinstance(error, PassError) and self.policy.passes:
                raise
            if call is not None and call.moves_graphs:
                raise
            failure = error
        result = self.model.forward(*args, **kwargs)
        if failure is not None:
            self._fall_back(key if key is not None else str(failure), variant, failure)
        return result

    def variant_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Variant, Call]:
        """The variant that serves a call, compiled if there is none yet, and the call as it reads it.

        Raises:
            CaptureError: calls of this kind run eagerly.
        """
        call = read_call(args, kwargs, device_of_call(self.model, args, kwargs))
        key = self._key(call)
        variant, _ = self._find(key, call)
        fallback = self.fallbacks.get(key, self.fallbacks.get(_ALL_OTHERS))
        if variant is None and fallback is not None:
            raise CaptureError(fallback.reason, module=fallback.module, location=fallback.location)
        return variant or self._compile(key, call, args, kwargs), call

    def _key(self, call: Call) -> Hashable:
        """What tells this kind of call from those for which another variant is compiled."""
        return call.key, module_key(self.model), mode_key()

    def _find(self, key: Hashable, call: Call) -> tuple[Variant | None, str]:
        """The variant that serves a call, or ``None`` and why there is none."""
        why = "first call with inputs of this kind"
        for variant in self.variants.get(key, ()):
            failed = variant.captured.guards.check(call.flat, call.strided)
            if failed is None:
                return variant, ""
            why = f"guard failed: {failed}"
        return None, why

    def _compile(self, key: Hashable, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Variant:
        with _COMPILING, saved_tensors_hooks(_itself, _itself):
            variant, why = self._find(key, call)
            if variant is None:  # no other thread has compiled it meanwhile
                if self.num_variants >= MAX_VARIANTS:
                    raise CaptureError(f"it was compiled {MAX_VARIANTS} times already, the last time because: {why}")
                first = key not in self._ran_eagerly and not call.moves_graphs
                messages = FIND_MESSAGES not in self.policy.skip
                captured = capture(self.model, args, kwargs, first=first, messages=messages)
                dump = self.dumper.variant(self.model.training) if self.dumper is not None else None
                rule = self.bit_rule(captured, call)
                saves = self.save_rule(captured, call, rule)
                variant = Variant.build(self.model, captured, self.policy, self.seed, why, dump, rule, saves)
                self.variants.setdefault(key, []).append(variant)
        return variant

    def bit_rule(self, captured: Captured, call: Call) -> BitRule | None:
        """What ``Policy.bits="auto"`` means for a call: evaluation takes what training decided, if that was first."""
        if not is_auto(self.policy.bits):
            return None
        training = self.model.training and torch.is_grad_enabled()
        if self.training_bits is not None and not training:
            return replace(self.training_bits, reason=f"as in training, by {self.training_bits.reason}")
        with calling(call.graphs):
            rule = measure(self.model, captured, call.flat)
        if training:
            self.training_bits = rule
        return rule

    def save_rule(self, captured: Captured, call: Call, bit_rule: BitRule | None) -> SaveRule | None:
        """What ``save_bits="auto"`` means for a call, ``None`` for other policies and where nothing is saved.

        Raises:
            PolicyError: the budget is too small.
        """
        saves = self.policy.saves
        if saves is None or saves.bits != AUTO or not torch.is_grad_enabled():
            return None
        return choose(self.model, captured, call, self.policy, self.seed, bit_rule)

    def _fall_back(self, key: Hashable, variant: Variant | None, failure: Exception) -> None:
        """Remember that calls of this kind run eagerly, and say so once; leave a call that fills caches out of it."""
        if isinstance(failure, StateChange) and key not in self._ran_eagerly:
            self._ran_eagerly.add(key)
            return
        if variant is not None and variant in self.variants.get(key, ()):
            self.variants[key].remove(variant)
        if self.num_variants >= MAX_VARIANTS:
            key = _ALL_OTHERS
        if key not in self.fallbacks:
            self.fallbacks[key] = fallback = Fallback.of(failure)
            if self.dumper is not None:
                self.dumper.fall_back(str(fallback))
            message = f"{fallback}. It runs in eager full precision; see gqc.explain(model)."
            warnings.warn(message, FallbackWarning, stacklevel=5)


_ALL_OTHERS = "all kinds of calls that were not compiled before the limit was reached"

_COMPILING = threading.RLock()
"""Capture replaces functions of torch and of graph libraries, so one thread at a time does it."""

_FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""What torch, a model or gqc raises for a call; not what checkpointing raises to stop a recomputation early."""


def _itself(tensor: Tensor) -> Tensor:
    """Saved-tensor hooks of the caller (checkpointing, offloading) are not meant for what a capture computes."""
    return tensor
