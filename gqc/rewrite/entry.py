"""``gqc.rewrite``: a compiled model as a Python module that needs no compiler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gqc.capture import capture, read_call
from gqc.compile import CompileState, checked_policy, is_compiled, state_of
from gqc.errors import CaptureError, InputError, RewriteError
from gqc.given import arguments, check_call, copy_of
from gqc.passes.pipeline import FIND_MESSAGES
from gqc.policy import Policy
from gqc.rewrite.module import module_source
from gqc.runtime.rewritten import MODES, is_rewritten
from gqc.variant import Variant

_WAYS = {mode: way for way, mode in MODES.items()}


def rewrite(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    policy: Policy | None = None,
    *,
    modes: Sequence[str] = ("train", "eval"),
    source: str = "",
    **options: Any,
) -> str:
    """Compile a model for an example call and write the result down as Python source.

    The source is a module of its own with a class that has the model's name, parameters and buffers. It needs torch
    and ``gqc.runtime``, captures nothing, and gives the losses and gradients of the compiled model to the bit. Sizes
    that may change between calls may still change; a call of another kind raises :class:`gqc.InputError`.

    Args:
        model: an eager or a compiled model; it is not changed.
        args, kwargs: a call of it.
        policy: how to quantize; default: that of a compiled model, else ``Policy()``.
        modes: the ways of calling it that are written down: ``"train"`` (``model.train()``, with gradients), ``"eval"``
            (``model.eval()``, under ``torch.no_grad()``), ``"eval-grad"`` and ``"train-no-grad"``. For those that the
            model is in now, its modules stay as they are, such as a norm that is in evaluation while the model trains.
        source: where the model comes from, for the header.
        **options: fields of :class:`gqc.Policy` that override ``policy``.

    Returns:
        The source. The same model, example, policy and versions give the same text.

    Raises:
        RewriteError: the model, an argument or a result cannot be written down; the message names module and reason.
        PolicyError: an option is unknown, has an unknown value, or names a module that the model lacks or an unknown
            pass or primitive.
        ValueError: a mode is unknown.
        TypeError: ``model`` is not a ``torch.nn.Module``, or the arguments are no tuple and dict or not its forward's.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"gqc.rewrite takes a torch.nn.Module, not {type(model).__name__}: put a function in a module")
    if is_rewritten(model):
        raise RewriteError(f"{type(model).__name__} has been rewritten already: rewrite the original")
    args, kwargs = arguments("gqc.rewrite", args, kwargs)
    modes = [modes] if isinstance(modes, str) else list(modes)
    unknown = [mode for mode in modes if mode not in _WAYS]
    if unknown or not modes:
        raise ValueError(f"modes {modes}: expected some of {', '.join(map(repr, _WAYS))}")
    if is_compiled(model):
        state = state_of(model)
        model, policy = state.model, policy or state.policy
    check_call("gqc.rewrite", model, args, kwargs)
    policy = checked_policy(Policy.of(policy, options), model)
    if policy.remember_inputs:
        raise RewriteError("what is remembered cannot be written down: give gqc.rewrite remember_inputs=False")
    if policy.cuda_graph:
        raise RewriteError("CUDA graphs cannot be written down: give gqc.rewrite cuda_graph=False")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise RewriteError(f"{name} has no shape before the first call of the model: call it once")
    for kind in ("forward", "forward_pre", "backward", "backward_pre"):
        if getattr(model, f"_{kind}_hooks"):
            raise RewriteError(f"the model has {kind} hooks, which are not part of its forward: remove them")
    copied = CompileState(copy_of(model, "gqc.rewrite"), policy)
    variants = {mode: _variant(copied, args, kwargs, mode) for mode in dict.fromkeys(modes)}
    return module_source(copied.model, variants, args, kwargs, policy, source)


@contextmanager
def _flags(model: nn.Module, training: bool) -> Iterator[None]:
    """The model in training or evaluation; if it is that already, its modules stay as they are."""
    before = [(module, module.training) for module in model.modules()]
    if model.training != training:
        model.train(training)
    try:
        yield
    finally:
        for module, flag in before:
            module.training = flag


def _variant(state: CompileState, args: tuple[Any, ...], kwargs: dict[str, Any], mode: str) -> Variant:
    training, grad = _WAYS[mode]
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.set_grad_enabled(grad))
        stack.enter_context(_flags(state.model, training))
        try:
            captured = capture(state.model, args, kwargs, messages=FIND_MESSAGES not in state.policy.skip)
            call = read_call(args, kwargs)
            rule = state.bit_rule(captured, call)
            saves = state.save_rule(captured, call, rule)
            variant = Variant.build(
                state.model, captured, state.policy, state.seed, "gqc.rewrite", bit_rule=rule, save_rule=saves
            )
        except (CaptureError, InputError) as error:
            raise RewriteError(f"in mode {mode!r}: {error}") from error
    for island in captured.islands:
        raise RewriteError(
            f"in mode {mode!r}: module '{island.name}' runs eagerly ({island.reason}), and cannot be written down"
        )
    if captured.guards.memory.written:
        raise RewriteError(f"in mode {mode!r}: forward changes an argument in place; let it work on a clone")
    return variant
