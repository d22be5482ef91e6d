"""The table of columns with several writers is made from the statements as they are."""

from __future__ import annotations

import runpy

from tests.support.wheel import ROOT


def test_every_column_with_several_writers_has_its_reason() -> None:
    """`python docs/writers.py` writes the table again. A new writer needs a reason there."""
    made = runpy.run_path(str(ROOT / "docs" / "writers.py"))
    assert set(made["REASONS"]) == set(made["several"]())
    assert made["table"]() in made["PAGE"].read_text(encoding="utf-8")


def test_the_writers_of_known_columns_are_found() -> None:
    """Of each way in which a statement is made: plain, a move, a trigger."""
    found = runpy.run_path(str(ROOT / "docs" / "writers.py"))["writers"]()
    assert {"observations.sql", "31_dependencies.sql", "moves.sql"} <= found["state"]
    assert {"observations.sql", "steering.sql"} <= found["queue"]
    assert "moves.sql" in found["allocated_at"], "what a move sets as well"
    assert "statuses.sql" in found["published"], "a fragment that two statements share"
