"""The record of sizes: what is worse is found, and the figures count what they say."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def house() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "house.py"))


@pytest.fixture
def tree(house: dict[str, Any], tmp_path: Path) -> Path:
    """A small product in a folder of its own, which the figures count."""
    (tmp_path / "fluxqueue").mkdir()
    house["measure"].__globals__["ROOT"] = tmp_path
    return tmp_path / "fluxqueue"


def counted(house: dict[str, Any], name: str) -> list[str]:
    found: list[str] = house["FIGURES"][name]()
    return found


def test_a_figure_above_its_record_or_without_one_is_found(house: dict[str, Any]) -> None:
    assert house["worse"]({"a": 2, "b": 1}, {"a": 2, "b": 3}) == []
    assert len(house["worse"]({"a": 3, "new": 0}, {"a": 2})) == 2


def test_each_figure_has_a_record() -> None:
    stored = json.loads((ROOT / "docs" / "house.json").read_text(encoding="utf-8"))
    made = runpy.run_path(str(ROOT / "docs" / "house.py"))
    assert stored["record"].keys() == made["FIGURES"].keys()
    assert all({"figure", "by", "issue", "why"} == one.keys() for one in stored["rises"])


def test_the_figures_count_what_they_say(house: dict[str, Any], tree: Path) -> None:
    (tree / "a.py").write_text(
        "def wide(a, b, c, d, e, f, g, h, i): ...\n"
        "def long():\n" + "    pass\n" * 70 + '"""Select the head of each queue."""\n'
        'SQL = "SELECT a FROM b WHERE c"\n'
        'MORE = f"UPDATE fluxjobs SET a = {long}"\n'
        'def use(row): return row["a"], row[0]\n'
    )
    (tree / "room").mkdir()
    (tree / "room" / "a.py").write_text("is_sweep = True\n" * 601)
    assert len(counted(house, "functions with over 8 parameters")) == 1
    assert len(counted(house, "functions over 70 lines")) == 1
    assert len(counted(house, "SQL literals outside the one place")) == 2
    assert len(counted(house, "modules that update fluxjobs")) == 1
    assert len(counted(house, 'uses of row["..."]')) == 1
    assert len(counted(house, "modules over 600 lines")) == 1
    assert len(counted(house, "files that name is_sweep")) == 1
    assert counted(house, "file names used twice") == ["a.py: fluxqueue/a.py, fluxqueue/room/a.py"]
    assert counted(house, "rooms") == ["fluxqueue/a.py", "fluxqueue/room", "webhook"]


def test_a_constant_that_nothing_names_is_found(house: dict[str, Any], tree: Path) -> None:
    """Another module may have a private one of the same name."""
    (tree / "a.py").write_text('_PART = "a"\nLEFT = 1\nUSED = 2\nprint(USED)\n')
    (tree / "b.py").write_text('_PART = "b"\nprint(_PART)\n')
    found = counted(house, "names that only tests call")
    assert found == ["fluxqueue/a.py:_PART", "fluxqueue/a.py:LEFT"]
