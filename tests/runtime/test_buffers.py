"""The pool of output memory: what is handed out again, and what never is while somebody can see it."""

from __future__ import annotations

import gc
import itertools
import mmap
import random
import resource
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack

from gqc.runtime import buffers, empty_cache, ops  # noqa: F401  registers torch.ops.gqc
from gqc.runtime.buffers import POOL, Pool

SHAPE = (512, 1024)  # of float32, 2 MiB
BYTES = 4 * 512 * 1024


def _resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE


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


@pytest.mark.parametrize("grow", [lambda x: x.resize_(2000, 1024), lambda x: torch.zeros(2000, 1024, out=x)])
def test_a_tensor_cannot_outgrow_its_memory(pool: Pool, grow: Callable[[Tensor], Tensor]) -> None:
    x, y = pool.empty(SHAPE, torch.float32).fill_(1), pool.empty(SHAPE, torch.float32).fill_(2)
    with pytest.raises(RuntimeError, match="not resizable"):
        grow(x)
    x.resize_(100, 1024).fill_(3)
    assert bool((y == 2).all())
    assert y.untyped_storage().nbytes() == BYTES


def test_one_large_matrix_makes_room_for_two_small_ones_and_back(pool: Pool) -> None:
    x = pool.empty(SHAPE, torch.float32)
    begin = x.data_ptr()
    del x
    small = [pool.empty(SHAPE, torch.bfloat16) for _ in range(2)]
    assert [y.data_ptr() for y in small] == [begin, begin + BYTES // 2]
    assert pool.nbytes() == (BYTES, 0)
    small[0].fill_(1)
    del small[1]
    assert pool.empty(SHAPE, torch.float32).data_ptr() >= begin + BYTES // 2
    assert bool((small[0] == 1).all())
    small.clear()
    assert pool.empty(SHAPE, torch.float32).data_ptr() == begin


def test_holes_join_in_any_order(pool: Pool) -> None:
    for order in itertools.permutations(range(3)):
        blocks = {n: pool.empty(SHAPE, torch.float32) for n in range(3)}
        begin = blocks[0].data_ptr()
        for n in order:
            del blocks[n]
            pool.nbytes()  # sees what is free
        assert pool.nbytes() == (0, 3 * BYTES)
        assert pool.empty((3, *SHAPE), torch.float32).data_ptr() == begin


def test_random_requests_never_overlap(pool: Pool) -> None:
    draw = random.Random(0)
    held: list[tuple[int, Tensor]] = []
    most = 0
    for number in range(300):
        while held and draw.random() < 0.5:
            value, x = held.pop(draw.randrange(len(held)))
            assert bool((x == value).all())
            del x
        held.append((number % 100, pool.empty((draw.randint(1 << 20, 1 << 22),), torch.uint8).fill_(number % 100)))
        most = max(most, pool.nbytes()[0])
        assert sum(pool.nbytes()) <= 1.25 * most
    assert all(bool((x == value).all()) for value, x in held)


def test_clearing_gives_pages_back(pool: Pool) -> None:
    x = pool.empty((64, 1 << 20), torch.uint8).fill_(1)
    kept = pool.empty(SHAPE, torch.float32).fill_(2)
    before = _resident()
    del x
    pool.clear()
    assert before - _resident() > 60 << 20
    assert bool((kept == 2).all())
    assert pool.nbytes() == (BYTES, 0)


def test_a_pool_that_stands_aside(pool: Pool) -> None:
    with pool.bypassed():
        x = pool.empty(SHAPE, torch.float32)
    assert pool.nbytes() == (0, 0)
    assert x.untyped_storage().resizable()
    assert not pool.empty(SHAPE, torch.float32).untyped_storage().resizable()


@pytest.mark.parametrize("refuse", ["reserve", "limit"])
def test_without_addresses_memory_is_torchs(pool: Pool, monkeypatch: pytest.MonkeyPatch, refuse: str) -> None:
    if refuse == "reserve":
        monkeypatch.setattr(buffers, "_memory_of_machine", lambda: 1 << 62)
    else:
        monkeypatch.setattr(resource, "getrlimit", lambda which: (8 << 30, resource.RLIM_INFINITY))
    x = pool.empty(SHAPE, torch.float32).fill_(1)
    assert x.untyped_storage().resizable()
    assert pool.nbytes() == (0, 0)


def test_what_no_machine_has_is_refused_as_by_torch(pool: Pool) -> None:
    for shape in ((1 << 50,), (1 << 40, 1 << 40)):
        with pytest.raises((RuntimeError, TypeError)) as ours:
            pool.empty(shape, torch.uint8)
        with pytest.raises(ours.type):
            torch.empty(shape, dtype=torch.uint8)
    assert pool.nbytes() == (0, 0)


def test_arenas_that_are_too_small_are_dropped(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_memory_of_machine", lambda: 0)  # each as large as its first block
    for size in range(1, 20):
        x = pool.empty((size, 1 << 20), torch.uint8)
        assert len(pool._arenas) == 1
        del x


def test_a_storage_that_moves_leaves_its_memory(pool: Pool) -> None:
    x = pool.empty(SHAPE, torch.float32).fill_(1)
    x.share_memory_()
    assert pool.nbytes() == (0, BYTES)
    assert bool((pool.empty(SHAPE, torch.float32).fill_(2) == 2).all())
    assert bool((x == 1).all())


def test_a_hole_counts_the_memory_that_it_has(pool: Pool) -> None:
    large, small = pool.empty((64, 1 << 20), torch.uint8), pool.empty(SHAPE, torch.float32)
    del large
    pool.clear()
    del small
    assert pool.nbytes() == (0, BYTES)


def test_a_finalizer_may_use_the_pool_at_any_time(pool: Pool) -> None:
    """The collector runs where objects are made, inside the pool too, and must find no lock that waits for itself."""
    found: list[Tensor] = []

    class Model:
        pass

    before = gc.get_threshold()
    try:
        for threshold in range(1, 60):
            gc.set_threshold(threshold)
            model = Model()
            model.itself = model  # type: ignore[attr-defined]
            weakref.finalize(model, lambda: (pool.clear(), found.append(pool.empty(SHAPE, torch.float32).fill_(1))))
            del model
            x = pool.empty(SHAPE, torch.float32).fill_(2)
            assert bool((x == 2).all())
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert len(found) == 59
    assert all(bool((y == 1).all()) for y in found)


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
