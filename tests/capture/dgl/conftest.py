"""Double precision for this folder, and the table of convolutions at the end of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch


@dataclass
class Coverage:
    """What the table says about each convolution."""

    whole: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    islands: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


_COVERAGE = pytest.StashKey[Coverage]()


@pytest.fixture
def coverage(request: pytest.FixtureRequest) -> Coverage:
    return request.config.stash.setdefault(_COVERAGE, Coverage())


@pytest.fixture(autouse=True)
def _double_precision() -> Iterator[None]:
    """Differences between eager and capture that are more than rounding cannot hide in double precision."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # tensors of a few hundred elements
    yield
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    coverage = config.stash.get(_COVERAGE, None)
    if coverage is None:
        return
    names = sorted(coverage.whole.keys() | coverage.islands.keys())
    total = sum(len(c) for table in (coverage.whole, coverage.islands) for c in table.values())
    terminalreporter.section(f"DGL: {len(names)} convolutions, {total} configurations equal to eager on 3 graph sizes")
    terminalreporter.write_line(f"{'convolution':28} {'one graph':>10} {'with island':>12}   configurations")
    for name in names:
        whole, split = coverage.whole[name], coverage.islands[name]
        variants = [v or "default" for v in sorted(whole)] + [f"{v or 'default'}*" for v in sorted(split)]
        terminalreporter.write_line(f"{name:28} {len(whole):>10} {len(split):>12}   {'; '.join(variants)}")
    terminalreporter.write_line("* split around an eager island")
