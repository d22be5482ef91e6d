"""The page about engines: its table is of the locked versions, and of engines that were run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.engines import table
from tests.engines.catalogue import CHOSEN, ENGINES, PROGRAMS, ROOT, Engine, is_chosen

CELLS = len(table.STEPS) + 5


def _rows() -> list[list[str]]:
    text = table.PAGE.read_text(encoding="utf-8")
    written = text.partition(table.BEGIN)[2].partition(table.END)[0]
    lines = [line for line in written.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_table_is_of_the_locked_versions() -> None:
    """After a change of a lock, `make test-engines` writes the table anew."""
    known = {engine.name: engine.version for engine in ENGINES}
    found = _rows()
    assert {row[0] for row in found} == set(known)
    for row in found:
        assert len(row) == CELLS
        assert known[row[0]] == row[1], row[0]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda one: one.name)
def test_each_engine_has_a_lock_and_a_program(engine: Engine) -> None:
    """And a group of packages, which `make lock-engines` resolves."""
    assert (PROGRAMS / engine.program).is_file()
    assert "--hash=sha256" in engine.lock.read_text(encoding="utf-8")
    groups = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(rf"^engines-{engine.environment} = ", groups, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    names = re.search(r"^ENGINES = (.*)$", makefile, re.MULTILINE)
    assert names is not None
    assert engine.environment in names[1].split()


def test_continuous_integration_runs_every_environment() -> None:
    """In jobs of their own, so that no newcomer's test command installs them."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    sets = workflow["jobs"]["engines"]["strategy"]["matrix"]["engines"]
    run = [name for one in sets for name in one.split()]
    assert sorted(run) == sorted({engine.environment for engine in ENGINES})


def test_environments_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `make test-engines ENGINES=...` does, whatever else is installed."""
    monkeypatch.delenv(CHOSEN, raising=False)
    assert all(map(is_chosen, ENGINES))
    monkeypatch.setenv(CHOSEN, "luigi parsl")
    assert {one.environment for one in ENGINES if is_chosen(one)} == {"luigi", "parsl"}


def test_an_engine_without_all_its_steps_has_no_row(tmp_path: Path) -> None:
    """Results of several runs count together."""
    first, second = ENGINES[0].name, ENGINES[1].name
    steps = dict.fromkeys(table.STEPS, "yes")
    page, file = tmp_path / "page.md", tmp_path / "found.json"
    page.write_text(f"before {table.BEGIN}old{table.END} after", encoding="utf-8")
    part = {first: dict(list(steps.items())[:3]), second: steps}
    table.write(table.remembered(part, file), page)
    text = page.read_text(encoding="utf-8")
    assert f"| {second} |" in text
    assert f"| {first} |" not in text
    assert text.startswith("before ")
    assert text.endswith(" after")
    table.write(table.remembered({first: steps}, file), page)
    assert f"| {first} |" in page.read_text(encoding="utf-8")
