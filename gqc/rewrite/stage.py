"""The two halves of a compiled stage as functions, and the ``autograd.Function`` that joins them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, fx

from gqc.joint import INPUT, SEED, TANGENT, Placeholder
from gqc.passes.nodes import aten
from gqc.rewrite.function import FunctionWriter, Given
from gqc.rewrite.layout import Group, Text, docstring, result, statement, tuple_of
from gqc.rewrite.names import Scope, identifier
from gqc.rewrite.parts import Parts, names_of, relations_of, result_tuple, signature
from gqc.runtime.rewritten import MODES
from gqc.variant import CompiledStage

if TYPE_CHECKING:
    from gqc.rewrite.form import FormWriter

_MANY = 4

STEP_CLASSES = {mode: "".join(map(str.capitalize, mode.split("-"))) + "Step" for mode in MODES.values()}
"""Name of the ``autograd.Function`` of each mode."""


class StageWriter:
    """Writes the functions of a stage and the statements that run it.

    Args:
        parts: of the module; gets the functions.
        form: knows what values are called in the method.
        step: the stage.
        mode: name of the form.
    """

    def __init__(self, parts: Parts, form: FormWriter, step: CompiledStage, mode: str) -> None:
        self._parts, self._form, self._step = parts, form, step
        self._name = identifier(mode)
        self._class = STEP_CLASSES[mode]
        run = step.executable
        self._forward, self._backward = run.halves.forward, run.halves.backward
        self._places = self._forward.graph.find_nodes(op="placeholder")
        self._differentiable = [self._places[i] for i in run.differentiable] if self._backward is not None else []
        self._outputs: list[fx.Node] = list(self._forward.graph.output_node().args[0])[: run.num_outputs]  # type: ignore[arg-type]
        self._saved: list[fx.Node] = list(self._forward.graph.output_node().args[0])[run.num_outputs :]  # type: ignore[arg-type]
        self._given: dict[fx.Node, Given] = {}
        self._sources: dict[fx.Node, str] = {}
        self._reads: dict[fx.Node, str] = {}
        self._seed_name = parts.arguments.local("seed")
        scope = Scope(names_of(parts.arguments.given) | {self._seed_name})
        primals = [p for p in step.joint.placeholders if p.kind != TANGENT]
        for node, placeholder in zip(self._places, primals, strict=True):
            self._given[node], self._sources[node] = self._meaning(node, placeholder, scope)
        self._seeded = any(p.kind == SEED for p in primals)

    def _meaning(self, node: fx.Node, placeholder: Placeholder, scope: Scope) -> tuple[Given, str]:
        """What a placeholder is called in the functions, and its source in the method."""
        if placeholder.kind == SEED:
            return self._seed_name, self._seed_name
        if placeholder.kind == INPUT:
            self._reads[node] = self._step.reads[placeholder.index]
            given = self._form.given(self._reads[node])
            return given, str(given)
        source = self._form.attribute(placeholder.name)
        return scope.take(identifier(placeholder.name)), source

    def write(self) -> list[str]:
        """The statements of the method."""
        writer = self._function(self._forward, self._given)
        body = writer.write()
        results = [writer.text(n) for n in self._outputs]
        names = [str(text) if str(text).isidentifier() else "out" for text in results]
        order = self._order()
        if self._backward is None:
            lines = self._evaluate(body, results, names, order)
        else:
            lines = self._train(writer, body, names, order, self._backward)
        return [*self._seed(), *lines]

    def _function(
        self,
        half: fx.GraphModule,
        given: dict[fx.Node, Given],
        tangents: Sequence[fx.Node] = (),
        results: dict[fx.Node, str] | None = None,
    ) -> FunctionWriter:
        read = {str(n.target) for n in half.graph.find_nodes(op="get_attr")}
        constants = {target: self._parts.attribute(half, target) for target in read}
        return FunctionWriter(half.graph, given, self._parts.lines, constants, self._sizes(given), results, tangents)

    def _sizes(self, given: dict[fx.Node, Given]) -> dict[fx.Node, dict[int, str]]:
        """Sizes of placeholders that a relation among the placeholders tells."""
        known = {f"({relation})" for relation in relations_of(list(given.values()))}
        reads = {self._given[node]: name for node, name in self._reads.items() if isinstance(self._given[node], str)}
        found: dict[fx.Node, dict[int, str]] = {}
        for node, name in given.items():
            if name in reads:
                source = self._form.size(reads[name], 0)
                if source is not None and any(mark in source for mark in known):
                    found[node] = {0: source}
        return found

    def _is_read(self, node: fx.Node, given: dict[fx.Node, Given]) -> bool:
        """Whether a placeholder's function takes it as an argument."""
        users = [user for user in node.users if user.op != "output"]
        if node in self._sizes(given):
            users = [user for user in users if user.target is not aten.sym_size.int or user.args[1] != 0]
        return bool(users)

    def _seed(self) -> list[str]:
        if not self._seeded:
            return []
        if self._parts.apart:
            return [f"        {self._seed_name} = self.{self._parts.steps}()"]
        if self._parts.seed is None:
            return [f"        {self._seed_name} = torch.randint(2**63 - 1, (2,), dtype=torch.int64)"]
        steps = f"self.{self._parts.steps}"
        drawn = f"        {self._seed_name} = torch.tensor([SEED, {steps}], dtype=torch.int64)"
        return [drawn, f"        {steps} += 1"]

    def _order(self) -> list[fx.Node]:
        """The placeholders in the order of parameters: what is differentiated comes last."""
        fixed = [n for n in self._places if n not in self._differentiable]
        return [*fixed, *self._differentiable]

    def _parameters(self, nodes: Sequence[fx.Node]) -> tuple[list[str], list[Text]]:
        """Parameters with their types and what is passed for them; a relation is one parameter."""
        for node in nodes:
            if node in self._reads:
                self._form.read(self._reads[node])
        relations = relations_of([self._given[n] for n in nodes])
        plain = [n for n in nodes if isinstance(self._given[n], str)]
        parameters = [f"{r}: list[Tensor]" for r in relations] + [f"{self._given[n]}: Tensor" for n in plain]
        return parameters, [*relations, *(self._sources[n] for n in plain)]

    # ---- without gradients

    def _evaluate(self, body: list[str], results: list[Text], names: list[str], order: list[fx.Node]) -> list[str]:
        used = [n for n in order if self._is_read(n, self._given) or n in self._outputs]
        parameters, sources = self._parameters(used)
        lines = signature(f"{self._name}_forward", parameters, _returned(results))
        self._parts.define([*lines, *docstring("Forward without gradients."), *body, *result(results)])
        targets = [self._form.define(w, n) for w, n in zip(self._step.writes, names, strict=True)]
        call = Group(f"{self._name}_forward(", sources)
        return ["        with below_autograd():", *statement(f"{', '.join(targets)} = ", call, 12)]

    # ---- with gradients

    def _train(
        self, writer: FunctionWriter, body: list[str], names: list[str], order: list[fx.Node], backward: fx.GraphModule
    ) -> list[str]:
        places = backward.graph.find_nodes(op="placeholder")
        given: dict[fx.Node, Given] = {}
        for node, place in zip(self._saved, places, strict=False):
            given[place] = self._given[node] if node in self._given else str(writer.text(node))
        saved = [(n, p) for n, p in zip(self._saved, places, strict=False) if self._is_read(p, given)]
        held = [n for n, _ in saved if n in self._given]
        own = [n for n, _ in saved if n not in self._given]
        tensors, sizes = [n for n in own if _is_tensor(n)], [n for n in own if not _is_tensor(n)]
        used = [n for n in order if self._is_read(n, self._given) or n in self._outputs]
        needed = [n for n in order if n in used or n in held or n in self._differentiable]

        returned: list[Text] = [writer.text(n) for n in self._outputs]
        returned += [tuple_of([writer.text(n) for n in part]) for part in (tensors, sizes) if part or part is tensors]
        lines = signature(f"{self._name}_forward", self._parameters(used)[0], "tuple[Any, ...]")
        lines += docstring("Results of a training step, and what its backward needs.")
        self._parts.define([*lines, *body, *result(returned)])

        scope = Scope(names_of([*given.values(), *self._given.values()]))
        grads = [scope.take(f"{names[i]}_grad") for i in self._step.executable.tangents]
        tangents = places[len(self._saved) :]
        given |= dict(zip(tangents, grads, strict=True))
        kept = [str(self._given[n]) for n in held if isinstance(self._given[n], str)]
        relations = relations_of([self._given[n] for n in held])
        parameters = [f"{r}: list[Tensor]" for r in relations] + [f"{name}: Tensor" for name in kept]
        parameters += [f"{writer.text(n)}: Tensor" for n in tensors] + [f"{writer.text(n)}: int" for n in sizes]
        parameters += [f"{name}: Tensor" for name in grads]
        self._write_backward(backward, given, tangents, parameters)
        self._write_class(needed, used, relations, kept, bool(sizes))
        targets = [self._form.define(w, n) for w, n in zip(self._step.writes, names, strict=True)]
        call = Group(f"{self._class}.apply(", self._parameters(needed)[1])
        return statement(f"{', '.join(targets)} = ", call, 8)

    def _write_backward(
        self, backward: fx.GraphModule, given: dict[fx.Node, Given], tangents: list[fx.Node], parameters: list[str]
    ) -> None:
        gradients = dict(zip(self._places, backward.graph.output_node().args[0], strict=True))  # type: ignore[arg-type]
        wanted = {gradients[n]: f"{self._given[n]}_grad" for n in self._differentiable}
        writer = self._function(backward, given, tangents, wanted)
        body = writer.write()
        results = [writer.text(gradients[n]) for n in self._differentiable]
        lines = signature(f"{self._name}_backward", parameters, "tuple[Tensor, ...]")
        lines += docstring(f"Gradients of what ``{self._class}`` differentiates.")
        self._parts.define([*lines, *body, *result_tuple(results)])

    def _write_class(
        self, needed: list[fx.Node], used: list[fx.Node], relations: list[str], kept: list[str], has_sizes: bool
    ) -> None:
        run, count = self._step.executable, len(self._outputs)
        parameters, _ = self._parameters(needed)
        scope = Scope({p.partition(":")[0] for p in parameters})
        out = [scope.take(f"out_{i}" if count > 1 else "out") for i in range(count)]
        saved, sizes = scope.take("saved"), scope.take("sizes")
        taken = [p.partition(":")[0] for p in self._parameters(used)[0]]
        targets = ", ".join([*out, saved, *[sizes] * has_sizes])
        lines = [f"class {self._class}(torch.autograd.Function):"]
        lines += docstring(f"Joins ``{self._name}_forward`` and ``{self._name}_backward``.")
        lines += ["", "    @staticmethod", *signature("forward", ["ctx: Any", *parameters], _returned(out), 4)]
        lines += ["        with below_autograd():"]
        lines += statement(f"{targets} = ", Group(f"{self._name}_forward(", taken), 12)
        lines += statement("", Group("ctx.save_for_backward(", [*kept, f"*{saved}"]), 8)
        lines += [f"        ctx.{name} = {name}" for name in relations]
        lines += [f"        ctx.sizes = {sizes}"] * has_sizes
        constant = [out[i] for i in run.constant_outputs]
        lines += statement("", Group("ctx.mark_non_differentiable(", constant), 8) if constant else []
        lines += result(out, 8)
        grads = [f"{name}_grad" for name in out]
        lines += ["", "    @staticmethod", "    @once_differentiable"]
        lines += signature("backward", ["ctx: Any", *(f"{n}: Tensor" for n in grads)], "tuple[Tensor | None, ...]", 4)
        passed = [*(f"ctx.{r}" for r in relations), "*ctx.saved_tensors", *["*ctx.sizes"] * has_sizes]
        passed += [grads[i] for i in run.tangents]
        lines += ["        with below_autograd():"]
        lines += statement("grads = ", Group(f"{self._name}_backward(", passed), 12)
        fixed = len(parameters) - len(self._differentiable)
        nones = ["None"] * fixed if fixed <= _MANY else [f"*[None] * {fixed}"]
        lines += result([*nones, "*grads"], 8) if nones else ["        return grads"]
        self._parts.define(lines)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)


def _returned(results: Sequence[object]) -> str:
    return "Tensor" if len(results) == 1 else "tuple[Tensor, ...]"
