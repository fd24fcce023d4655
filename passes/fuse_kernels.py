"""Run a product, of matrices or of a graph and features, and the steps around it as one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from gqc.joint import JointGraph
from gqc.passes.nodes import aten, by_name, call, drop_unused, example, half, is_size, is_tensor, pick
from gqc.passes.primitive import ops
from gqc.passes.product_fusion import MOST_CONTRACTED, ProductFusion
from gqc.passes.report import FUSED, UNFUSED, Report
from gqc.passes.saved_plan import MASK_SHAPE, hand_on
from gqc.policy import Policy

GEMM, EPILOGUE, READS_FLOATS = ops.qgemm.default, ops.qgemm_epilogue.default, ops.quantize_qgemm.default
GIVES_INT8, QUANTIZE = ops.qgemm_int8.default, ops.quantize.default
SPMM, INT8_SPMM = ops.spmm.default, (ops.qspmm.default, ops.qspmm_int4.default)
RELU, MASK, CHOOSE = aten.relu.default, aten.le.Scalar, aten.where.ScalarSelf
MUL, DIV = aten.mul.Tensor, aten.div.Tensor

LEFT_ALONE = ("cpu",)
"""Kinds of devices whose products are not fused."""

_ROUNDINGS = (QUANTIZE, ops.quantize_int4.default)


def fuse_kernels(joint: JointGraph, policy: Policy) -> Report:
    """Let int8 matrix products quantize what they read, finish what they compute and write it in int8, and sums over
    neighbours scale their rows.

    On GPUs: on the CPU :func:`fuse_pointwise` and :func:`fuse_products` do it with programs, which hold any chain.

    Requires: the int8 copies as :func:`share_quantized` leaves them; :func:`save_masks` before it (order only), whose
        mask of a ReLU is then one bit an element.
    Does: in this order, each where nothing else reads the float matrix between,

        - factors of the rows of an SPMM's result, as a mean over neighbours divides by degrees, in full precision and
          quantized: part of the SPMM, which also gives the absmax for a ``quantize`` that follows;
        - row scale and ReLU after a product: part of it, which also gives the absmax for a ``quantize`` that follows;
          the backward of the ReLU reads bits;
        - a ``quantize`` of its result: the product is computed twice, first for its absmax, then in int8;
        - a ``quantize`` of its left operand: done while the product reads the floats; the other readers of the int8
          copy read the one that it stores.

    Ensures: every value bit for bit; so a product in bfloat16 or float16 keeps its row scale apart, before which it is
        rounded. Nothing moves across an in-place update.
    """
    report = Report("fuse_kernels")
    if joint.device.type in LEFT_ALONE:
        return report
    fusion = _Fusion(joint, report)
    for node in [n for n in joint.graph.nodes if n.target is SPMM or n.target in INT8_SPMM]:
        fusion.scale_rows(node)
    for node in _products(joint):
        fusion.finish(node)
    for node in _products(joint):
        fusion.write_int8(node)
    for node in joint.graph.find_nodes(op="call_function", target=QUANTIZE, sort=True):
        fusion.read_floats(node)
    fusion.sort_decisions()
    return report


def _products(joint: JointGraph) -> list[fx.Node]:
    return [n for n in joint.graph.nodes if n.target in (GEMM, EPILOGUE)]


@dataclass
class _Fusion(ProductFusion):
    def finish(self, product: fx.Node) -> None:
        """Take row scale and ReLU into a product."""
        value, row_scale, relu, taken = pick(product, 0), None, False, []
        if (step := _only_reader(value)) is not None and (factors := _row_factors(step, value)) is not None:
            if _dtype(product) is not torch.float32:
                why = f"its row factors multiply the product after it is rounded to {_name(_dtype(product))}"
                self.say(product, UNFUSED, why)
            else:
                value, row_scale = step, factors
                taken.append(f"row factors {factors.name}")
        if (step := _only_reader(value)) is not None and step.target is RELU:
            value, relu = step, True
            taken.append(f"ReLU {step.name}")
        if not taken or self.updates_between(product, value):
            return
        given = by_name(product)
        with self.joint.graph.inserting_before(value):
            row = None if row_scale is None else _vector(row_scale)
            operands = [given[name] for name in ("a", "a_scale", "b", "b_scale", "trans_a", "trans_b", "bias")]
            fused = self._fused(EPILOGUE, (*operands, row, relu, given["dtype"]), product)
        out, absmax = pick(fused, 0, f"{value.name}_out"), pick(fused, 1, f"{value.name}_absmax")
        if relu:
            positive = pick(fused, 2, f"{value.name}_positive")
            positive.meta[MASK_SHAPE] = tuple(value.meta["val"].shape)
            self._choose_by_bits(value, positive)
        for reader in list(value.users):
            if reader.target is QUANTIZE and reader.args[1] is None:
                reader.update_arg(1, absmax)
        value.replace_all_uses_with(out)
        self.say(fused, FUSED, f"computes {' and '.join(taken)} before it writes its result")
        drop_unused(self.joint.graph)

    def _choose_by_bits(self, value: fx.Node, positive: fx.Node) -> None:
        """Let the backward of a ReLU read the bits that the product gives beside its result."""
        for mask in [u for u in value.users if u.target is MASK and u.args[1] == 0]:
            for choice in [u for u in mask.users if u.target is CHOOSE and u.args[:2] == (mask, 0.0)]:
                gradient = choice.args[2]
                same = is_tensor(gradient) and gradient.meta["val"].dtype == choice.meta["val"].dtype  # type: ignore[union-attr]
                if not same or gradient.meta["val"].dim() != 2:  # type: ignore[union-attr]
                    continue
                with self.joint.graph.inserting_before(choice):
                    chosen = call(ops.relu_backward.default, (gradient, positive), choice, f"{choice.name}_gqc")
                choice.replace_all_uses_with(chosen)

    def write_int8(self, product: fx.Node) -> None:
        """Take the ``quantize`` of a product's result into the product."""
        quantize = _only_reader(pick(product, 0))
        if quantize is None or quantize.target is not QUANTIZE:
            return
        given, rounding = by_name(product), by_name(quantize)
        absmax = rounding["absmax"]
        if absmax is not None and absmax is not pick(product, 1):
            return self.say(product, UNFUSED, f"its int8 copy has its scale from {absmax.name}")
        contracted = example(given["a"].meta["val"].shape[0 if given["trans_a"] else 1])
        if contracted > MOST_CONTRACTED:
            why = (
                f"a second product over {contracted} indices would take longer than writing floats for {quantize.name}"
            )
            return self.say(product, UNFUSED, why)
        if self.updates_between(product, quantize):
            return None
        with self.joint.graph.inserting_before(quantize):
            operands = [given[name] for name in ("a", "a_scale", "b", "b_scale", "trans_a", "trans_b", "bias")]
            after = (given.get("row_scale"), given.get("relu", False))
            drawn = [rounding[name] for name in ("seed", "node", "bits", "stochastic")]
            fused = self._fused(GIVES_INT8, (*operands, *after, *drawn, given["dtype"]), product)
        if given.get("relu"):
            positive = pick(fused, 2, f"{product.name}_positive")
            hand_on(pick(product, 2), positive)
            pick(product, 2).replace_all_uses_with(positive)
        pick(quantize, 0).replace_all_uses_with(pick(fused, 0, f"{product.name}_int8"))
        pick(quantize, 1).replace_all_uses_with(pick(fused, 1, f"{product.name}_scale"))
        self.say(fused, FUSED, f"writes int8 instead of floats for {quantize.name}, from a second product")
        drop_unused(self.joint.graph)
        return None

    def read_floats(self, quantize: fx.Node) -> None:
        """Take a ``quantize`` into the first product that reads its int8 copy as left operand."""
        int8, scale = pick(quantize, 0), pick(quantize, 1)
        readers = sorted({u for n in (int8, scale) for u in n.users if u.op != "output"})
        product = next((r for r in readers if self._reads_rows(r, int8, scale)), None)
        if product is None or half(product) != half(quantize):
            return
        given, rounding = by_name(product), by_name(quantize)
        first = readers[0]
        needed = [n for n in product.all_input_nodes if n not in (int8, scale)]
        if any(n >= first for n in needed):
            self.say(product, UNFUSED, f"{first.name} reads the int8 copy of {quantize.args[0]} before it")
            return
        if self.updates_between(quantize, first):
            return
        with self.joint.graph.inserting_before(first):
            drawn = [rounding[name] for name in ("x", "absmax", "seed", "node", "bits", "stochastic")]
            after = (given["bias"], given.get("row_scale"), given.get("relu", False), given["dtype"])
            fused = self._fused(READS_FLOATS, (*drawn, given["b"], given["b_scale"], given["trans_b"], *after), product)
        results = {0: 0, 1: 1, 2: 4}
        for user in list(product.users):
            result = pick(fused, results[user.args[1]], user.name)  # type: ignore[index]
            hand_on(user, result)
            user.replace_all_uses_with(result)
        int8.replace_all_uses_with(pick(fused, 2, int8.name))
        scale.replace_all_uses_with(pick(fused, 3, scale.name))
        self.say(fused, FUSED, f"quantizes {rounding['x'].name} while it reads it and stores the int8 copy")
        drop_unused(self.joint.graph)

    def scale_rows(self, spmm: fx.Node) -> None:
        """Take the factors of the rows of an SPMM's result into the SPMM."""
        value = spmm if spmm.target is SPMM else pick(spmm, 0)
        step = _only_reader(value)
        factors = None if step is None else _row_factors(step, value, divides=True)
        if step is None or factors is None or by_name(spmm)["rows"] is not None:
            return
        if value.meta["val"].dtype is torch.float64:
            return self.say(spmm, UNFUSED, "its row factors are float64, which the kernel does not read")
        if self.updates_between(spmm, step):
            return None
        given, divide = by_name(spmm), step.target is DIV
        with self.joint.graph.inserting_before(step):
            given.update(rows=_float32(_vector(factors), value), divide=divide)
            fused = result = self._fused(spmm.target, tuple(given.values()), spmm)
        if spmm.target is not SPMM:
            result, absmax = pick(fused, 0, f"{step.name}_out"), pick(fused, 1, f"{step.name}_absmax")
            for reader in [u for u in step.users if u.target in _ROUNDINGS and u.args[1] is None]:
                reader.update_arg(1, absmax)
        step.replace_all_uses_with(result)
        self.say(fused, FUSED, f"{'divides' if divide else 'multiplies'} rows by {factors.name} ({step.name})")
        drop_unused(self.joint.graph)
        return None

    def _reads_rows(self, reader: fx.Node, int8: fx.Node, scale: fx.Node) -> bool:
        if reader.target not in (GEMM, EPILOGUE):
            return False
        given = by_name(reader)
        others = [n for name, n in given.items() if name not in ("a", "a_scale")]
        return given["a"] is int8 and given["a_scale"] is scale and not given["trans_a"] and int8 not in others

    def _fused(self, target: Any, arguments: tuple[Any, ...], product: fx.Node) -> fx.Node:
        name = product.name.removesuffix("_int8").removesuffix("_fused")
        return self.fused(target, arguments, product, f"{name}_fused")


