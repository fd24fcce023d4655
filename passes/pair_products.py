"""Compute the product that a program reads beside the product that the program follows."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from gqc.joint import JointGraph
from gqc.passes.nodes import by_name, drop_unused, example
from gqc.passes.pointwise_groups import sides
from gqc.passes.pointwise_steps import is_same_size
from gqc.passes.primitive import ops
from gqc.passes.product_fusion import MOST_CONTRACTED, MOST_CONTRACTED_FLOATS, ProductFusion
from gqc.passes.report import FUSED, UNFUSED, Report
from gqc.policy import Policy
from gqc.runtime.ops import second_product
from gqc.runtime.pointwise.program import parse

GEMM, MM = ops.qgemm.default, ops.mm.default
MM_PROGRAM = ops.mm_pointwise.default
WITH_PROGRAM = (MM_PROGRAM, ops.qgemm_pointwise.default, ops.quantize_qgemm_pointwise.default)

_ROUNDED = {torch.bfloat16: "to_bfloat16", torch.float16: "to_float16"}


def pair_products(joint: JointGraph, policy: Policy) -> Report:
    """Let a GEMM with a pointwise program compute a second GEMM that the program reads.

    On the CPU, where to write a float matrix and read it costs more than the product.

    Requires: :func:`fuse_products` before it (order only), whose products with programs it takes.
    Does: a GEMM whose result only the program behind another GEMM of the same size reads, both in int8 or both in full
        precision, is computed with that one, block of rows by block of rows, its bias included: ``x @ V + y @ W`` is
        never in memory in parts. One a program.
    Ensures: every value bit for bit. Nothing moves across an in-place update, or from one side of the cut between
        forward and backward to the other.
    """
    report = Report("pair_products")
    if joint.device.type != "cpu":
        return report
    pairing = _Pairing(joint, report, sides(joint))
    for node in [n for n in joint.graph.nodes if n.op == "call_function" and n.target in WITH_PROGRAM]:
        pairing.pair(node)
    pairing.sort_decisions()
    return report


@dataclass
class _Pairing(ProductFusion):
    sides: dict[fx.Node, bool]

    def pair(self, first: fx.Node) -> None:
        """Take a product that the program behind another one reads into that one."""
        value = next((n for n in by_name(first)["inputs"] if self._can_join(n, first)), None)
        if value is None:
            return
        product = _product(value)
        given, second = by_name(first), by_name(product)
        text, dtype = _text(first, value)
        given["inputs"] = [n for n in given["inputs"] if n is not value]
        given |= {"program": text, "trans_b2": second["trans_b"]} | {f"{name}2": second[name] for name in ("a", "b")}
        if product.target is GEMM:
            given |= {"dtype": dtype, "bias2": second["bias"]}
            given |= {f"{name}2_scale": second[f"{name}_scale"] for name in ("a", "b")}
        with self.joint.graph.inserting_before(first):
            fused = self.fused(first.target, tuple(given.values()), first, f"{first.name.removesuffix('_fused')}_pair")
        first.replace_all_uses_with(fused)
        self.sides[fused] = self.sides[first]
        self.say(fused, FUSED, f"computes {product.name}, which only its program reads, while both are in the cache")
        drop_unused(self.joint.graph)

    def _can_join(self, value: fx.Node, first: fx.Node) -> bool:
        """Whether a product with a program can compute an input of the program; reports why not where it is one."""
        product = _product(value)
        if product.target is not (MM if first.target is MM_PROGRAM else GEMM):
            return False
        if product is not value and value.args[1] != 0:
            return False
        given, program = by_name(product), by_name(first)
        if product.target is MM and given["precision"] != program["precision"]:
            return False
        if given["trans_a"] or not is_same_size(_shape(value), _size(first)) or program["size"] is not None:
            return False
        if product not in self.sides or self.sides[product] != self.sides.get(first):
            return False
        readers = [n for n in (*product.users, *value.users) if n not in (value, first)]
        if readers or program["inputs"].count(value) != 1:
            names = sorted({n.name for n in readers}) or [first.name]
            self.say(first, UNFUSED, f"does not compute {product.name} too: {', '.join(names)} read its result as well")
            return False
        contracted = example(given["a"].meta["val"].shape[1])
        most = second_product.MOST_CONTRACTED
        if _rounds(program["program"]):
            most = MOST_CONTRACTED if product.target is GEMM else MOST_CONTRACTED_FLOATS
        if contracted > most:
            why = f"over {contracted} indices it would take longer than writing floats"
            self.say(first, UNFUSED, f"does not compute {product.name} too: {why}")
            return False
        return not self.updates_between(product, first)


def _product(value: fx.Node) -> fx.Node:
    """The product whose result a node is or picks, if it is one's."""
    return value.args[0] if value.target is operator.getitem else value  # type: ignore[return-value]


def _shape(node: fx.Node) -> tuple[Any, ...]:
    return tuple(node.meta["val"].shape)


def _size(product: fx.Node) -> tuple[Any, ...]:
    """Rows and columns of a product with a program."""
    given = by_name(product)
    left = given["a"] if "a" in given else given["x"]
    return _shape(left)[0], _shape(given["b"])[0 if given["trans_b"] else 1]


def _text(first: fx.Node, value: fx.Node) -> tuple[str, torch.dtype]:
    """The program that reads an input as its second product, and to what the products are rounded before it.

    If they have different types the program rounds each.
    """
    given = by_name(first)
    at = given["inputs"].index(value) + 1
    names = {f"x{i}": f"x{1 if i == at else i + 1 if i < at else i}" for i in range(1, len(given["inputs"]) + 1)}
    dtypes = given.get("dtype", torch.float32), value.meta["val"].dtype
    program = parse(given["program"])
    if dtypes[0] is dtypes[1]:
        return str(program.renamed(names)), dtypes[0]
    rounded = {f"x{i}": f"rounded{i}" for i, dtype in enumerate(dtypes) if dtype is not torch.float32}
    lines = [f"rounded{i} = {_ROUNDED[dtype]}(x{i})" for i, dtype in enumerate(dtypes) if dtype is not torch.float32]
    names = {"x0": "x0"} | names
    renamed = program.renamed({old: rounded.get(new, new) for old, new in names.items()})
    return "; ".join([*lines, str(renamed)]), torch.float32


def _rounds(program: str) -> bool:
    return any(output.form == "int8" for output in parse(program).outputs)
