"""Running a joint graph twice at once: as it is, and as if nothing in it were rounded.

Both runs have the same parameters, inputs, gradients and random numbers, so a difference is the effect of quantization.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from gqc.generators import GeneratorStates
from gqc.joint import JointGraph
from gqc.passes.exact_form import AROUND_PRODUCT, COMPRESSIONS, EXACT_FORMS
from gqc.passes.int8_copies import QUANTIZE
from gqc.passes.nodes import is_float, is_random, is_updated
from gqc.passes.primitive import ops


@dataclass(frozen=True)
class Values:
    """The values of one node.

    Attributes:
        quantized: in the graph as it is.
        exact: where no operand was ever rounded.
        unrounded: what ``quantized`` would be if this node's own int8 operands were not rounded and all before were;
            of an int8 tensor, the float values that it stands for.
        product: of an op that does not give its products: ``quantized``, ``exact`` and ``unrounded`` of the product, of
            two products as one with the rows of the second behind those of the first.
    """

    quantized: Any
    exact: Any
    unrounded: Any
    product: tuple[Tensor, Tensor, Tensor] | None = None


def run_both(joint: JointGraph, arguments: Sequence[Any]) -> Iterator[tuple[fx.Node, Values]]:
    """Values of every node of a joint graph, in graph order.

    Args:
        joint: the graph after all passes.
        arguments: one value a placeholder, gradients and seed included. None is changed.
    """
    rest = iter(arguments)
    env: dict[fx.Node, Values] = {}
    last_use = {read: node for node in joint.graph.nodes for read in node.all_input_nodes}
    for node in joint.graph.nodes:
        if node.op == "output":
            return
        if node.op == "placeholder":
            env[node] = _both(next(rest), copied=is_updated(node))
        elif node.op == "get_attr":
            env[node] = _both(operator.attrgetter(node.target)(joint.module), copied=is_updated(node))
        else:
            env[node] = _call(node, env)
        yield node, env[node]
        for read in node.all_input_nodes:
            if last_use[read] is node:
                del env[read]


def _both(value: Any, copied: bool) -> Values:
    if copied:
        return Values(value.clone(), value.clone(), value.clone())
    return Values(value, value, value)


def _call(node: fx.Node, env: dict[fx.Node, Values]) -> Values:
    random = is_random(node)
    generators = GeneratorStates.now() if random else None
    args, quantized = _run(node, node.target, lambda n: env[n].quantized)
    if node.target in QUANTIZE:
        unscaled = torch.ones(())
        return Values(quantized, (env[node.args[0]].exact, unscaled), (args[0], unscaled))  # type: ignore[index]
    if node.target in AROUND_PRODUCT:
        return _around_product(node, env, args, quantized)
    form = EXACT_FORMS.get(node.target, node.target)  # type: ignore[arg-type]
    if generators is not None:
        generators.restore()
    _, exact = _run(node, form, lambda n: env[n].exact)
    rounds = node.target in (ops.pointwise.default, *COMPRESSIONS)
    if node.target is not operator.getitem and not rounds and not any(map(_is_quantized, node.all_input_nodes)):
        return Values(quantized, exact, quantized)
    _, unrounded = _run(node, form, lambda n: env[n].quantized if is_float(n) else env[n].unrounded)
    return Values(quantized, exact, unrounded)


def _around_product(node: fx.Node, env: dict[fx.Node, Values], args: tuple[Any, ...], quantized: Any) -> Values:
    around = AROUND_PRODUCT[node.target]  # type: ignore[index]
    products = around.products(*args)
    exact_args, exact = _run(node, around.exact, lambda n: env[n].exact)
    _, unrounded = _run(node, around.exact, lambda n: env[n].quantized if is_float(n) else env[n].unrounded)
    results = around.results(exact, *exact_args), around.results(products, *args)
    return Values(quantized, *results, (_as_one(products), _as_one(exact), _as_one(unrounded)))


def _as_one(products: Sequence[Tensor]) -> Tensor:
    return torch.cat(tuple(products)) if len(products) > 1 else products[0]


def _run(node: fx.Node, target: Any, value: Callable[[fx.Node], Any]) -> tuple[tuple[Any, ...], Any]:
    args, kwargs = fx.map_arg((node.args, node.kwargs), value)
    return args, target(*args, **kwargs)


def _is_quantized(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dtype in (torch.int8, torch.uint8)
