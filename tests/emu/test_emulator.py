"""The emulator itself: a planted fault is reported in words that name it, and what is right passes in every order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gqc.errors import KernelError
from gqc.runtime.cuda.target import Kernel, launch
from tests.emu import emulator, small_kernels
from tests.emu.small_kernels import run


def floats(n: int) -> Tensor:
    return torch.rand(n)


FAULTS = {
    # barriers
    "missing_barrier": (1, 256, [floats(256), floats(256), 1], r"(race: .*without __sync|nothing has written).*tile\["),
    "missing_barrier_before_reuse": (
        1,
        256,
        [floats(256), floats(256), 2],
        r"race: this thread (writes what.*has read|reads what.*has written), without __sync",
    ),
    "barrier_after_early_exit": (1, 64, [floats(64), 40], r"__syncthreads\(\)"),
    "different_barriers": (1, 64, [floats(64)], r"threads meet at different __syncthreads\(\): faulty\.cu:\d+ and"),
    "barrier_of_one_warp": (1, 64, [floats(64)], r"leaves while others wait at __syncthreads|after threads have left"),
    # warps
    "missing_warp_barrier": (1, 64, [floats(64)], r"race: .*without __syncwarp|nothing has written"),
    "ordered_by_a_shuffle": (1, 64, [floats(64)], r"race: this thread reads.*without __syncwarp"),
    "ordered_by_half_a_warp": (1, 64, [floats(64)], r"race: .*without __syncwarp|nothing has written"),
    "mask_names_a_lane_that_left": (1, 32, [floats(32), 20], r"names a lane that has left|leaves while others wait"),
    "lane_outside_its_mask": (1, 32, [floats(32)], r"__shfl_xor_sync\(\) of .*: the lane is not in its own mask"),
    "different_collectives": (1, 32, [floats(32)], r"lanes meet at different collectives: .*__ballot_sync"),
    "different_masks": (1, 32, [floats(32)], r"deadlock: .*waits at __shfl_sync|leaves while others wait|has left"),
    # shared memory
    "read_of_unwritten_shared_memory": (1, 32, [floats(32)], r"nothing has written: tile\[32\] of 33"),
    "shared_memory_out_of_range": (1, 32, [floats(32)], r"shared memory out of range: tile\[32\] of 32"),
    "shared_vector_out_of_range": (1, 32, [floats(32)], r"shared memory out of range: tile\[28\].*16 bytes"),
    "misaligned_shared_vector": (1, 32, [floats(32)], r"misaligned access to shared memory: tile\[\d+\]"),
    "too_much_shared_memory": (1, 32, [floats(32)], r"49152 bytes of shared memory and needs 49168"),
    "lost_update_in_shared_memory": (1, 64, [floats(64)], r"race: .*sum\[0\]"),
    "read_beside_updates": (
        1,
        64,
        [floats(64)],
        r"race: this thread (reads|updates) what.*has (read|updated).*sum\[0\]",
    ),
    # global memory
    "read_out_of_range": (
        2,
        64,
        [floats(100), floats(100), 100],
        r"read of 4 bytes.*out of range: byte 400 of arg.* 0",
    ),
    "write_before_the_begin": (1, 64, [floats(64)], r"write of 4 bytes.*out of range: 4 bytes before the begin"),
    "no_memory": (1, 32, [torch.empty(0)], r"write of 4 bytes.*out of range: the kernel is given no memory"),
    "misaligned_vector": (1, 32, [floats(132), floats(128)], r"misaligned access to global memory, 16 bytes.*arg.* 0"),
    "misaligned_plain_vector": (1, 32, [floats(132), floats(128)], r"misaligned access to global memory, 16 bytes"),
    "lost_update": (2, 32, [floats(64), floats(1)], r"race: .*byte 0 of argument 1"),
    "same_place_of_two_blocks": (
        2,
        32,
        [floats(32)],
        r"race: .*of block \(\d, 0, 0\) has written, and blocks run in any",
    ),
    "read_of_another_block": (
        2,
        32,
        [floats(64)],
        r"race: .*of block \(\d, 0, 0\) has (read|written), and blocks run in",
    ),
    "halves_of_a_byte": (1, 64, [torch.zeros(32, dtype=torch.uint8)], r"race: .*argument 0"),
    "missing_global_barrier": (1, 64, [floats(64)], r"race: .*global memory"),
    # copies
    "copy_without_wait": (1, 256, [floats(256), floats(256)], r"before the copy is waited for: tile\["),
    "copy_without_barrier": (1, 256, [floats(256), floats(256)], r"race|before the copy is waited for|nothing has"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_reported(target: emulator.Emulator, name: str) -> None:
    blocks, threads, arguments, words = FAULTS[name]
    with pytest.raises(KernelError, match=words) as error:
        run(target, name, blocks, threads, *arguments)
    assert str(error.value).startswith(f"emulated CUDA kernel {name}: ")
    assert "; block (" in str(error.value)


X = torch.rand(256)
RIGHT = {
    "shift_right": (1, 256, [X, torch.empty(256), 3], torch.cat([X[1:], torch.zeros(1)])),
    "rotate_right": (1, 64, [torch.empty(64)], (torch.arange(64) % 32 + 1.0) % 32),
    "halves_right": (1, 32, [torch.empty(32)], torch.tensor([120.0] * 16 + [376.0] * 16)),
    "update_in_shared_memory_right": (1, 64, [torch.empty(64)], torch.full((64,), 64.0)),
    "bytes_right": (1, 64, [torch.empty(64, dtype=torch.int8)], torch.arange(64, dtype=torch.int8)),
    "global_barrier_right": (1, 64, [torch.empty(64)], torch.ones(64)),
    "copy_right": (1, 256, [X, torch.empty(256)], torch.cat([X[4:252], torch.zeros(4), X[:4]])),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_passes_in_every_order(target: emulator.Emulator, name: str) -> None:
    blocks, threads, arguments, want = RIGHT[name]
    out = next(a for a in reversed(arguments) if isinstance(a, Tensor))
    out.fill_(99)
    run(target, name, blocks, threads, *arguments)
    assert torch.equal(out, want)


def test_atomic_updates_of_blocks_add_up(target: emulator.Emulator) -> None:
    x, out = torch.arange(128.0), torch.zeros(1)
    run(target, "update_right", 4, 32, x, out)
    assert out == x.sum()


def test_a_launch_that_does_not_fit_its_kernel_is_refused() -> None:
    target, out = emulator.Emulator(small_kernels.library()), torch.empty(64)
    with pytest.raises(KernelError, match="absent: no such kernel"):
        run(target, "absent", 1, 32, out)
    with pytest.raises(KernelError, match="takes the arguments pif and is launched with pff"):
        run(target, "launched", 1, 32, out, 64.0, 1.0)
    with pytest.raises(KernelError, match="is compiled for 64 threads and is launched with 96"):
        run(target, "launched", 1, 96, out, 64, 1.0)
    with pytest.raises(KernelError, match=r"argument 0, 0x10, is not in a tensor"), target.running():
        launch(target, Kernel("launched", "pif"), 1, 64, 16, 64, 1.0)
    run(target, "launched", 1, 64, out, 64, 1.5)
    assert (out == 1.5).all()


def test_a_fault_names_the_line_and_leaves_the_emulator_usable() -> None:
    target = emulator.Emulator(small_kernels.library())
    text = (small_kernels.FOLDER / "faulty.cu").read_text().splitlines()
    line = next(i for i, code in enumerate(text, 1) if "] = x[i + 1]" in code and "for" in code)
    for _ in range(2):
        with pytest.raises(KernelError, match=rf"thread \(35, 0, 0\) \(faulty\.cu:{line}\)"):
            run(target, "read_out_of_range", 2, 64, floats(100), floats(100), 100)
    out = torch.empty(64)
    run(target, "launched", 1, 64, out, 64, 1.0)
    assert (out == 1).all()
