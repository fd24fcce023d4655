"""Store in three bytes an element what only products and sums in full precision read."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace
from math import gcd

import torch
from torch import Tensor, fx

from gqc.cost import machine
from gqc.joint import JointGraph
from gqc.passes.multiply_floats import precision
from gqc.passes.nodes import by_name, example, example_numel, half, origin, pick
from gqc.passes.primitive import ops
from gqc.passes.product_fusion import ProductFusion
from gqc.passes.report import FUSED, Decision, Report
from gqc.passes.saved_plan import FLOAT24, PLAN, SavedPlan
from gqc.passes.saved_values import tangent_dependent
from gqc.policy import Policy
from gqc.runtime.float24 import LINE, bytes_of_row
from gqc.runtime.pointwise.code import MOST_SUMMED
from gqc.runtime.pointwise.program import Output, parse
from gqc.runtime.relation import SRC

MM, MM_PROGRAM = ops.mm.default, ops.mm_pointwise.default
SPMM, SPMM_PROGRAM = ops.spmm.default, ops.spmm_pointwise.default
GEMM_PROGRAM, READS_FLOATS = ops.qgemm_pointwise.default, ops.quantize_qgemm_pointwise.default
PROGRAMS = {
    ops.pointwise.default: 0,
    MM_PROGRAM: 0,
    SPMM_PROGRAM: 0,
    GEMM_PROGRAM: 0,
    ops.qspmm_pointwise.default: 0,
    READS_FLOATS: 2,
}
"""What runs programs, with the number of results in front of the program's."""

FEWEST_ELEMENTS = 1 << 20
"""Of a matrix: a smaller one lies in the caches, where three bytes take no less time than four."""

BF16X3 = "bf16x3"


def store_float24(joint: JointGraph, policy: Policy) -> Report:
    """Let programs write float matrices in float24, 16 bits of precision in three bytes, for products and sums.

    On the CPU, where memory is what large matrices wait for, and a row that is read at random costs a time for each
    cache line.

    Requires: :func:`fuse_products`, :func:`pair_products` before it (order only): the programs are then as they run.
    Does: a float32 matrix that a program or a product writes is float24 if only sums over neighbours that copy its
        rows, and products of its rows with a small matrix or of its columns, read it, all of them in bf16x3, and that
        is estimated to take less time (:meth:`gqc.cost.CostModel.float24`). Not with ``Policy.float_storage="fp32"`` or
        ``float_products="fp32"``.
    Ensures: values within 2^-16 of themselves, of which bf16x3 may leave out 2^-15 of each product.
    """
    report = Report("store_float24")
    if joint.device.type != "cpu" or policy.float_storage != "bf16" or policy.float_products != BF16X3:
        return report
    _Storage(joint, report, policy).run()
    return report


