"""What is drawn while gqc looks at a model leaves no trace in torch's generators and in the steps of seeds."""

from __future__ import annotations

import pytest
import torch

from gqc.generators import GeneratorStates, generators_at, generators_kept
from gqc.seed import SeedSource


class FakeGenerators:
    """The generators of two GPUs: a state counts what was drawn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drawn = [3, 7]
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(self.drawn))
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda i: torch.tensor(self.drawn[int(i)]))
        monkeypatch.setattr(torch.cuda, "set_rng_state", self._set)

    def _set(self, state: torch.Tensor, i: int) -> None:
        self.drawn[int(i)] = int(state)


def test_states_of_the_cpu_and_of_each_gpu_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = FakeGenerators(monkeypatch)
    before = GeneratorStates.now()
    first = torch.rand(3)
    gpus.drawn[:] = [4, 9]
    with generators_at(before):
        assert torch.equal(torch.rand(3), first)
        assert gpus.drawn == [3, 7]
        gpus.drawn[0] = 20
    assert gpus.drawn == [4, 9]
    second = torch.rand(3)
    assert not torch.equal(second, first)
    before.restore()
    assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.rand(3), second)
    assert gpus.drawn == [3, 7]


def test_what_is_drawn_inside_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus, before = FakeGenerators(monkeypatch), torch.get_rng_state()
    with generators_kept():
        torch.rand(3)
        gpus.drawn[:] = [0, 0]
    assert torch.equal(torch.get_rng_state(), before)
    assert gpus.drawn == [3, 7]


def test_steps_of_every_device_are_set_back() -> None:
    seed, cpu, used, fresh = SeedSource(5), torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)
    seed(cpu)
    seed._next[used] = torch.tensor([5, 4])
    with seed.kept():
        seed(cpu)
        assert seed(used).tolist() == [5, 4]
        seed._next[fresh] = torch.tensor([5, 2])
    assert seed(cpu).tolist() == [5, 1]
    assert seed(used).tolist() == [5, 4]
    assert seed(fresh).tolist() == [5, 0]
