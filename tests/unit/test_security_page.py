"""docs/admin/security.md: each guarantee names a mechanism and a test, and all of them exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/admin/security.md").read_text()
PLACES = (ROOT, ROOT / "fluxqueue")
_PATH = re.compile(r"`([\w./-]+\.(?:py|sql|yaml))(?::(\w+))?`")
_SAME = re.compile(r"\b(?:the same)\b")


def _tables() -> list[tuple[str, str]]:
    """Rows of tables with a test, each with the whole table above it."""
    found, above, is_told = [], "", False
    for line in PAGE.splitlines():
        if not line.startswith("|"):
            above, is_told = "", False
            continue
        if not above:
            is_told = bool(re.search(r"\| (?:Test|Shown by) \|$", line))
        elif is_told and not line.startswith("|---"):
            found.append((line, above))
        above += line + "\n"
    return found


def test_there_are_such_tables() -> None:
    assert len(_tables()) > 25


@pytest.mark.parametrize(("row", "above"), _tables())
def test_each_row_names_a_test(row: str, above: str) -> None:
    last = row.strip("| ").rsplit("|", 1)[-1]
    assert "tests/" in last or (_SAME.search(last) and "tests/" in above)


@pytest.mark.parametrize("named", sorted(set(_PATH.findall(PAGE))), ids=":".join)
def test_what_it_names_exists(named: tuple[str, str]) -> None:
    path, name = named
    found = next((place / path for place in PLACES if (place / path).is_file()), None)
    assert found is not None, f"{path} is not there"
    assert name in found.read_text(), f"{name} is not in {path}"