class _Storage(ProductFusion):
    def __init__(self, joint: JointGraph, report: Report, policy: Policy) -> None:
        super().__init__(joint, report)
        self.policy, self.costs = policy, policy.costs or machine.costs()
        self.late = tangent_dependent(joint)

    def run(self) -> None:
        """Narrow what pays, in the order of the graph."""
        for node in list(self.joint.graph.nodes):
            is_product = node.target is MM and not by_name(node)["trans_a"]
            if (not is_product and _place(node) is None) or not _fits(node):
                continue
            readers = list(node.users)
            elements = example_numel(node.meta["val"])
            products = sum(reader.target in (MM, MM_PROGRAM) for reader in readers)
            saved = self.costs.float24(elements, products, _lines(node))
            if saved > 0 and all(_can_read(reader, node, self.policy) for reader in readers):
                self._narrow(self._in_program(node) if is_product else node, readers, saved)

    def _in_program(self, product: fx.Node) -> fx.Node:
        """Let a program write a product, which then is a result like others."""
        given = by_name(product)
        operands = given["a"], given["b"], given["trans_b"], [], None, "return float32(x0)"
        with self.joint.graph.inserting_before(product):
            last = None, None, None, False, given["precision"]
            program = self.fused(MM_PROGRAM, (*operands, *last), product, f"{product.name}_program")
        value = pick(program, 0, f"{product.name}_out")
        product.replace_all_uses_with(value)
        self.joint.graph.erase_node(product)
        return value

    def _narrow(self, node: fx.Node, readers: list[fx.Node], saved: float) -> None:
        """Let a program give what ``node`` picks in float24."""
        size = 3 * example_numel(node.meta["val"])
        reason = "three bytes an element, as products in bf16x3 read it"
        node.meta[PLAN] = SavedPlan.of(node, size, FLOAT24, reason, self.late)
        program: fx.Node = node.args[0]  # type: ignore[assignment]
        read, at = parse(by_name(program)["program"]), _place(node)
        outputs = tuple(Output("float24", o.value) if i == at else o for i, o in enumerate(read.outputs))
        names = [argument.name for argument in program.target._schema.arguments]  # type: ignore[union-attr]
        program.update_arg(names.index("program"), str(replace(read, outputs=outputs)))
        rows, width = node.meta["val"].shape
        node.meta["val"] = node.meta["val"].new_empty((rows, 3 * width), dtype=torch.uint8)
        results = list(program.meta["val"])
        results[node.args[1]] = node.meta["val"]  # type: ignore[index]
        program.meta["val"] = results
        who = f"only {', '.join(r.name for r in readers)} read{'s' if len(readers) == 1 else ''}"
        told = f"stores {node.name} in float24, three bytes an element, which {who}: that saves {saved:.3g} us"
        self.report.decisions.append(Decision(program.name, origin(node).module, "tensor", half(program), FUSED, told))


def _place(node: fx.Node) -> int | None:
    """Which output of a program a node picks, if it is one in float32."""
    maker, at = node.args if node.target is operator.getitem else (None, None)
    if not isinstance(maker, fx.Node) or maker.target not in PROGRAMS:
        return None
    outputs = parse(by_name(maker)["program"]).outputs
    place = at - PROGRAMS[maker.target]  # type: ignore[operator]
    for i, output in enumerate(outputs):
        if place == 0:
            return i if output.form == "float32" and output.axis is None else None
        place -= 2 if output.form == "int8" else 1
    return None


def _fits(node: fx.Node) -> bool:
    value: Tensor = node.meta["val"]
    if value.dim() != 2 or not isinstance(value.shape[1], int) or not 0 < value.shape[1] <= MOST_SUMMED:
        return False
    # With padding, narrow rows would need more room than as floats.
    shrinks = bytes_of_row(value.shape[1]) <= value.shape[1] * torch.float32.itemsize
    return bool(node.users) and shrinks and example_numel(value) >= FEWEST_ELEMENTS


def _can_read(reader: fx.Node, value: fx.Node, policy: Policy) -> bool:
    """Whether all that a node reads of a matrix is rows that it copies or multiplies, or columns that it multiplies."""
    if reader.target not in (MM, MM_PROGRAM, SPMM, SPMM_PROGRAM):
        return False
    given = by_name(reader)
    if reader.target in (SPMM, SPMM_PROGRAM):
        names = ("u",) if given["op"] == "copy_lhs" and precision(policy, reader) == BF16X3 else ()
    else:
        contracts_rows = given.get("trans_a") and not given["trans_b"]
        names = (("a", "b") if contracts_rows else ("a", "a2")) if given["precision"] == BF16X3 else ()
    read = [given.get(name) for name in names]
    return read.count(value) == 1 and value not in _operands(given, names)


def _operands(given: dict[str, object], without: tuple[str, ...]) -> Iterator[object]:
    for name, operand in given.items():
        if name not in without:
            yield from operand if isinstance(operand, list | tuple) else (operand,)


def _lines(node: fx.Node) -> float:
    """How many cache lines fewer the sums over neighbours read that copy rows of a matrix."""
    row = node.meta["val"].shape[1] * torch.float32.itemsize
    # A row of floats may start anywhere in a line that is a multiple of both lengths' common divisor.
    fewer = (row - gcd(row, LINE)) / LINE + 1 - bytes_of_row(node.meta["val"].shape[1]) / LINE
    sums = [r for r in node.users if r.target in (SPMM, SPMM_PROGRAM)]
    return sum(fewer * example(by_name(r)["g"][SRC].meta["val"].shape[0]) for r in sums)
