"""Coverage tables, printed when the tests are done."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

COVERAGE = "coverage"
"""Key of a row among the properties of a test, which reach the summary from any process that ran the test."""


@pytest.fixture
def coverage_row(request: pytest.FixtureRequest) -> Callable[[str, str, str], None]:
    """``coverage_row(table, case, outcome)`` adds a line to a table; an outcome starts with the group it counts for."""

    def add(table: str, case: str, outcome: str) -> None:
        request.node.user_properties.append((COVERAGE, (table, case, outcome)))

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tables: dict[str, dict[str, str]] = defaultdict(dict)
    for table, case, outcome in _rows(terminalreporter):
        tables[table][case] = outcome
    for title, rows in sorted(tables.items()):
        terminalreporter.section(title)
        width = max(map(len, rows))
        for case, outcome in sorted(rows.items()):
            terminalreporter.write_line(f"{case:<{width}}  {outcome}")
        counts = Counter(outcome.split(":")[0] for outcome in rows.values())
        total = ", ".join(f"{count} {group}" for group, count in counts.most_common())
        terminalreporter.write_line(f"{len(rows)} cases: {total}")


def _rows(reporter: pytest.TerminalReporter) -> list[tuple[str, str, str]]:
    reports = [report for outcome in ("passed", "failed") for report in reporter.stats.get(outcome, ())]
    return [value for report in reports for key, value in report.user_properties if key == COVERAGE]
