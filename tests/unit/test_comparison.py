"""The page that compares systems: what it says of us is tested, and each row has its date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "admin" / "comparison.md").read_text(encoding="utf-8")
TESTS = {
    "ordinary Jobs and Pods, unchanged": "tests/e2e/test_queueing.py",
    "a group starts as a whole": "tests/e2e/test_groups.py",
    "topology: racks, blocks, NVLink": "tests/e2e/test_placement.py",
    "backfill with reservations": "tests/unit/scheduler/test_promises.py",
    "expected start, and why not now": "tests/e2e/test_explain.py",
    "named queues with limits": "tests/e2e/test_queues.py",
    "fair share between users": "tests/integration/db/test_queues.py",
    "preemption": "tests/e2e/test_preemption.py",
    "dependencies between jobs": "tests/unit/fluxjob/test_dependency.py",
    "history and accounting": "tests/integration/db/test_retained_rows.py",
    "autoscaling of nodes": "tests/e2e/test_node_pools.py",
    "web interface": "tests/e2e/test_window.py",
}
"""Where each thing that the page says of fluxqueue is tested. What it has not is not in here."""


def table(heading: str) -> list[list[str]]:
    """Return the rows of the first table below the text that begins so, without its head."""
    lines = PAGE[PAGE.index(heading) :].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [rows[0], *rows[2:]]


def test_what_fluxqueue_has_is_tested() -> None:
    _, *rows = table("## What each one does")
    said = {subject: ours for subject, ours, *_ in rows}
    assert {subject for subject, ours in said.items() if ours != "no"} == TESTS.keys()
    assert set(said.values()) <= {"yes", "part", "no"}


@pytest.mark.parametrize("subject", TESTS)
def test_its_test_exists(subject: str) -> None:
    assert (ROOT / TESTS[subject]).exists(), TESTS[subject]


def test_each_system_has_a_release_and_a_date() -> None:
    _, *rows = table("# Comparison")
    assert all(re.search(r"\d{4}$", date) for _, _, date, _ in rows)
    named = {name for one in rows for name in re.split(r", | with ", one[0])}
    head, *_ = table("## What each one does")
    for system in head[1:]:
        assert any(name.startswith(system) for name in named), system


def test_each_part_has_a_remark() -> None:
    head, *rows = table("## What each one does")
    for number, system in enumerate(head[1:], 1):
        if any(row[number] == "part" for row in rows):
            assert f"- **{system}.**" in PAGE, system
