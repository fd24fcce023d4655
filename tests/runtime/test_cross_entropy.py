"""Cross entropy of selected rows against its reference and torch."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gqc.errors import KernelError
from gqc.runtime import kernels, ops
from gqc.runtime.reference import cross_entropy as reference
from tests.runtime.backends import ISAS, on_backend

gqc = torch.ops.gqc
IGNORED = -100


def selections(count: int) -> dict[str, Tensor | None]:
    mask = torch.rand(count) < 0.5
    return {
        "all": None,
        "mask": mask.nonzero()[:, 0],
        "every row": torch.arange(count),
        "none": torch.empty(0, dtype=torch.int64),
        "repeated": torch.randint(-count, count, (count + 3,)),
        "one": torch.tensor([count - 1]),
    }


def assert_equals_reference(logits: Tensor, labels: Tensor, rows: Tensor | None, reduction: str) -> None:
    got = gqc.cross_entropy(logits, labels, rows, reduction, IGNORED)
    want = reference.cross_entropy(logits, labels, rows, reduction, IGNORED)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)
    grad = torch.randn(got[0].shape)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[logits.dtype]
    options = (got[1], reduction, IGNORED)
    want = reference.cross_entropy_backward(grad, logits, labels, rows, *options)
    scale = max(1.0, *grad.abs().reshape(-1).tolist(), 0.0)
    close = {"rtol": tolerance, "atol": tolerance * scale, "equal_nan": True}
    torch.testing.assert_close(gqc.cross_entropy_backward(grad, logits, labels, rows, *options), want, **close)
    if rows is not None:
        scattered = gqc.cross_entropy_backward(grad, logits[rows], labels, rows, *options, logits.shape[0])
        torch.testing.assert_close(scattered, want, **close)


@pytest.mark.parametrize("classes", [1, 2, 7, 16, 40, 67, 1999])
def test_equals_reference(isa: str, classes: int) -> None:
    for count, reduction in itertools.product((1, 150) if classes < 1000 else (5,), ops.cross_entropy.REDUCTIONS):
        logits = 4 * torch.randn(count, classes)
        dtypes = kernels.DTYPES if classes == 40 else (torch.float32,)
        for dtype in dtypes:
            for rows in selections(count).values():
                labels = torch.randint(classes, (count if rows is None else len(rows),))
                labels[torch.rand(labels.shape) < 0.3] = IGNORED
                assert_equals_reference(logits.to(dtype), labels, rows, reduction)


def test_equals_torch_of_a_masked_loss(isa: str) -> None:
    logits, labels = torch.randn(500, 40, requires_grad=True), torch.randint(40, (500,))
    for mask in (torch.rand(500) < 0.3, torch.ones(500, dtype=torch.bool), torch.zeros(500, dtype=torch.bool)):
        want = F.cross_entropy(logits[mask], labels[mask])
        got, counted = gqc.cross_entropy(logits, labels[mask], mask.nonzero()[:, 0], "mean", IGNORED)
        torch.testing.assert_close(got, want, equal_nan=True)
        assert counted == mask.sum()
        (want_gradient,), (gradient,) = torch.autograd.grad(want, logits), torch.autograd.grad(got, logits)
        torch.testing.assert_close(gradient, want_gradient, rtol=1e-4, atol=1e-7)
        assert not gradient[~mask].any()


def test_large_and_bad_logits_act_as_in_torch(isa: str) -> None:
    logits = 1e4 * torch.randn(9, 21)
    logits[1, 3], logits[2, 20], logits[3, 0], logits[5, :] = float("nan"), float("inf"), -float("inf"), -float("inf")
    logits[6] = 3e38
    labels = torch.tensor([1, 2, 20, 0, 4, 5, 6, 7, IGNORED])
    logits.requires_grad_()
    want = F.cross_entropy(logits, labels, reduction="none")
    got, _ = gqc.cross_entropy(logits, labels, None, "none", IGNORED)
    torch.testing.assert_close(got, want, equal_nan=True)
    finite = torch.tensor([0, 4, 6, 7, 8])
    pairs = [torch.autograd.grad(x[finite].sum(), logits, retain_graph=True)[0][finite] for x in (got, want)]
    torch.testing.assert_close(*pairs, rtol=1e-4, atol=1e-6)
    (gradient,) = torch.autograd.grad(got.sum(), logits)
    assert gradient[[1, 2, 5]].isnan().all()
    assert not gradient[8].any()


def test_does_not_depend_on_threads() -> None:
    logits, rows = torch.randn(20000, 40), torch.randint(20000, (15000,))
    labels, grad = torch.randint(40, (15000,)), torch.tensor(1.5)
    before, found = torch.get_num_threads(), []
    for name in ISAS:
        with on_backend(name):
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                loss, counted = gqc.cross_entropy(logits, labels, rows, "mean", IGNORED)
                options = (counted, "mean", IGNORED)
                gradients = gqc.cross_entropy_backward(grad, logits, labels, rows, *options)
                assert not found or name not in found[-1] or all(map(torch.equal, found[-1][name], (loss, gradients)))
                found.append({name: (loss, gradients)})
    torch.set_num_threads(before)
    assert len(found) == 3 * len(ISAS)


def test_ops_are_sound() -> None:
    logits, labels, rows = torch.randn(20, 5, requires_grad=True), torch.randint(5, (8,)), torch.randint(20, (8,))
    check = functools.partial(torch.library.opcheck, test_utils=("test_schema", "test_faketensor"))
    check(gqc.cross_entropy.default, (logits, labels, rows, "mean", IGNORED))
    _, counted = gqc.cross_entropy(logits.detach(), labels, rows, "mean", IGNORED)
    options = (counted, "mean", IGNORED)
    check(gqc.cross_entropy_backward.default, (torch.tensor(2.0), logits.detach(), labels, rows, *options))


@pytest.mark.parametrize("bad", [5, -1, 2**40])
def test_refuses_bad_labels_and_rows(isa: str, bad: int) -> None:
    logits, labels, rows = torch.randn(20, 5), torch.randint(5, (20,)), torch.arange(20)
    rows[4], wrong = 20 if bad == 5 else bad * 21, labels.clone()
    wrong[7] = bad
    counted = torch.tensor(20.0)
    for given, where, message in ((wrong, None, "label"), (labels, rows, "row is selected")):
        with pytest.raises(KernelError, match=f"cross_entropy: a {message}"):
            gqc.cross_entropy(logits, given, where, "mean", IGNORED)
        with pytest.raises(KernelError, match=f"cross_entropy_backward: a {message}"):
            gqc.cross_entropy_backward(torch.tensor(1.0), logits, given, where, counted, "mean", IGNORED)


def test_refuses_arguments_that_do_not_fit() -> None:
    logits, labels = torch.randn(4, 3), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(KernelError, match="'median'"):
        gqc.cross_entropy(logits, labels, None, "median", IGNORED)
    with pytest.raises(KernelError, match=r"\[N, C\]"):
        gqc.cross_entropy(logits[0], labels, None, "mean", IGNORED)
    with pytest.raises(KernelError, match="int64 labels"):
        gqc.cross_entropy(logits, labels.float(), None, "mean", IGNORED)
    with pytest.raises(KernelError, match="4 labels for 2 rows"):
        gqc.cross_entropy(logits, labels, labels[:2], "mean", IGNORED)
    with pytest.raises(KernelError, match="float64"):
        gqc.cross_entropy(logits.double(), labels, None, "mean", IGNORED)
    with pytest.raises(KernelError, match=r"gradient of the loss, \[4\]"):
        gqc.cross_entropy_backward(torch.ones(()), logits, labels, None, torch.ones(()), "none", IGNORED)
