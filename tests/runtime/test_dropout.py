"""Dropout with counter-based random bits against its reference."""

from __future__ import annotations

import pytest
import torch

import gqc.runtime.ops.dropout  # noqa: F401  registers the ops
from gqc.runtime import native
from gqc.runtime.reference import dropout as reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(0,), (1,), (7,), (8,), (129, 5), (64, 3, 4), (2100, 33)]


def fresh(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(shape).to(dtype), torch.randint(2**62, (2,))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("p", [0.0, 0.3, 0.6, 1.0])
def test_matches_reference(backend, dtype, shape, p):
    x, seed = fresh(shape, dtype)
    grad = torch.randn(shape).to(dtype)
    out, mask = torch.ops.gqc.dropout(x, p, seed, 3)
    back = torch.ops.gqc.dropout_backward(grad, mask, p)
    expected, expected_mask = reference.dropout(x, p, seed, 3)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    assert torch.equal(mask, expected_mask)
    torch.testing.assert_close(back, reference.dropout_backward(grad, mask, p), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [1, 2, 4])
def test_a_tensor_may_start_anywhere(backend, dtype, offset):
    x, seed = torch.randn(3000).to(dtype)[offset:], torch.randint(2**62, (2,))
    out, mask = torch.ops.gqc.dropout(x, 0.4, seed, 3)
    assert torch.equal(out, reference.dropout(x, 0.4, seed, 3)[0])
    assert torch.equal(torch.ops.gqc.dropout_backward(x, mask, 0.4), reference.dropout_backward(x, mask, 0.4))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_keeps_the_mean_and_the_share(p):
    x, seed = torch.ones(200_000), torch.randint(2**62, (2,))
    out, mask = torch.ops.gqc.dropout(x, p, seed, 0)
    share = reference.unpack(mask, x.numel()).float().mean().item()
    assert share == pytest.approx(1 - p, abs=0.01)
    assert out.mean().item() == pytest.approx(1, abs=0.05)


def test_nodes_and_steps_draw_other_numbers():
    x = torch.ones(4096)
    masks = [
        torch.ops.gqc.dropout(x, 0.5, torch.tensor([seed, step]), node)[1]
        for seed, step, node in ((1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1))
    ]
    different = [(a != b).float().mean() for i, a in enumerate(masks) for b in masks[:i]]
    assert min(different) > 0.9


def test_a_dropped_nan_or_inf_stays_visible(backend):
    x = torch.tensor([float("nan"), float("inf")] * 64)
    out, mask = torch.ops.gqc.dropout(x, 0.5, torch.tensor([1, 0]), 0)
    assert not out.isfinite().any()
    grad = torch.full_like(x, float("nan"))
    assert torch.ops.gqc.dropout_backward(grad, mask, 0.5).isnan().all()


def test_threads_agree():
    x, seed = fresh((1000, 333), torch.float32)
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(torch.ops.gqc.dropout(x, 0.5, seed, 1))
    torch.set_num_threads(before)
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_transposed_input():
    x, seed = fresh((12, 20), torch.float32)
    out, _ = torch.ops.gqc.dropout(x.t(), 0.5, seed, 1)
    assert torch.equal(out, reference.dropout(x.t(), 0.5, seed, 1)[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_opcheck(dtype):
    x, seed = fresh((13, 5), dtype)
    torch.library.opcheck(torch.ops.gqc.dropout.default, (x, 0.5, seed, 1))
    mask = torch.ops.gqc.dropout(x, 0.5, seed, 1)[1]
    torch.library.opcheck(torch.ops.gqc.dropout_backward.default, (x, mask, 0.5))


def test_gradient_is_refused():
    x, seed = fresh((4,), torch.float32)
    with pytest.raises(native.KernelError, match="no gradient"):
        torch.ops.gqc.dropout(x.requires_grad_(), 0.5, seed, 0)
