"""Which tests come first and which share a process, where several processes run them.

Called by ``tests/conftest.py`` in the processes of ``make test``, which keeps groups together
(``--dist loadgroup``). What takes long begins first, so that no process is left alone with it at
the end. Tests of one file stay in one process for the sake of what they share, but for those marked
``slow``, each of which may go where there is room. A mark ``xdist_group`` in a test file goes
before all this: those that import jsonschema, which takes three seconds, share a process, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
E2E = TESTS / "e2e"

WORLD_FIXTURES = {"world", "gang_world"}
"""The fixtures that start all parts of the system, once a process: that of
``tests/e2e/conftest.py``, and that of ``test_native_groups``."""

WORLDS = {
    module: world
    for world, modules in {
        "world 1": "check rebuild uninstall crashes admission queueing sharing preemption",
        "world 2": "steering placement telling random_lives submitters mpi client_pages attach",
        "world 3": "groups owners queues sets pages manifests mcp",
        "world 4": "provisioning_requests node_pools capacity_buffers client kueue",
    }.items()
    for module in (f"test_{name}" for name in modules.split())
}
"""Modules that share a world. The others in ``tests/e2e`` share a fifth one, so that each of the
five processes begins with one. ``test_native_groups`` has a sixth of its own. A world costs the
start of seven processes, ten seconds of processor time. Its tests mostly wait. Each of the five
takes about two minutes, or the process with the longest would still run when the others end."""

LONGEST = frozenset(
    {
        "test_assemble",
        "test_compose_processes",
        "test_upgrade",
        "test_replicas",
        "test_chaos",
        "test_demo",
        "test_queue_a_job",
    }
)
"""Modules of tests that take about a minute each."""

_WORLD, _LONGEST, _SLOW = 0, 1, 2
_FOLDERS = {"e2e": 3, "adversary": 3, "integration": 4, "migrations": 4, "property": 4, "chart": 5}
_REST = 6


def arrange(items: list[pytest.Item]) -> None:
    """Put the tests in order and mark those that share a process."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None and (group := _group(item)):
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_rank)


def strays(items: list[pytest.Item]) -> list[pytest.Item]:
    """Tests with a group that pytest-xdist has not read: it writes it behind the name."""
    marked = ((item, item.get_closest_marker("xdist_group")) for item in items)
    return [item for item, mark in marked if mark and not item.nodeid.endswith(mark.args[0])]


def _group(item: pytest.Item) -> str:
    """The name of the tests that it stays with, empty for none."""
    if _is_in_a_world(item):
        return WORLDS.get(item.path.stem, "world 5")
    if item.get_closest_marker("slow"):
        return ""
    return str(item.path.relative_to(TESTS))


def _rank(item: pytest.Item) -> int:
    if _is_in_a_world(item):
        return _WORLD
    if item.path.stem in LONGEST:
        return _LONGEST
    if item.get_closest_marker("slow"):
        return _SLOW
    return _FOLDERS.get(item.path.relative_to(TESTS).parts[0], _REST)


def _is_in_a_world(item: pytest.Item) -> bool:
    return E2E in item.path.parents and bool(
        WORLD_FIXTURES.intersection(getattr(item, "fixturenames", ()))
    )
