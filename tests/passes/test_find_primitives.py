"""Every GEMM, SPMM, SDDMM and edge softmax is found in forward and backward, whatever lies between."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gqc.passes import find_primitives
from gqc.policy import Policy
from tests.passes.models import MODELS, OnRelation, case


def found(model: nn.Module, **options) -> list[tuple[str, str, str]]:
    report = find_primitives(case(model, **options).joint, Policy())
    return sorted((d.half, d.primitive, d.reason) for d in report.decisions)


FORWARD = {
    "gcn": ["gemm nn", "gemm nn", "spmm copy_lhs", "spmm copy_lhs"],
    "gat": ["edge_softmax edge_softmax"] * 2 + ["gemm nt"] * 2 + ["sddmm add"] * 2 + ["spmm mul"] * 2,
    "dotgat": ["edge_softmax edge_softmax"] * 2 + ["gemm nt"] * 2 + ["sddmm dot"] * 2 + ["spmm mul"] * 2,
    "sage": ["gemm nt"] * 4 + ["spmm copy_lhs"] * 2,
    "pool": ["gemm nt"] * 4 + ["spmm copy_lhs max"] * 2,
    "rgcn": ["gemm nn"] * 4 + ["gemm nt"] * 2 + ["spmm copy_lhs"] * 4,
    "pyg": ["gemm nt"] * 2,
    "mlp": ["gemm nt"] * 3,
}


@pytest.mark.parametrize("name", MODELS)
def test_forward(name):
    assert [f"{kind} {op}" for half, kind, op in found(MODELS[name]()) if half == "forward"] == FORWARD[name]


@pytest.mark.parametrize(("name", "gemms"), [("gcn", 3), ("gat", 3), ("sage", 6), ("rgcn", 9), ("pyg", 3), ("mlp", 5)])
def test_backward_has_both_products_of_every_gemm_but_the_first_layers_input(name, gemms):
    backward = [op for half, kind, op in found(MODELS[name]()) if half == "backward" and kind == "gemm"]
    assert len(backward) == gemms
    assert "tn" in backward


def test_input_that_needs_a_gradient_adds_a_product():
    assert len(found(MODELS["mlp"](), input_needs_grad=True)) == len(found(MODELS["mlp"]())) + 1


class Batched(OnRelation):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 16, 4))

    def run(self, g, x):
        return torch.bmm(x.unsqueeze(0).expand(3, -1, -1), self.weight)


def test_batched_product():
    assert ("forward", "gemm", "bmm") in found(Batched())


class Transposed(OnRelation):
    """All four forms of a GEMM, with copies and permutations between."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))

    def run(self, g, x):
        a, b = x.t().detach().clone(), self.weight.transpose(0, 1).clone()
        return (x @ self.weight, a @ x, x @ b, b @ x.permute(1, 0).t().t())


def test_transposes_and_copies_between():
    forms = [op for half, _, op in found(Transposed()) if half == "forward"]
    assert forms == ["nn", "nt", "tn", "tt"]
