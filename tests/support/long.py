"""Tests that take long: each says why, and one that does not is named at the end of a run.

A plugin of ``tests/conftest.py``. A test of more than ``LONG_S`` seconds, what it sets up included,
is marked ``@pytest.mark.long("why it must")`` and runs in ``make test-long``. Of a test with many
cases that take seconds each, ``@pytest.mark.cases_long("what the others add")`` leaves the first
one on each cluster in ``make test``. How fast a machine is fails no test: a reader of the closing
lines of a run on an idle machine decides.
"""

from __future__ import annotations

from collections import Counter

import pytest

LONG_S = 20.0
_spent: Counter[str] = Counter()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A mark without its reason is none. First of all: pytest selects by marks in this hook."""
    seen = set[tuple[str, object]]()
    for item in items:
        cases = item.get_closest_marker("cases_long")
        if cases is not None:
            case = (item.nodeid.partition("[")[0], _cluster(item))
            if case in seen:
                item.add_marker(pytest.mark.long(*cases.args))
            seen.add(case)
        mark = item.get_closest_marker("long")
        if mark is not None and not (mark.args and str(mark.args[0]).strip()):
            raise pytest.UsageError(f"{item.nodeid}: the mark `long` needs its reason")


def _cluster(item: pytest.Item) -> object:
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("cluster_kind")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Where tests run in several processes, the reports come together here."""
    if "long" not in report.keywords:
        _spent[report.nodeid] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the slow ones without a reason."""
    slow = [(spent, name) for name, spent in _spent.items() if spent > LONG_S]
    if slow:
        terminalreporter.section(f"longer than {LONG_S:.0f} s without a reason")
        for spent, name in sorted(slow, reverse=True):
            terminalreporter.write_line(f"{spent:6.1f} s  {name}")
