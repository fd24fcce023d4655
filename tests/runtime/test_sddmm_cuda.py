"""The CUDA form of SDDMM beside the CPU's: every way of reading a row, on aligned and unaligned memory."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from gqc.runtime import ops  # noqa: F401  registers torch.ops.gqc
from tests.runtime.backends import CUDA, on_backend
from tests.runtime.graph_cases import assert_near, features, graph, quantized

gqc = torch.ops.gqc
Shape = tuple[int, ...]
SHAPES = [(1,), (3,), (7,), (16,), (33,), (64,), (100,), (128,), (200,), (513,), (4, 8), (8, 16), (3, 5), (8, 1)]
TYPES = [
    *(("float", "float"), ("int8", "int8"), ("int8", "float"), ("float", "int8")),
    *(("int4", "int4"), ("int4", "float"), ("float", "int4")),
]


class Operand(NamedTuple):
    values: Tensor
    scale: Tensor | None
    packed_features: list[int] | None


def moved(x: Tensor) -> Tensor:
    """The same tensor one element further, where no wide access is aligned."""
    memory = x.new_empty(x.numel() + 1)
    memory[1:] = x.flatten()
    return memory[1:].view(x.shape)


def operand(g: list[Tensor], kind: str, target: str, shape: Shape, aligned: bool) -> Operand:
    if kind == "float":
        x, scale, packed = features(g, target, shape), None, None
    elif kind == "int8":
        (x, scale), packed = quantized(g, target, shape), None
    else:
        (x, scale), packed = gqc.quantize_int4(features(g, target, shape), None, None, 0, 4, False), list(shape)
    return Operand(x if aligned else moved(x), scale, packed)


def sddmm(g: list[Tensor], op: str, lhs: Operand, rhs: Operand, targets: tuple[str, str]) -> Tensor:
    if lhs.packed_features or rhs.packed_features:
        return gqc.qsddmm_int4(g, op, *lhs, *rhs, *targets, torch.float32)
    if lhs.scale is None and rhs.scale is None:
        return gqc.sddmm(g, op, lhs.values, rhs.values, *targets)
    return gqc.qsddmm(g, op, *lhs[:2], *rhs[:2], *targets, torch.float32)


def assert_equals_cpu(g: list[Tensor], types: tuple[str, str], shapes: tuple[Shape, Shape], aligned: bool) -> None:
    for op in ("dot", "add", "sub", "mul", "div"):
        for targets in (("u", "v"), ("v", "e")):
            lhs, rhs = (operand(g, *x, aligned) for x in zip(types, targets, shapes, strict=True))
            want = sddmm(g, op, lhs, rhs, targets)
            with on_backend(CUDA):
                got = sddmm(g, op, lhs, rhs, targets)
            if op == "dot" and "float" in types:
                assert_near(got, want.double())
            else:  # the bits, except those of a NaN
                torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("types", TYPES, ids="-".join)
def test_equals_cpu_at_every_width(types: tuple[str, str], aligned: bool) -> None:
    for shape, index in zip(SHAPES, (torch.int32, torch.int64) * len(SHAPES), strict=False):
        assert_equals_cpu(graph("bipartite", index), types, (shape, shape), aligned)


@pytest.mark.parametrize("types", TYPES, ids="-".join)
def test_equals_cpu_where_runs_of_features_repeat(types: tuple[str, str]) -> None:
    """Starts of runs with a stride, with a stride of 0 and without one."""
    for shapes in [((2, 1, 3, 8), (1, 5, 3, 8)), ((1, 8), (4, 8)), ((3, 2, 4), (3, 1, 4))]:
        assert_equals_cpu(graph("random"), types, shapes, aligned=True)


def test_long_rows_of_int4_stay_exact() -> None:
    width, g = 140_003, graph("single")
    x = Operand(torch.full((1, (width + 1) // 2), 0x99, dtype=torch.uint8), torch.ones(()), [width])  # -7 everywhere
    with on_backend(CUDA):
        assert sddmm(g, "dot", x, x, ("u", "v")).item() == float(torch.tensor(49 * width).float())
