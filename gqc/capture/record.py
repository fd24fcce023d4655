"""One attempt to record a model's forward."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch import SymBool, SymFloat, SymInt, Tensor, nn

from gqc.capture.graphs import adapter_of, adapters
from gqc.capture.guards import Guards
from gqc.capture.inputs import GraphArgument, InputPlan, read_call, substitute
from gqc.capture.islands import FunctionCall, Island, StructureIsland, calling
from gqc.capture.modules import ModuleWatch, preserved
from gqc.capture.outputs import Argument, Attribute, Constant, GraphBack, GraphWrites, OutputPlan, Result, Size
from gqc.capture.structure import hoist_structure
from gqc.capture.symbolic import symbolic_numbers
from gqc.capture.tracer import Tracer
from gqc.errors import CaptureError

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
    """

    graph: fx.GraphModule
    fakes: list[Tensor]
    inputs: InputPlan
    outputs: OutputPlan
    guards: Guards
    islands: list[Island]


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
    ) -> None:
        self.model = model
        self.forward = forward
        self.args, self.kwargs = args, kwargs
        self.call = read_call(args, kwargs)
        self.islands = islands
        self.watch = ModuleWatch(model)
        named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        names: dict[int, str] = {}
        for name, tensor in named:
            names.setdefault(id(tensor), name)
        self.tracer = Tracer(names, self.watch.describe)
        self.tracer.sizes.exact = exact
        self.fakes: list[Tensor] = []
        self.inputs = InputPlan(self.call.key)
        self.stand_ins: list[Any] = []
        self._results: dict[fx.Node, int] = {}

    # ---- arguments

    def _tensor(self, _: Tensor, name: str = "", axes: tuple[int, ...] | None = None) -> Tensor:
        position = len(self.fakes)
        fake = self.tracer.placeholder(name or f"arg{position}", self.call.flat[position], axes)
        self.fakes.append(fake)
        return fake

    def _graph(self, graph: Any) -> Any:
        adapter = adapter_of(graph)
        assert adapter is not None
        first = len(self.fakes)
        real = adapter.tensors(graph)
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
        state = random.getstate(), np.random.get_state()
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.set_grad_enabled(grad))
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(calling(self.call.graphs))
            try:
                out, first = self._trace()
                writes = self.watch.collect_writes()
            except BaseException:
                self.watch.restore()
                raise
        if state[0] != random.getstate() or any(
            not np.array_equal(a, b) for a, b in zip(state[1], np.random.get_state(), strict=True)
        ):
            random.setstate(state[0])
            np.random.set_state(state[1])
            raise CaptureError("forward draws random numbers from Python or NumPy; use torch's generator")
        plan = self._plan_outputs(out, writes)
        guards = self._guards(first)
        graph = self._finish()
        return Captured(graph, self.fakes, self.inputs, plan, guards, self._used_islands(graph))

    def _trace(self) -> tuple[Any, int]:
        tracer = self.tracer
        with ExitStack() as stack:
            for adapter in adapters():
                stack.enter_context(adapter.patches(tracer))
            stack.enter_context(tracer.fake_mode)
            args, kwargs = substitute((self.args, self.kwargs), self._tensor, self._graph)
            first = len(tracer.sizes.env.guards)
            stack.enter_context(self.watch.active(self._call_module, lambda: tracer.suspended))
            stack.enter_context(symbolic_numbers(self.model))
            stack.enter_context(self._autograd_functions())
            stack.enter_context(tracer)
            return self.forward(*args, **kwargs), first

    @contextmanager
    def _autograd_functions(self) -> Iterator[None]:
        """Record ``Function.apply`` as one call, whose backward is the function's own."""
        tracer, function = self.tracer, torch.autograd.Function
        original = function.__dict__["apply"]

        def apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
            target = FunctionCall(cls, original)
            if tracer.suspended:
                return target(*args, **kwargs)
            with torch._C.DisableTorchFunction():
                return tracer.function(target, args, kwargs)

        function.apply = classmethod(apply)
        try:
            yield
        finally:
            function.apply = original

    # ---- eager islands for modules

    def _call_module(self, module: nn.Module, path: str, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if path not in self.islands:
            return run(module, *args, **kwargs)
        operands: list[Any] = []
        template = self._template((args, kwargs), operands)
        island = _ModuleIsland(module, run, template, self.inputs)
        with torch._C.DisableTorchFunction(), preserved(module):
            fakes = self.tracer.island(island, *operands, name=path, reason=self.islands[path])
        return island.rebuild(fakes)

    def _template(self, obj: Any, operands: list[Any]) -> Any:
        """Module arguments with operands replaced by slots."""

        def tensor(x: Tensor) -> _Slot:
            operands.append(x)
            return _Slot(len(operands) - 1)

        def graph(g: Any) -> _GraphSlot:
            index = next((i for i, s in enumerate(self.stand_ins) if s is g), None)
            if index is None:
                raise CaptureError("a graph that forward itself has made is passed to an eager island")
            effects = self.inputs.graphs[index].adapter.effects(g)
            return _GraphSlot(index, {k: None if v is None else tensor(v) for k, v in effects.items()})

        def other(x: Any) -> Any:
            return tensor(x) if isinstance(x, SymInt) else x

        return substitute(obj, tensor, graph, other)

    # ---- results

    def _plan_outputs(self, out: Any, writes: list[Any]) -> OutputPlan:
        leaves, spec = pytree.tree_flatten(out)
        order: list[fx.Node] = []
        self._order = order
        sources = [self._source(leaf) for leaf in leaves]
        graph_writes = []
        for i, (plan, stand_in) in enumerate(zip(self.inputs.graphs, self.stand_ins, strict=True)):
            effects = plan.adapter.effects(stand_in)
            if effects:
                columns = {k: None if v is None else self._source(v) for k, v in effects.items()}
                graph_writes.append(GraphWrites(i, columns))
        attribute_writes = [(w.module, w.name, self._source(w.value)) for w in writes]
        self.tracer.graph.output(tuple(order))
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
        if node not in self._results:
            self._results[node] = len(self._order)
            self._order.append(node)
        return self._results[node]

    def _guards(self, first: int) -> Guards:
        tracer = self.tracer
        placeholders = [n for n in tracer.graph.nodes if n.op == "placeholder"]
        reads = list(self.watch.reads.values())
        return Guards(
            tracer.sizes, tracer.example, placeholders, tracer.guards, reads, self.model, tracer.constants, first
        )

    def _finish(self) -> fx.GraphModule:
        graph = self.tracer.graph
        hoist_structure(graph, self.tracer.example)
        graph.eliminate_dead_code(is_impure_node=_has_effect)
        tensors: dict[str, Any] = {}
        for node in graph.find_nodes(op="get_attr"):
            if node.target in self.tracer.constants:
                tensors[node.target] = self.tracer.constants[node.target]
            else:
                owner, _, name = node.target.rpartition(".")
                tensors[node.target] = getattr(self.model.get_submodule(owner), name)
        graph.lint()
        return fx.GraphModule(tensors, graph, class_name=type(self.model).__name__)

    def _used_islands(self, graph: fx.GraphModule) -> list[Island]:
        return [
            n.target
            for n in graph.graph.nodes
            if isinstance(n.target, Island) and not isinstance(n.target, StructureIsland)
        ]


def _has_effect(node: fx.Node) -> bool:
    return node.op in ("placeholder", "output") or bool(node.meta.get("writes"))


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


@dataclass(frozen=True)
class _Slot:
    index: int


@dataclass(frozen=True)
class _GraphSlot:
    index: int
    columns: dict[str, _Slot | None]


class _ModuleIsland:
    """Calls a module eagerly with real tensors in the places of its recorded arguments."""

    def __init__(self, module: nn.Module, run: Callable[..., Any], template: Any, inputs: InputPlan) -> None:
        self._module = module
        self._run = run
        self._template = template
        self._inputs = inputs
        self._spec: pytree.TreeSpec | None = None
        self._constants: list[Any] = []

    def __call__(self, *values: Any) -> list[Tensor]:
        args, kwargs = pytree.tree_map(lambda x: self._fill(x, values), self._template)
        leaves, spec = pytree.tree_flatten(self._run(self._module, *args, **kwargs))
        constants = [None if isinstance(x, Tensor) else _Fixed(x) for x in leaves]
        if self._spec is None:
            self._spec, self._constants = spec, constants
        elif (spec, constants) != (self._spec, self._constants):
            raise CaptureError("it returned other constants or another structure than when it was captured")
        return [x for x in leaves if isinstance(x, Tensor)]

    def _fill(self, x: Any, values: tuple[Any, ...]) -> Any:
        from gqc.capture.islands import current_graph

        if isinstance(x, _Slot):
            return values[x.index]
        if isinstance(x, _GraphSlot):
            adapter = self._inputs.graphs[x.index].adapter
            graph = adapter.local(current_graph(x.index))
            adapter.write_back(graph, {k: None if s is None else values[s.index] for k, s in x.columns.items()})
            return graph
        return x

    def rebuild(self, fakes: list[Tensor]) -> Any:
        """The module's result with fake tensors."""
        tensors = iter(fakes)
        leaves = [next(tensors) if c is None else c.value for c in self._constants]
        return pytree.tree_unflatten(leaves, self._spec)


@dataclass(frozen=True)
class _Fixed:
    value: Any
