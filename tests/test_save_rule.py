"""``save_bits="auto"``: the widths keep to the budget and go where rounding harms gradients most."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import Tensor, nn

import gqc
from gqc.save_bits import SAVED_WIDTHS
from gqc.save_rule import Candidate, solve

ROWS = 512


class Branches(nn.Module):
    """Two hidden layers side by side; what comes of the second counts a hundred times as much."""

    def __init__(self) -> None:
        super().__init__()
        self.light, self.heavy = nn.Linear(32, 64), nn.Linear(32, 64)
        self.first, self.second = nn.Linear(64, 8), nn.Linear(64, 8)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        light, heavy = self.light(self.dropout(x)).sigmoid(), self.heavy(x).sigmoid()
        return self.first(light) + 100 * self.second(heavy)


def candidates(count: int) -> list[Candidate]:
    sizes = [random.randrange(100, 10_000) for _ in range(count)]
    return [
        Candidate(0, f"x{i}", {b: n * b for b in SAVED_WIDTHS if b >= random.choice((1, 1, 4))}, random.random() ** 4)
        for i, n in enumerate(sizes)
    ]


def test_the_greedy_choice_is_near_the_best() -> None:
    for _ in range(20):
        given = candidates(6)
        least = sum(min(c.widths.values()) for c in given)
        most = sum(max(c.widths.values()) for c in given)
        budget = random.randint(least, most)

        def total(bits: tuple[int, ...], given: list[Candidate] = given) -> tuple[int, float]:
            pairs = list(zip(given, bits, strict=True))
            return sum(c.widths[b] for c, b in pairs), sum(c.variance_at(b) for c, b in pairs)

        every = [total(bits) for bits in itertools.product(*(c.widths for c in given))]
        nbytes, variance = total(tuple(solve(given, budget)))
        assert nbytes <= budget
        # Greedy is optimal but for the last step: with the largest tensor's steps less, nothing is better.
        spare = max(max(c.widths.values()) for c in given)
        assert variance <= min(v for b, v in every if b <= max(least, budget - spare)) * (1 + 1e-9)
        assert solve(given, most) == [max(c.widths) for c in given]
        with pytest.raises(gqc.PolicyError, match="the fewest bits take"):
            solve(given, least - 1)


@pytest.mark.parametrize("budget", [None, 0.2])
def test_the_sensitive_tensor_has_more_bits(budget: float | None) -> None:
    torch.manual_seed(0)
    net, x = Branches(), torch.randn(ROWS, 32)
    saves = "auto" if budget is None else gqc.SaveBits("auto", budget=budget)
    plans = []
    for _ in range(2):
        model = gqc.compile(net, bits=32, save_bits=saves)
        torch.manual_seed(1)
        out = model(x)
        after = torch.get_rng_state()
        torch.manual_seed(1)
        torch.testing.assert_close(out, net(x))
        assert torch.equal(torch.get_rng_state(), after)
        report = gqc.memory_report(model, x)
        plans.append({e.name: e.how for e in report.entries})
        if budget is not None:
            assert report.saved_bytes <= budget * report.saved_bytes_fp32
    bits = {e.module: int(e.how.split()[2]) for e in report.entries if e.how.startswith("compressed")}
    assert bits["second"] > bits["first"]
    assert plans[0] == plans[1]
    assert all("of the gradients' variance" in e.reason for e in report.entries if e.how.startswith("compressed"))


def test_a_budget_that_cannot_be_kept() -> None:
    model = gqc.compile(Branches(), bits=32, save_bits=gqc.SaveBits("auto", budget=100))
    with pytest.raises(gqc.PolicyError, match=r"SaveBits.budget=100 is 100 B: .*: give \d+ or more bytes"):
        model(torch.randn(ROWS, 32))
    with torch.no_grad():
        model(torch.randn(ROWS, 32))
