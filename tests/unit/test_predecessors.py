"""docs/predecessors.md: every defect has its test, and every test named there exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "predecessors.md").read_text(encoding="utf-8")

_ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \|$", re.MULTILINE)
_TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")

DEFECTS = 50


def _tests(path: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}


def test_every_defect_has_a_test() -> None:
    rows = _ROW.findall(TEXT)
    assert [int(number) for number, _, _ in rows] == list(range(1, DEFECTS + 1))
    assert [number for number, _, here in rows if not _TEST.search(here)] == []


@pytest.mark.parametrize("path", sorted({path for path, _ in _TEST.findall(TEXT)}))
def test_every_test_that_is_named_exists(path: str) -> None:
    named = {name for one, name in _TEST.findall(TEXT) if one == path}
    assert named - _tests(path) == set()
