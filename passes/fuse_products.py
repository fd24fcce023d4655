"""Run a pointwise program on the result of a product while it is in the cache."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from gqc.cost import CostModel, Storage, machine
from gqc.joint import JointGraph
from gqc.passes.estimate import second_look
from gqc.passes.nodes import (
    aten,
    by_name,
    call,
    drop_unused,
    example,
    needed_for,
    pick,
)
from gqc.passes.pointwise_groups import sides
from gqc.passes.pointwise_steps import FLAT_VIEWS, Size, is_same_size
from gqc.passes.primitive import ops
from gqc.passes.product_fusion import MOST_CONTRACTED, MOST_CONTRACTED_FLOATS, ProductFusion
from gqc.passes.report import FUSED, UNFUSED, Report
from gqc.passes.saved_plan import hand_on
from gqc.passes.schedule import sort
from gqc.policy import Policy
from gqc.runtime.pointwise.program import Output, parse

GEMM, QSPMM, SPMM = ops.qgemm.default, ops.qspmm.default, ops.spmm.default
MM, MM_PROGRAM = ops.mm.default, ops.mm_pointwise.default
PROGRAM, QUANTIZE = ops.pointwise.default, ops.quantize.default
GEMM_PROGRAM, READS_FLOATS = ops.qgemm_pointwise.default, ops.quantize_qgemm_pointwise.default
SPMM_PROGRAMS = {QSPMM: ops.qspmm_pointwise.default, SPMM: ops.spmm_pointwise.default}

_OPERANDS = {QSPMM: ("g", "op", "u", "u_scale", "e", "e_scale", "dtype"), SPMM: ("g", "op", "u", "e")}
_SUMS = ("copy_lhs", "mul")
_FORMS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def fuse_products(joint: JointGraph, policy: Policy) -> Report:
    """Let products of GEMM and SPMM compute what reads their result while it is in the cache.

    On the CPU, where to write a float matrix and read it costs more than the product.

    Requires: :func:`fuse_pointwise` before it (order only), whose programs it takes.
    Does: in this order,

        - a program that reads the result of a GEMM or SPMM becomes part of it, with every ``quantize`` of a result of
          a GEMM. Only what others read is written. For int8 results the GEMM is computed twice, first for their
          absmax, or stores in bfloat16, whose rounding is finer than that to int8, what a ``quantize`` then reads,
          whichever takes less time (:meth:`gqc.cost.CostModel.storage`). Sums over neighbours are not gathered twice:
          what only a ``quantize`` reads of them lies in bfloat16. With ``Policy.float_storage="fp32"`` such sums lie
          in float32, and a GEMM is computed twice;
        - a ``quantize`` of the left operand of a GEMM is done while the product reads the floats; the other readers of
          the int8 copy read the one that it stores.

    Ensures: every value bit for bit, but for what is stored in bfloat16 and for the order in which sums over a first
        axis are added up. Nothing moves across an in-place update, or from one side of the cut between forward and
        backward to the other.
    """
    report = Report("fuse_products")
    if joint.device.type != "cpu":
        return report
    narrows = policy.float_storage == "bf16"
    fusion = _Fusion(joint, report, sides(joint), narrows, policy.costs or machine.costs())
    others = [node for target in (MM, QSPMM, SPMM) for node in _calls(joint, target)]
    for node in (*sorted(_calls(joint, GEMM), key=_rank), *others):
        fusion.finish(node)
    for node in _calls(joint, QUANTIZE):
        fusion.read_floats(node)
    drop_unused(joint.graph)
    fusion.sort_decisions()
    return report


def _calls(joint: JointGraph, target: Any) -> list[fx.Node]:
    return list(joint.graph.find_nodes(op="call_function", target=target, sort=True))


@dataclass
class _Result:
    """The result of a product and what reads it.

    Attributes:
        product: the GEMM or SPMM.
        value: its result.
        absmax: the node that picks the absmax of the result, if there is one.
        program: a program that reads the value, or a view of it.
        viewed: what the program reads: the value or that view.
        quantized: the calls that make int8 copies of the value.
        others: what else reads the value.
        seed: of the program and the int8 copies, if they draw random numbers.
    """

    product: fx.Node
    value: fx.Node
    absmax: fx.Node | None
    program: fx.Node | None
    viewed: fx.Node
    quantized: list[fx.Node]
    others: list[fx.Node]
    seed: fx.Node | None

    @property
    def is_gemm(self) -> bool:
        return self.product.target in (GEMM, MM)


@dataclass
class _Fusion(ProductFusion):
    sides: dict[fx.Node, bool]
    narrows: bool
    costs: CostModel

    # ---- what reads a product

    def finish(self, product: fx.Node) -> None:
        """Take a program and quantizes into a product."""
        if not _can_run_programs(product):
            return
        result = self._read(product)
        if result.program is None and (result.others or len(result.quantized) != 1):
            return
        if result.program is None and not result.is_gemm:
            return self._store_bfloat16(result)
        self._fuse(result)

    def _read(self, product: fx.Node) -> _Result:
        picks = {user.args[1]: user for user in product.users} if product.target not in (SPMM, MM) else {}
        value = product if product.target in (SPMM, MM) else picks.get(0) or pick(product, 0)
        absmax = picks.get(1)
        quantized = [n for n in value.users if self._copies(n, value, absmax)]
        program, viewed = self._program(product, value)
        seeds = [by_name(n)["seed"] for n in ([] if program is None else [program]) + quantized]
        seed = next((n for n in seeds if n is not None), None)
        quantized = [n for n in quantized if by_name(n)["seed"] in (None, seed)]
        reading = {*quantized, program if viewed is value else viewed}
        others = [n for n in value.users if n not in reading and not (n.target in FLAT_VIEWS and not n.users)]
        if viewed is not value and set(viewed.users) != {program}:
            others.append(viewed)
        return _Result(product, value, absmax, program, viewed, quantized, others, seed)

    def _copies(self, node: fx.Node, value: fx.Node, absmax: fx.Node | None) -> bool:
        if node.target is not QUANTIZE or node.args[0] is not value or not self._together(node, value):
            return False
        return by_name(node)["absmax"] in (None, absmax)

    def _program(self, product: fx.Node, value: fx.Node) -> tuple[fx.Node | None, fx.Node]:
        """The first program that can run with a product, and what it reads."""
        views = [n for n in value.users if n.target in FLAT_VIEWS and _same_rows(n, value)]
        for viewed in (value, *views):
            for program in (n for n in viewed.users if n.target is PROGRAM):
                inputs = by_name(program)["inputs"]
                others = [n for n in program.all_input_nodes if n is not viewed]
                if inputs.count(viewed) != 1 or not self._together(product, program):
                    continue
                if _iterates_over(viewed, program) and product not in needed_for(others):
                    return program, viewed
        return None, value

    def _updates_after(self, product: fx.Node, result: _Result) -> bool:
        """Whether the graph updates anything in place before what is to run with a product."""
        last = max([product, *result.quantized, *([] if result.program is None else [result.program])])
        return self.updates_between(product, last)

    # ---- fusing

    def _fuse(self, result: _Result) -> None:
        """Compute what reads a product with it, unless that takes a second product that is too long."""
        program, product = result.program, result.product
        text, inputs = ("return", []) if program is None else _first_input(program, result.viewed)
        base = "x0"
        if result.is_gemm and by_name(product).get("bias") is not None:
            text, inputs, base = self._with_bias(result, text, inputs)
        whole = _Text(text)
        uses: dict[fx.Node, Any] = {}
        if program is not None:
            uses = {user: user.args[1] for user in program.users}
        copies = {n: whole.add_int8(base, by_name(n)) for n in result.quantized if result.is_gemm}
        times = self._times(result, whole, inputs)
        if times is None or self._updates_after(product, result):
            return
        for copy, at in copies.items():
            uses |= {pick(copy, part): at + part for part in (0, 1)}
        kept = None
        if result.others or (result.quantized and not result.is_gemm):
            kept = whole.add(_FORMS[result.value.meta["val"].dtype], base)
        largest = None
        if result.absmax is not None and set(result.absmax.users) - set(copies):
            largest = whole.add("absmax", base)
        rounded: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        if not result.is_gemm or (self.narrows and times.bfloat16 < times.again):
            rounded = whole.without_int8("bfloat16" if self.narrows else "float32")
        draws = "keep(" in str(whole) or any(o.parameters[2:] == (1,) for o in whole.outputs)
        fused = self._call(result, str(whole), inputs, result.seed if draws else None)
        for user, at in uses.items():
            if at in rounded or at - 1 in rounded:
                continue
            self._replace(user, fused, whole.place[at])
        for at, (floats_at, absmax_at, rounding) in rounded.items():
            self._quantize(fused, result, at, floats_at, absmax_at, rounding, uses)
        if kept is not None:
            self._replace(result.value, fused, whole.place[kept])
        if largest is not None:
            self._replace(result.absmax, fused, whole.place[largest])  # type: ignore[arg-type]
        self.say(fused, FUSED, _reason(whole, result, times if rounded else None))
        sort(self.joint)
        drop_unused(self.joint.graph)

    def _call(self, result: _Result, text: str, inputs: list[fx.Node], seed: fx.Node | None) -> fx.Node:
        product, given = result.product, by_name(result.product)
        last = result.product if result.program is None else result.program
        program = (inputs, seed, text, None if result.viewed is result.value else _sizes(result.viewed))
        with self.joint.graph.inserting_before(last.next):
            if product.target is MM:
                operands = given["a"], given["b"], given["trans_b"]
                second = None, None, False
                return self._fused(MM_PROGRAM, (*operands, *program, *second, given["precision"]), product)
            if result.is_gemm:
                operands = [given[name] for name in ("a", "a_scale", "b", "b_scale", "trans_b")]
                dtype = given["dtype"] if given["bias"] is None else torch.float32
                return self._fused(GEMM_PROGRAM, (*operands, dtype, *program), product)
            operands = [given[name] for name in _OPERANDS[product.target]]  # type: ignore[index]
            return self._fused(SPMM_PROGRAMS[product.target], (*operands, *program), product)  # type: ignore[index]

    def _with_bias(self, result: _Result, text: str, inputs: list[fx.Node]) -> tuple[str, list[fx.Node], str]:
        bias: fx.Node = by_name(result.product)["bias"]
        if result.viewed is not result.value:
            with self.joint.graph.inserting_before(result.product):
                bias = call(aten.reshape.default, (bias, _sizes(result.viewed)[1:]), bias, f"{bias.name}_view")
        return _biased(result.product, text, [*inputs, bias])

    def _replace(self, old: fx.Node, fused: fx.Node, at: int) -> None:
        """Let the readers of a node read a result of a fused product, in the shape that the node has."""
        self._stand_in(old, pick(fused, at, old.name))

    def _stand_in(self, old: fx.Node, new: fx.Node) -> None:
        hand_on(old, new)
        shape = tuple(old.meta["val"].shape)
        if not is_same_size(tuple(new.meta["val"].shape), shape):
            with self.joint.graph.inserting_after(new):
                new = call(aten.reshape.default, (new, _sizes(old)), new, f"{old.name}_view")
        old.replace_all_uses_with(new)
        if "desc" in old.meta:
            new.meta["desc"] = old.meta["desc"]

    def _quantize(
        self,
        fused: fx.Node,
        result: _Result,
        at: int,
        floats_at: int,
        absmax_at: int,
        rounding: tuple[int, ...],
        uses: dict[fx.Node, Any],
    ) -> None:
        """Quantize what a program stores as floats where it gave int8."""
        base = f"{result.product.name}_{at}"
        stored = str(fused.meta["val"][floats_at].dtype).removeprefix("torch.")
        floats, largest = pick(fused, floats_at, f"{base}_{stored}"), pick(fused, absmax_at, f"{base}_absmax")
        node, bits, stochastic = rounding
        with self.joint.graph.inserting_after(largest):
            arguments = (floats, largest, result.seed if stochastic else None, node, bits, bool(stochastic))
            copy = call(QUANTIZE, arguments, fused, f"{base}_quantized")
        self.sides[copy] = self.sides[fused]
        for user, place in uses.items():
            if place in (at, at + 1):
                self._stand_in(user, pick(copy, place - at, f"{base}_{('int8', 'scale')[place - at]}"))

    def _store_bfloat16(self, result: _Result) -> None:
        """Store sums that only a ``quantize`` reads in bfloat16."""
        product, given = result.product, by_name(result.product)
        if not self.narrows or product.target is not QSPMM or given["dtype"] is not torch.float32:
            return
        with self.joint.graph.inserting_before(product):
            operands = tuple(torch.bfloat16 if name == "dtype" else argument for name, argument in given.items())
            narrow = self._fused(QSPMM, operands, product, f"{product.name}_bfloat16")
        for at, name in ((0, result.value.name), (1, f"{result.value.name}_absmax")):
            pick(product, at).replace_all_uses_with(pick(narrow, at, f"{name}_bfloat16"))
        self.say(narrow, FUSED, f"stores its sums in bfloat16, as only {result.quantized[0].name} reads them")
        drop_unused(self.joint.graph)

    # ---- what a product reads

    def read_floats(self, quantize: fx.Node) -> None:
        """Take a ``quantize`` into the first GEMM that reads its int8 copy as left operand."""
        rounding = by_name(quantize)
        if rounding["absmax"] is None:  # then it reads the floats twice, and the copy is what the cache holds
            return
        int8, scale = pick(quantize, 0), pick(quantize, 1)
        readers = sorted({u for n in (int8, scale) for u in n.users if u.op != "output"})
        product = next((r for r in readers if _reads_rows(r, int8, scale)), None)
        if product is None or not self._together(quantize, product):
            return
        first = readers[0]
        if any(n >= first for n in product.all_input_nodes if n not in (int8, scale)):
            why = f"{first.name} reads the int8 copy of {rounding['x'].name} before it"
            return self.say(product, UNFUSED, why)
        if self.updates_between(quantize, product):
            return None
        given = by_name(product)
        if product.target is GEMM:
            text, inputs = f"return {_FORMS[given['dtype']]}(x0), absmax(x0)", []
            dtype, size = given["dtype"], None
            if given["bias"] is not None:
                text, inputs, _ = _biased(product, text, [given["bias"]])
                dtype = torch.float32
        else:
            text, inputs, dtype, size = (given[name] for name in ("program", "inputs", "dtype", "size"))
        seed = rounding["seed"] if rounding["seed"] is not None else given.get("seed")
        drawn = [rounding["x"], rounding["absmax"], seed, *(rounding[n] for n in ("node", "bits", "stochastic"))]
        with self.joint.graph.inserting_before(first):
            arguments = (*drawn, given["b"], given["b_scale"], given["trans_b"], dtype, inputs, text, size)
            fused = self._fused(READS_FLOATS, arguments, product)
        for user in list(product.users):
            result = pick(fused, user.args[1] + 2, user.name)  # type: ignore[operator]
            hand_on(user, result)
            user.replace_all_uses_with(result)
        int8.replace_all_uses_with(pick(fused, 0, int8.name))
        scale.replace_all_uses_with(pick(fused, 1, scale.name))
        self.say(fused, FUSED, f"quantizes {rounding['x'].name} while it reads it and stores the int8 copy")
        drop_unused(self.joint.graph)
        return None

    # ---- both

    def _fused(self, target: Any, arguments: tuple[Any, ...], product: fx.Node, name: str | None = None) -> fx.Node:
        fused = self.fused(target, arguments, product, name or f"{product.name.removesuffix('_fused')}_fused")
        self.sides[fused] = self.sides[product]
        return fused

    def _together(self, a: fx.Node, b: fx.Node) -> bool:
        """Whether two nodes run on the same side of the cut between forward and backward."""
        return a in self.sides and b in self.sides and self.sides[a] == self.sides[b]

    def _times(self, result: _Result, whole: _Text, inputs: list[fx.Node]) -> Storage | None:
        """What int8 results of a product take in either storage; ``None`` if neither pays, which is reported."""
        product = result.product
        if not result.is_gemm or not whole.rounds():
            return Storage(0, 0)
        times = self.costs.storage(second_look(product, str(whole), inputs))
        contracted = example(by_name(product)["a"].meta["val"].shape[1])
        most = MOST_CONTRACTED if product.target is GEMM else MOST_CONTRACTED_FLOATS
        if contracted <= most or (self.narrows and times.bfloat16 < times.again):
            return times
        why = f"a second product over {contracted} indices would take longer than writing floats"
        self.say(product, UNFUSED, why)
        return None


class _Text:
    """A program that gets further results.

    Attributes:
        outputs: what it returns.
        place: where each result stands, by where it stood when it was added; an int8 result takes two places.
    """

    def __init__(self, text: str) -> None:
        lines, _, returned = text.rpartition("return")
        program = parse(text) if returned else parse(f"{lines}return absmax(x0)")
        self.lines = [str(instruction) for instruction in program.instructions]
        self.outputs = list(program.outputs) if returned else []
        self.place: dict[int, int] = {at: at for at in range(self._count())}

    def __str__(self) -> str:
        return "; ".join([*self.lines, f"return {', '.join(map(str, self.outputs))}"])

    def _count(self) -> int:
        return sum(2 if output.form == "int8" else 1 for output in self.outputs)

    def add(self, form: str, value: str, parameters: tuple[int, ...] = ()) -> int:
        """Add a result; returns its place."""
        at = self._count()
        self.outputs.append(Output(form, value, None, parameters))
        self.place |= {place: place for place in range(at, self._count())}
        return at

    def add_int8(self, value: str, rounding: dict[str, Any]) -> int:
        """Add the int8 copy of a value as a ``quantize`` makes it; returns the place of its values."""
        return self.add("int8", value, (rounding["node"], rounding["bits"], int(rounding["stochastic"])))

    def rounds(self) -> bool:
        """Whether a result is int8."""
        return any(output.form == "int8" for output in self.outputs)

    def without_int8(self, form: str) -> dict[int, tuple[int, int, tuple[int, ...]]]:
        """Give values in bfloat16 or float32 and their absmax in the place of int8.

        Returns:
            For the place of each int8 result where its values and their absmax are now, and how it is rounded.
        """
        outputs: list[Output] = []
        rounded: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        at = 0
        for output in self.outputs:
            if output.form == "int8":
                value = output.value
                if form == "bfloat16":
                    value = f"narrow{at}"
                    self.lines.append(f"{value} = to_bfloat16({output.value})")
                rounded[at] = (len(outputs), len(outputs) + 1, output.parameters)
                outputs += [Output(form, value), Output("absmax", value)]
                at += 2
            else:
                self.place[at] = len(outputs)
                outputs.append(output)
                at += 1
        self.outputs = outputs
        return rounded


def _can_run_programs(product: fx.Node) -> bool:
    given = by_name(product)
    return not given["trans_a"] if product.target in (GEMM, MM) else given["op"] in _SUMS and given["rows"] is None


def _rank(gemm: fx.Node) -> tuple[bool, bool]:
    """Which of two products takes the program that reads both: it may quantize, and the other one has a bias."""
    return not _can_quantize(gemm), by_name(gemm)["bias"] is not None


def _can_quantize(gemm: fx.Node) -> bool:
    """Whether the left operand of a GEMM is, or will be, quantized with an absmax that is known before."""
    left = by_name(gemm)["a"]
    maker = left.args[0] if left.target is operator.getitem else left
    if maker.target is QUANTIZE:
        return by_name(maker)["absmax"] is not None
    return maker.target is PROGRAM and any(_is_sum(n) for n in by_name(maker)["inputs"])


def _is_sum(node: fx.Node) -> bool:
    return node.target is SPMM or (node.target is operator.getitem and node.args[0].target is QSPMM)  # type: ignore[union-attr]


def _iterates_over(viewed: fx.Node, program: fx.Node) -> bool:
    """Whether a program iterates over the elements of a tensor in the shape that it has."""
    shape: Size = tuple(viewed.meta["val"].shape)
    given = by_name(program)
    shapes = [tuple(x.meta["val"].shape) for x in given["inputs"] if x.meta["val"].dtype is not torch.uint8]
    if any(len(other) > len(shape) for other in shapes):
        return False
    if not all(_fits(a, b) for other in shapes for a, b in zip(reversed(other), reversed(shape), strict=False)):
        return False
    size = given["size"]
    lengths = shape if size is None else tuple(n.meta["val"] if isinstance(n, fx.Node) else n for n in size)
    return is_same_size(lengths, shape)


def _same_rows(view: fx.Node, value: fx.Node) -> bool:
    """Whether a view of a matrix has its rows, in another shape."""
    shapes = view.meta["val"].shape, value.meta["val"].shape
    static = all(isinstance(length, int) for length in shapes[0][1:])
    return static and bool(shapes[0]) and statically_known_true(shapes[0][0] == shapes[1][0])


def _fits(length: int | torch.SymInt, other: int | torch.SymInt) -> bool:
    return statically_known_true(length == 1) or statically_known_true(length == other)


def _reads_rows(reader: fx.Node, int8: fx.Node, scale: fx.Node) -> bool:
    if reader.target not in (GEMM, GEMM_PROGRAM) or (reader.target is GEMM and not _can_run_programs(reader)):
        return False
    given = by_name(reader)
    others = [n for n in reader.all_input_nodes if n is not given["a"]]
    return given["a"] is int8 and given["a_scale"] is scale and int8 not in others


def _first_input(program: fx.Node, value: fx.Node) -> tuple[str, list[fx.Node]]:
    """The text of a program whose input 0 is a tensor, and its other inputs."""
    given = by_name(program)
    inputs: list[fx.Node] = list(given["inputs"])
    at = inputs.index(value)
    names = {f"x{i}": f"x{0 if i == at else i + 1 if i < at else i}" for i in range(len(inputs))}
    return str(parse(given["program"]).renamed(names)), inputs[:at] + inputs[at + 1 :]


def _biased(product: fx.Node, text: str, inputs: list[fx.Node]) -> tuple[str, list[fx.Node], str]:
    """A program behind a GEMM that adds the GEMM's bias, its last input, first, and the name of the sum."""
    dtype = by_name(product)["dtype"]
    lines = [f"biased = add(x0, x{len(inputs)})"]
    if dtype is not torch.float32:
        lines.append(f"rounded = to_{_FORMS[dtype]}(biased)")
    base = lines[-1].partition(" ")[0]
    rest = "return" if text == "return" else str(parse(text).renamed({"x0": base}))
    return "; ".join([*lines, rest]), inputs, base


def _sizes(node: fx.Node) -> list[int]:
    """The shape of a tensor with -1 for what is symbolic."""
    return [length if isinstance(length, int) else -1 for length in node.meta["val"].shape]


def _reason(whole: _Text, result: _Result, stored: Storage | None) -> str:
    """What a fused product does; ``stored`` if it stores floats in the place of int8: what both ways take."""
    steps = [line.split(" = ")[1].partition("(")[0] for line in whole.lines]
    told = [f"computes {', '.join(steps)}" if steps else "computes its int8 copy"]
    if stored is not None:
        forms = {output.form for output in whole.outputs}
        how = f"stores in {'bfloat16' if 'bfloat16' in forms else 'float32'} what only a quantize reads"
        if result.is_gemm:
            how += f", which takes {stored.bfloat16:.3g} us and a second product {stored.again:.3g} us,"
        told.append(how)
    elif whole.rounds():
        told.append("writes int8 from a second product")
    return " and ".join(told) + " while its result is in the cache"
