"""The pool of output memory: what is handed out again, and what never is while somebody can see it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack

from gqc.runtime import empty_cache, ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.buffers import POOL, Pool

SHAPE = (512, 1024)  # of float32, 2 MiB
BYTES = 4 * 512 * 1024


@pytest.fixture
def pool() -> Pool:
    return Pool()


def test_memory_is_used_again(pool: Pool) -> None:
    x = pool.empty(SHAPE, torch.float32)
    assert (x.shape, x.dtype, x.is_contiguous(), x.requires_grad) == (SHAPE, torch.float32, True, False)
    address = x.data_ptr()
    assert pool.nbytes() == (BYTES, 0)
    y = pool.empty(SHAPE, torch.float32)
    assert y.data_ptr() != address
    del x
    assert pool.nbytes() == (BYTES, BYTES)
    assert pool.empty((1024, 2048), torch.int8).data_ptr() == address


def test_small_tensors_are_torchs(pool: Pool) -> None:
    for shape in ((), (0,), (0, 1024), (1000,)):
        assert pool.empty(shape, torch.float32).shape == shape
    assert pool.nbytes() == (0, 0)


@pytest.mark.parametrize(
    "hold",
    [
        lambda x: x[3],
        lambda x: x.detach(),
        lambda x: x.numpy(),
        lambda x: x.untyped_storage(),
        lambda x: x.view(torch.int32).t()[2:],
        lambda x: to_dlpack(x),
        lambda x: torch.nn.Parameter(x),
        lambda x: torch.ones(SHAPE, requires_grad=True) * x,  # saved for the backward
        lambda x: {"nested": [x]},
    ],
)
def test_what_somebody_holds_is_not_used(pool: Pool, hold: Callable[[Tensor], Any]) -> None:
    x = pool.empty(SHAPE, torch.float32)
    address, held = x.data_ptr(), hold(x)
    del x
    assert pool.empty(SHAPE, torch.float32).data_ptr() != address
    del held
    assert address in [y.data_ptr() for y in [pool.empty(SHAPE, torch.float32) for _ in range(2)]]


def test_a_weak_reference_holds_nothing(pool: Pool) -> None:
    x = pool.empty(SHAPE, torch.float32)
    address, reference = x.data_ptr(), weakref.ref(x)
    del x
    assert reference() is None
    assert pool.empty(SHAPE, torch.float32).data_ptr() == address


def test_memory_that_another_process_may_read_is_given_away(pool: Pool) -> None:
    x = pool.empty(SHAPE, torch.float32)
    x.share_memory_()
    address = x.data_ptr()
    del x
    x = pool.empty(SHAPE, torch.float32)
    assert x.data_ptr() != address
    assert not x.is_shared()
    assert pool.nbytes() == (BYTES, 0)


def test_a_resized_tensor(pool: Pool) -> None:
    x = pool.empty(SHAPE, torch.float32)
    x.resize_(2000, 1024)
    del x
    y = pool.empty(SHAPE, torch.float32)
    assert y.untyped_storage().nbytes() == BYTES


def test_the_smallest_buffer_that_fits_serves_and_none_much_larger(pool: Pool) -> None:
    sizes = [2 * BYTES, BYTES * 9 // 8, BYTES]
    held = [pool.empty((size,), torch.uint8) for size in sizes]
    large, middle, exact = (x.data_ptr() for x in held)
    del held
    x = pool.empty((BYTES,), torch.uint8)
    y = pool.empty((BYTES,), torch.uint8)
    z = pool.empty((BYTES,), torch.uint8)
    assert (x.data_ptr(), y.data_ptr()) == (exact, middle)
    assert z.data_ptr() != large


def test_memory_is_bounded_by_what_was_in_use(pool: Pool) -> None:
    for size in range(1, 40):
        x = pool.empty((size, 1 << 20), torch.uint8)
        del x
        used, waiting = pool.nbytes()
        assert used + waiting <= 1.25 * size * (1 << 20)
    pool.clear()
    assert pool.nbytes() == (0, 0)


def test_clearing_leaves_what_is_in_use(pool: Pool) -> None:
    x, y = pool.empty(SHAPE, torch.float32).fill_(3), pool.empty(SHAPE, torch.float32)
    del y
    pool.clear()
    assert pool.nbytes() == (BYTES, 0)
    assert bool((x == 3).all())


def test_tensors_behave_as_torchs(pool: Pool) -> None:
    x = pool.empty(SHAPE, torch.float32)
    version = x._version
    x.fill_(1)
    with torch.inference_mode():
        y = pool.empty(SHAPE, torch.float32)
        assert y.is_inference()
    assert not pool.empty(SHAPE, torch.float32).is_inference()
    del y
    address = x.data_ptr()
    del x
    again = pool.empty(SHAPE, torch.float32)
    assert again.data_ptr() == address
    assert again._version == version


def test_threads_never_share(pool: Pool) -> None:
    wrong = []

    def work(number: int) -> None:
        for _ in range(50):
            x = pool.empty((1 << 18,), torch.float32).fill_(number)
            y = pool.empty((1 << 18,), torch.float32).fill_(-number)
            if not (bool((x == number).all()) and bool((y == -number).all())):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_deterministic_algorithms_get_filled_tensors(pool: Pool) -> None:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert bool(pool.empty(SHAPE, torch.float32).isnan().all())
    finally:
        torch.use_deterministic_algorithms(before)


def test_ops_use_memory_again_until_the_cache_is_emptied() -> None:
    empty_cache()
    x = torch.randn(1200, 1000)
    q, _ = torch.ops.gqc.quantize(x, None, None, 0, 8, False)
    address = q.data_ptr()
    del q
    q, _ = torch.ops.gqc.quantize(x, None, None, 0, 8, False)
    assert q.data_ptr() == address
    del q
    assert POOL.nbytes()[1] >= x.numel()
    empty_cache()
    assert POOL.nbytes()[1] == 0
