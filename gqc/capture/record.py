"""One attempt to record a model's forward."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import sympy
import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch import SymBool, SymFloat, SymInt, Tensor, nn

from gqc.capture.attributes import preserved, ties
from gqc.capture.graphs import adapter_of, adapters
from gqc.capture.guards import Guards, MemoryGuards, ShapeGuards, ValueGuards
from gqc.capture.hooks import REASON, has_backward_hooks, hooks_replaced
from gqc.capture.inputs import GraphArgument, InputPlan, argument_names, read_call, substitute
from gqc.capture.islands import FunctionCall, Island, StructureIsland, calling
from gqc.capture.messages import find_messages
from gqc.capture.module_islands import ModuleIsland
from gqc.capture.modules import ModuleWatch
from gqc.capture.outputs import Argument, Attribute, Constant, GraphBack, GraphWrites, OutputPlan, Result, Size
from gqc.capture.placement import device_of_call
from gqc.capture.sizes import size_in
from gqc.capture.structure import hoist_structure
from gqc.capture.symbolic import symbolic_numbers
from gqc.capture.tracer import Tracer
from gqc.errors import CaptureError
from gqc.generators import generators_kept
from gqc.passes.report import Decision

torch.overrides.get_ignored_functions()  # torch caches what it finds here, which must not be our replacements

_PLAIN = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device)


@dataclass
class Captured:
    """A model's forward as a graph.

    Attributes:
        graph: placeholders are the flat tensors of a call; get_attr nodes name the model's parameters and buffers
            (``_constantN`` other tensors); the output is a flat tuple of tensors.
        fakes: one fake tensor a placeholder, in one ShapeEnv.
        inputs: turns a call into placeholders.
        outputs: turns the graph's output into what the model returns.
        guards: what must hold at a call.
        islands: eager islands, in the order in which they run.
        messages: where message passing was found in gathers and scatters, and where not.
    """

    graph: fx.GraphModule
    fakes: list[Tensor]
    inputs: InputPlan
    outputs: OutputPlan
    guards: Guards
    islands: list[Island]
    messages: list[Decision]


class Recording:
    """The state of one attempt: tracer, module watch and the graphs that stand in for graph arguments."""

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        islands: dict[str, str],
        exact: bool,
        messages: bool,
    ) -> None:
        self.model = model
        self.forward = forward
        self.args, self.kwargs = args, kwargs
        self.call = read_call(args, kwargs, device_of_call(model, args, kwargs))
        self.argument_names = argument_names(forward, args, kwargs)
        self.islands = islands
        self.messages = messages
        self.watch = ModuleWatch(model)
        named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        names: dict[int, str] = {}
        for name, tensor in named:
            names.setdefault(id(tensor), name)
        self.tracer = Tracer(names, self.watch.describe)
        self.tracer.sizes.exact = exact
        self.fakes: list[Tensor] = []
        self.inputs = InputPlan(self.call.key, self.call.device)
        self.stand_ins: list[Any] = []
        self._attribute = partial(_attribute, model, self.tracer.constants)
        self._results: dict[fx.Node, None] = {}

    # ---- arguments

    def _tensor(self, tensor: Tensor, name: str = "", axes: tuple[int, ...] | None = None) -> Tensor:
        position = len(self.fakes)
        name = name or self.argument_names.get(id(tensor), f"arg{position}")
        fake = self.tracer.placeholder(name, self.call.flat[position], axes)
        self.fakes.append(fake)
        return fake

    def _graph(self, graph: Any) -> Any:
        adapter = adapter_of(graph)
        assert adapter is not None
        first = len(self.fakes)
        real = adapter.tensors(graph, self.call.device)
        prefix = f"g{len(self.stand_ins)}_"
        fakes = {
            name: self._tensor(t, prefix + _identifier(name), adapter.dynamic_axes(name, t)) for name, t in real.items()
        }
        schema = adapter.schema(graph)
        for a, b in adapter.ties(schema, fakes):
            torch._check(a == b)
        self.inputs.graphs.append(GraphArgument(adapter, schema, list(real), first))
        stand_in = adapter.stand_in(schema, fakes, self.tracer)
        self.stand_ins.append(stand_in)
        return stand_in

    # ---- the run

    def run(self) -> Captured:
        """Trace the forward.

        Raises:
            Exception: whatever the model's code raises on fake tensors, besides CaptureError.
        """
        grad = torch.is_grad_enabled()
        with ExitStack() as stack:
            stack.enter_context(_no_random_numbers_from_elsewhere())
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.set_grad_enabled(grad))
            stack.enter_context(generators_kept())
            stack.enter_context(calling(self.call.graphs))
            try:
                out, first = self._trace()
                writes = self.watch.collect_writes()
            except BaseException:
                self.watch.snapshot.restore()
                raise
        plan = self._plan_outputs(out, writes)
        values = self._value_guards(first)
        late = self._late_guards()
        graph, messages = self._finish()
        placeholders = graph.graph.find_nodes(op="placeholder")
        shapes = ShapeGuards(self.tracer.sizes, placeholders, first)
        memory = MemoryGuards([i for i, node in enumerate(placeholders) if self.tracer.example.is_written(node)])
        guards = Guards([*self.watch.reads.values(), *ties(self.model)], shapes, memory, values, late)
        return Captured(graph, self.fakes, self.inputs, plan, guards, self._used_islands(graph), messages)

    def _trace(self) -> tuple[Any, int]:
        tracer = self.tracer
        with ExitStack() as stack:
            for adapter in adapters():
                stack.enter_context(adapter.patches(tracer))
            stack.enter_context(tracer.fake_mode)
            args, kwargs = substitute((self.args, self.kwargs), self._tensor, self._graph)
            first = len(tracer.sizes.env.guards)
            stack.enter_context(self.watch.active(self._call_module, lambda: tracer.recording))
            stack.enter_context(hooks_replaced(self.watch.modules, self._call_hook))
            stack.enter_context(symbolic_numbers(self.model))
            stack.enter_context(self._autograd_functions())
            stack.enter_context(self._unseeded())
            stack.enter_context(_quiet())
            stack.enter_context(tracer)
            out = self.forward(*args, **kwargs)
        tracer.sizes.unite()
        return out, first

    @contextmanager
    def _autograd_functions(self) -> Iterator[None]:
        """Record ``Function.apply`` as one call, whose backward is the function's own.

        Replaced is what ``Function.apply`` itself calls, so that ``f = MyFunction.apply`` is recorded too.
        """
        tracer, original = self.tracer, vars(torch._C._FunctionBase)["apply"]

        def apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
            target = FunctionCall(cls, original)
            if not tracer.recording:
                return target(*args, **kwargs)
            with torch._C.DisableTorchFunction():
                return tracer.function(target, args, kwargs)

        caller = torch.autograd.function._SingleLevelFunction
        caller.apply = classmethod(apply)
        try:
            yield
        finally:
            del caller.apply

    @contextmanager
    def _unseeded(self) -> Iterator[None]:
        """Refuse to seed torch's generator, which no graph can hold."""
        original = torch.default_generator
        torch.default_generator = torch.random.default_generator = _Unseeded(original, self.tracer)
        try:
            yield
        finally:
            torch.default_generator = torch.random.default_generator = original

    # ---- eager islands for modules

    def _call_module(self, module: nn.Module, path: str, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        reason = self.islands.get(path) or ("it has backward hooks" if has_backward_hooks(module) else None)
        if reason is None:
            return run(module, *args, **kwargs)
        return self._eagerly(module, run, args, kwargs, path, reason)

    def _call_hook(self, path: str, hook: Callable[..., Any], module: nn.Module, *args: Any) -> Any:
        if not self.tracer.recording:
            return hook(module, *args)
        return self._eagerly(module, hook, args, {}, f"hook of {path}", REASON)

    def _eagerly(
        self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any, name: str, reason: str
    ) -> Any:
        island = ModuleIsland(module, run, args, kwargs, self.inputs.graphs, self.stand_ins)
        with torch._C.DisableTorchFunction(), preserved(module):
            tensors = self.tracer.island(island, *island.operands, name=name, reason=reason)
        return island.result(tensors)

    # ---- results

    def _plan_outputs(self, out: Any, writes: list[Any]) -> OutputPlan:
        leaves, spec = pytree.tree_flatten(out)
        sources = [self._source(leaf) for leaf in leaves]
        graph_writes = []
        for i, (plan, stand_in) in enumerate(zip(self.inputs.graphs, self.stand_ins, strict=True)):
            effects = plan.adapter.effects(stand_in)
            if effects:
                columns = {k: None if v is None else self._source(v) for k, v in effects.items()}
                graph_writes.append(GraphWrites(i, columns))
        attribute_writes = [(w.module, w.name, self._source(w.value)) for w in writes]
        self.tracer.graph.output(tuple(self._results))
        return OutputPlan(sources, spec, graph_writes, attribute_writes, self.inputs)

    def _source(self, leaf: Any) -> Any:
        for i, stand_in in enumerate(self.stand_ins):
            if leaf is stand_in:
                return GraphBack(i)
        if isinstance(leaf, Tensor):
            for i, fake in enumerate(self.fakes):
                if leaf is fake:
                    return Argument(i)
            node = self.tracer.node_of(leaf)
            if node.op == "get_attr" and node.target not in self.tracer.constants:
                owner, _, name = node.target.rpartition(".")
                return Attribute(self.model.get_submodule(owner), name)
            return Result(self._position(node))
        if isinstance(leaf, SymInt):
            return Size(self._position(self.tracer.carry(leaf)))
        if isinstance(leaf, (SymFloat, SymBool)):
            return Constant(float(leaf) if isinstance(leaf, SymFloat) else bool(leaf))
        if isinstance(leaf, _PLAIN):
            return Constant(leaf)
        raise CaptureError(f"forward returns an object of type {type(leaf).__qualname__}, which is not captured")

    def _position(self, node: fx.Node) -> int:
        self._results.setdefault(node)
        return list(self._results).index(node)

    def _value_guards(self, first: int) -> ValueGuards:
        tracer = self.tracer
        conditions = [c for c in tracer.sizes.conditions(first) if tracer.sizes.depends_on_data(c)]
        return ValueGuards(tracer.guards, conditions, tracer.sizes.symbol_node, tracer.example, self._attribute)

    def _late_guards(self) -> Callable[[list[sympy.Basic]], ValueGuards]:
        """Makes value guards after the graph has been rewritten, from a copy with all data-dependent sizes."""
        complete = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        complete.graph_copy(self.tracer.graph, copies)
        example = self.tracer.example.of_copy(copies)
        attribute = self._attribute  # not self, which holds the real arguments
        return lambda conditions: ValueGuards([], conditions, partial(size_in, complete), example, attribute)

    def _finish(self) -> tuple[fx.GraphModule, list[Decision]]:
        graph = self.tracer.graph
        messages = []
        if self.messages:
            with torch.inference_mode(False), torch.set_grad_enabled(torch.is_grad_enabled()):
                messages = find_messages(self.tracer)
        hoist_structure(graph, self.tracer.example)
        graph.eliminate_dead_code(is_impure_node=_has_effect)
        tensors = {node.target: self._attribute(node.target)() for node in graph.find_nodes(op="get_attr")}
        self._check_writes(graph)
        graph.lint()
        return fx.GraphModule(tensors, graph, class_name=type(self.model).__name__), messages

    def _check_writes(self, graph: fx.Graph) -> None:
        """Refuse changes in place of tensors whose gradient is wanted, which a joint graph cannot express."""
        leaves = (node for node in graph.nodes if node.op in ("placeholder", "get_attr"))
        for node in leaves if torch.is_grad_enabled() else ():
            if node.meta["val"].requires_grad and self.tracer.example.is_written(node):
                raise CaptureError(f"forward changes '{node.target}', which requires a gradient, in place")

    def _used_islands(self, graph: fx.GraphModule) -> list[Island]:
        return [
            n.target
            for n in graph.graph.nodes
            if isinstance(n.target, Island) and not isinstance(n.target, StructureIsland)
        ]


@contextmanager
def _no_random_numbers_from_elsewhere() -> Iterator[None]:
    """Refuse what cannot be drawn anew at each call; also gives the generators the state that they had."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        drawn = python != random.getstate() or not all(map(np.array_equal, numpy, np.random.get_state()))
        random.setstate(python)
        np.random.set_state(numpy)
    if drawn:
        raise CaptureError("forward draws random numbers from Python or NumPy; use torch's generator")


class _Unseeded:
    """torch's generator, whose state a recorded forward must leave alone."""

    def __init__(self, generator: torch.Generator, tracer: Tracer) -> None:
        self._generator, self._tracer = generator, tracer

    def __getattr__(self, name: str) -> Any:
        if name in ("manual_seed", "seed", "set_state") and self._tracer.recording:
            raise CaptureError("forward seeds torch's generator")
        return getattr(self._generator, name)


@contextmanager
def _quiet() -> Iterator[None]:
    """torch logs an error of the model on fake tensors before it raises it."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _attribute(model: nn.Module, constants: dict[str, Tensor], name: str) -> Callable[[], Tensor]:
    """Reads what a get_attr node stands for now."""
    if name in constants:
        return partial(constants.__getitem__, name)
    owner, _, leaf = name.rpartition(".")
    return partial(getattr, model.get_submodule(owner), leaf)


def _has_effect(node: fx.Node) -> bool:
    return node.op in ("placeholder", "output") or bool(node.meta.get("writes"))


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)
