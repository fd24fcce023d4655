"""What a primitive does in numbers, from which a cost model tells its time in full precision and in int8."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import fx

from gqc.cost import CostModel, Estimate, Look, Work
from gqc.passes.int8_form import FORMS
from gqc.passes.nodes import by_name, example, example_numel, source
from gqc.passes.primitive import GEMM, SDDMM, SPMM, TYPED_MM, factors, mark
from gqc.runtime import native
from gqc.runtime.pointwise.program import parse


def estimates(nodes: Sequence[fx.Node], costs: CostModel) -> dict[fx.Node, Estimate]:
    """Times of primitives that have an int8 form, at the sizes of the example call.

    An int8 copy is made once for all of them that read the same tensor, reshaped or transposed, so each is charged with
    a share of its time.
    """
    copies = {node: [source(operand)[0] for operand in _copied(node)] for node in nodes}
    readers = Counter(copy for read in copies.values() for copy in set(read))
    return {
        node: costs.estimate(work(node, tuple((example_numel(c.meta["val"]), readers[c]) for c in set(read))))
        for node, read in copies.items()
    }


def work(node: fx.Node, operands: tuple[tuple[int, int], ...]) -> Work:
    """What a primitive does; ``operands`` as in :class:`gqc.cost.Work`."""
    kind = mark(node).kind  # type: ignore[union-attr]
    read = _copied(node)
    dtype = str(read[0].meta["val"].dtype).removeprefix("torch.")
    if kind == GEMM:
        left, right = factors(node)
        rows, width = (example(n) for n in left.node.meta["val"].shape)
        columns = example_numel(right.node.meta["val"]) // max(rows if left.transposed else width, 1)
        return Work(dtype, 2 * rows * width * columns, torch=True, operands=operands)
    edges = example_numel(node.args[0][1].meta["val"])  # type: ignore[index,union-attr]
    if kind in (SPMM, SDDMM):
        gathered = sum(edges * _row(n) for n in read)
        return Work(dtype, edges=edges * len(read), gathered=gathered, operands=operands)
    assert kind == TYPED_MM  # of a graph: others have no int8 form
    rows, other = read
    product = _row(rows) * (example(other.meta["val"].shape[-1]))
    return Work(dtype, 2 * edges * product, edges=edges, gathered=edges * _row(rows), operands=operands)


def second_look(product: fx.Node, program: str, inputs: Sequence[fx.Node]) -> Look:
    """What a product and a program that gives int8 compute once more; ``inputs`` of the program, the product aside."""
    given = by_name(product)
    rows, contracted = map(example, given["a"].meta["val"].shape)
    elements = rows * (example_numel(given["b"].meta["val"]) // max(contracted, 1))
    precision = given.get("precision", "int8")
    if precision == "bf16x3" and not native.multiplies_bf16x3():
        precision = "fp32"
    parsed = parse(program)
    rounded = [output.value for output in parsed.outputs if output.form == "int8"]
    needed = set(rounded)
    for instruction in reversed(parsed.instructions):
        if instruction.result in needed:
            needed.update(operand for operand in instruction.operands if isinstance(operand, str))
    instructions = sum(instruction.result in needed for instruction in parsed.instructions)
    names = [name for i, name in enumerate(inputs, 1) if f"x{i}" in needed]
    read = sum(example_numel(n.meta["val"]) * n.meta["val"].dtype.itemsize for n in (given["a"], *names))
    return Look(precision, 2 * elements * contracted, elements, len(rounded), instructions, read)


def _copied(node: fx.Node) -> list[fx.Node]:
    return FORMS[node.target].operands(node)  # type: ignore[index]


def _row(node: fx.Node) -> int:
    """Elements of a node's row."""
    value = node.meta["val"]
    return example_numel(value) // max(example(value.shape[0]), 1)
