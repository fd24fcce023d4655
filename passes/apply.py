"""Run one pass on a torch.fx graph that gqc did not capture."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from gqc.errors import InputError, PassError
from gqc.joint import BUFFER, INPUT, PARAMETER, SEED, TANGENT, JointGraph, Placeholder
from gqc.passes.computation_graph import ComputationGraph, updated_by
from gqc.passes.nodes import is_updated, mutates
from gqc.passes.pipeline import PIPELINE, Step, run_step
from gqc.passes.report import Report
from gqc.passes.saved_values import tangent_dependent
from gqc.passes.schedule import schedule
from gqc.passes.share_quantized import share_quantized
from gqc.policy import Pass, Policy, did_you_mean

_DONE = "gqc_passes"
_ARITHMETIC = ("_operator", "math")
_MINDS_UPDATES = (share_quantized, schedule)
_TANGENT = re.compile(r"tangents?_\d+")


def apply(
    run: Pass,
    graph: fx.GraphModule,
    policy: Policy | None = None,
    *,
    inputs: Sequence[Any] | None = None,
    parameters: Sequence[str] = (),
    num_forward_outputs: int | None = None,
) -> Report:
    """Run one pass over a graph of aten and gqc ops, which is changed in place, and verify the result.

    Passes build on one another, so apply those that a pass requires first; the graph remembers which have run.
    A pass that rounds stochastically adds a placeholder ``seed`` to a graph with a backward.

    Args:
        run: a pass of :mod:`gqc.passes` or one of your own.
        graph: as ``make_fx`` or AOTAutograd leave it: ``call_function`` nodes of aten and gqc ops.
        policy: how to quantize; default ``Policy()``.
        inputs: example values of the placeholders, needed where a node has no fake value under ``meta["val"]``.
        parameters: names of placeholders that are parameters. A graph does not tell them from inputs; what gqc checks
            about int8 copies of parameters holds for these and for ``get_attr`` nodes of parameters.
        num_forward_outputs: how many results belong to the forward, if the graph has a backward. Default: all but the
            last ``k`` for ``k`` placeholders that are no tangents, which is AOTAutograd's order.

    Inferred: placeholders named ``tangents_<n>``, AOTAutograd's name, are gradients of outputs, and what depends on
    them is the backward; a placeholder that the graph updates is a buffer. Backward primitives are linked with forward
    ones by AOTAutograd's ``seq_nr``, calls with modules by ``nn_module_stack``, where the nodes carry them.
    Not inferred: where neither is there, ``keep_full_precision`` takes the graph as the forward of one module and
    decides each backward primitive by itself.

    Raises:
        InputError: the graph is no flat graph of aten and gqc ops, what is missing must be given, or the graph reads a
            tensor after it was updated in place, which only ``share_quantized`` and ``schedule`` mind.
        PassError: a required pass has not run, or the pass failed.
    """
    step = next((s for s in PIPELINE if s.run is run), Step(getattr(run, "__name__", repr(run)), run))
    done: tuple[str, ...] = graph.meta.get(_DONE, ())
    for name in step.requires:
        if name not in done:
            raise PassError(f"pass {step.name} requires {name}: apply that to the graph first")
    joint = wrap(graph, inputs, parameters, num_forward_outputs)
    if step in PIPELINE and step.run not in _MINDS_UPDATES:
        _check_updates(joint, step.name)
    report = run_step(step, joint, policy or Policy(), {*done, step.name})
    graph.meta[_DONE] = (*done, step.name)
    graph.recompile()
    return report


def wrap(
    graph: fx.GraphModule,
    inputs: Sequence[Any] | None = None,
    parameters: Sequence[str] = (),
    num_forward_outputs: int | None = None,
) -> JointGraph:
    """The joint graph that a plain graph stands for; see :func:`apply` for the arguments and what is inferred."""
    for node in graph.graph.nodes:
        _check(node)
    _fill_values(graph, inputs)
    nodes = graph.graph.find_nodes(op="placeholder")
    names = [n.name for n in nodes]
    for name in parameters:
        if name not in names:
            raise InputError(
                f"parameters names {name!r}, which is no placeholder of the graph{did_you_mean(name, names)}"
            )
    kinds = [_kind(n, parameters) for n in nodes]
    placeholders = [Placeholder(n, kind, n.name, i) for i, (n, kind) in enumerate(zip(nodes, kinds, strict=True))]
    joint = JointGraph(graph, placeholders, 0)
    primals = [p.node for p in placeholders if p.kind not in (TANGENT, SEED)]
    results = len(joint.gradients)
    if all(p.kind != TANGENT for p in placeholders):
        joint.num_forward_outputs = results
    else:
        forward = results - len(primals) if num_forward_outputs is None else num_forward_outputs
        if not 0 <= forward <= results or results - forward != len(primals):
            raise InputError(
                f"the graph has {results} results and {len(primals)} placeholders that are no tangents: give "
                "num_forward_outputs=, and return a gradient or None for each of these placeholders"
            )
        joint.num_forward_outputs, joint.gradient_of = forward, primals
        late = tangent_dependent(joint)
        for node in graph.graph.nodes:
            node.meta.setdefault("partitioner_tag", "is_backward" if node in late else "is_forward")
    for node in graph.graph.nodes:
        _link(node)
    return joint


def _check(node: fx.Node) -> None:
    if node.op in ("call_module", "call_method") or (node.op == "call_function" and not _is_known(node.target)):
        raise InputError(
            f"node {node.name} is a {node.op} of {node.target}: passes read aten and gqc ops; record the module with "
            "torch.fx.experimental.proxy_tensor.make_fx"
        )


def _is_known(target: Any) -> bool:
    """Whether a target is an aten or gqc op, or arithmetic on sizes."""
    if isinstance(target, torch._ops.OpOverload):
        return True
    return getattr(target, "__module__", "") in _ARITHMETIC or getattr(target, "__name__", "").startswith("sym_")


def _check_updates(joint: JointGraph, step: str) -> None:
    """Refuse to move or merge reads of a tensor over an update of it."""
    updates = [n for n in joint.graph.nodes if mutates(n)]
    graph = ComputationGraph.of(joint) if updates else None
    for update in updates:
        held = {alias for written in updated_by(update) for alias in graph.aliases(written)}  # type: ignore[union-attr]
        for node in joint.graph.nodes:
            read = next((n for n in node.all_input_nodes if n in held), None)
            if read is not None and update < node and node.op != "output" and not mutates(node):
                raise InputError(
                    f"node {node.name} reads {read.name} after {update.name} has updated it in place, and pass {step} "
                    "takes a graph whose updates stand at its end: record torch.func.functionalize(f) with make_fx"
                )


def _kind(node: fx.Node, parameters: Sequence[str]) -> str:
    if _TANGENT.fullmatch(node.name):
        return TANGENT
    if _is_seed(node):
        return SEED
    if node.name in parameters:
        return PARAMETER
    return BUFFER if is_updated(node) else INPUT


def _is_seed(node: fx.Node) -> bool:
    """Whether the gqc ops read a placeholder as the seed of their random numbers."""
    return any(name == "seed" for user in node.users for name in _read_as(user, node))


def _read_as(user: fx.Node, node: fx.Node) -> Iterator[str]:
    if isinstance(user.target, torch._ops.OpOverload):
        for schema, argument in zip(user.target._schema.arguments, user.args, strict=False):
            if argument is node:
                yield schema.name


def _fill_values(module: fx.GraphModule, inputs: Sequence[Any] | None) -> None:
    """Give every node a fake value of one fake mode, if they have not got that."""
    nodes = [n for n in module.graph.nodes if n.op != "output"]
    tensors = [n.meta.get("val") for n in nodes]
    modes = {id(v.fake_mode) for v in tensors if isinstance(v, FakeTensor)}
    missing = [n for n in nodes if "val" not in n.meta and not mutates(n)]
    if inputs is None and not missing and len(modes) <= 1:
        return
    placeholders = module.graph.find_nodes(op="placeholder")
    values = [n.meta.get("val") for n in placeholders] if inputs is None else list(inputs)
    if len(values) != len(placeholders) or any(v is None for v in values):
        raise InputError(
            f"node {missing[0].name if missing else placeholders[0].name} has no fake value in meta['val']: give "
            f"inputs=, one example value for each of the {len(placeholders)} placeholders"
        )
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    FakeTensorProp(module, mode).propagate_dont_convert_inputs(*(_fake(mode, value) for value in values))


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    with mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _link(node: fx.Node) -> None:
    """Say in gqc's words which call and module a node comes from, if torch has recorded it."""
    number, stack = node.meta.get("seq_nr"), node.meta.get("nn_module_stack")
    if "custom" in node.meta or (number is None and not stack):
        return
    path, kind = list(stack.values())[-1] if stack else ("", "")
    recorded = {"id": -1 if number is None else number, "module": path, "type": getattr(kind, "__name__", str(kind))}
    node.meta["custom"] = {"gqc": recorded}
