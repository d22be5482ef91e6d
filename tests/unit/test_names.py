"""One name, one thing: no two classes of the product share a name, and no three modules do."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOUSES = ("fluxqueue", "webhook", "fluxion", "devtools", "migrations", "benchmarks")
COMMON = {"__init__.py", "__main__.py", "main.py"}
"""File names with a meaning of their own: a package, and where a program begins."""


def _modules() -> list[Path]:
    return sorted(path for house in HOUSES for path in (ROOT / house).rglob("*.py"))


def test_no_class_name_is_given_twice() -> None:
    """Localcluster is another distribution, and has the names of what it imitates."""
    found = defaultdict(list)
    for path in _modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_no_three_modules_share_a_name() -> None:
    found = defaultdict(list)
    for path in _modules():
        if path.name not in COMMON and path.relative_to(ROOT).parts[0] != "benchmarks":
            found[path.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 2} == {}


def test_no_test_imports_another() -> None:
    """What two modules of tests need stands in ``tests/support``."""
    named = r"^\s*from tests\.\S*(?:\btest_\w+ import| import .*\btest_)"
    modules = sorted((ROOT / "tests").rglob("*.py"))
    assert [one.name for one in modules if re.search(named, one.read_text(), re.MULTILINE)] == []


def test_statements_on_the_tables_of_procrastinate_stand_in_one_place() -> None:
    """Everything that reads or changes its tables is SQL, in files that say so."""
    named = ("procrastinate_jobs", "procrastinate_events", "procrastinate_fetch")
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "fluxqueue").rglob("*")
        if path.suffix in {".py", ".sql"} and any(name in path.read_text() for name in named)
    }
    assert found == {
        "fluxqueue/db/queries/pending_actions.sql",
        "fluxqueue/db/queries/statuses.sql",
        "fluxqueue/db/queries/tasks.sql",
        "fluxqueue/db/sql/20_tasks.sql",
    }
