"""Coverage tables, printed when the tests are done."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

Rows = dict[str, dict[str, str]]
_TABLES = pytest.StashKey[Rows]()


@pytest.fixture(scope="session")
def coverage_row(request: pytest.FixtureRequest) -> Callable[[str, str, str], None]:
    """``coverage_row(table, case, outcome)`` adds a line to a table; an outcome starts with the group it counts for."""
    tables = request.config.stash.setdefault(_TABLES, defaultdict(dict))

    def add(table: str, case: str, outcome: str) -> None:
        tables[table][case] = outcome

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for title, rows in config.stash.get(_TABLES, {}).items():
        terminalreporter.section(title)
        width = max(map(len, rows))
        for case, outcome in rows.items():
            terminalreporter.write_line(f"{case:<{width}}  {outcome}")
        counts = Counter(outcome.split(":")[0] for outcome in rows.values())
        total = ", ".join(f"{count} {group}" for group, count in counts.most_common())
        terminalreporter.write_line(f"{len(rows)} cases: {total}")