def _only_reader(value: fx.Node) -> fx.Node | None:
    """What alone reads the values of a tensor."""
    readers = [user for user in value.users if not is_size(user)]
    return readers[0] if len(readers) == 1 and readers[0].op != "output" else None


def _row_factors(step: fx.Node, value: fx.Node, divides: bool = False) -> fx.Node | None:
    """The factors, ``[M]`` or ``[M, 1, ...]``, by which a step multiplies or divides the rows of a tensor."""
    if step.target not in ((MUL, DIV) if divides else (MUL,)) or step.meta["val"].dtype != value.meta["val"].dtype:
        return None
    factors = step.args[1] if step.args[0] is value else step.args[0]
    if factors is value or not is_tensor(factors) or (step.target is DIV and step.args[0] is not value):
        return None
    given, sizes = factors.meta["val"], value.meta["val"].shape  # type: ignore[union-attr]
    column = given.dim() == len(sizes) and all(statically_known_true(size == 1) for size in given.shape[1:])
    rows = column and statically_known_true(given.shape[0] == sizes[0])
    return factors if rows and given.is_floating_point() else None  # type: ignore[return-value]


def _vector(column: fx.Node) -> fx.Node:
    rank = column.meta["val"].dim()
    if rank == 1:
        return column
    target, axes = (aten.squeeze.dim, 1) if rank == 2 else (aten.squeeze.dims, list(range(1, rank)))
    return call(target, (column, axes), column, f"{column.name}_row")


def _float32(factors: fx.Node, like: fx.Node) -> fx.Node:
    """Factors in the dtype in which a step computes with ``like``, as float32."""
    for dtype in (like.meta["val"].dtype, torch.float32):
        if factors.meta["val"].dtype is not dtype:
            factors = call(aten._to_copy.default, (factors,), factors, f"{factors.name}_{_name(dtype)}", dtype=dtype)
    return factors


def _dtype(product: fx.Node) -> torch.dtype:
    value: Tensor = product.meta["val"][0]
    return value.dtype


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
