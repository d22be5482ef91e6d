"""squawk as `make lint` runs it: what it finds in migrations, and what `.squawk.toml` turns off."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.support.wheel import ROOT

SQUAWK = Path(sysconfig.get_path("scripts")) / "squawk"


def findings(*arguments: str, text: str | None = None) -> str:
    """Run squawk with the project's settings and return its output."""
    done = subprocess.run(
        [SQUAWK, "--config", ".squawk.toml", "--reporter", "gcc", *arguments],
        cwd=ROOT,
        input=text,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == (1 if done.stdout.strip() else 0)
    return done.stdout


def test_the_tree_is_clean() -> None:
    """Every file but procrastinate's own schema and the downgrades."""
    files = [
        path
        for where in ("fluxqueue/db", "migrations")
        for path in (ROOT / where).glob("sql/*.sql")
    ]
    assert len(files) > 5
    assert findings(*(str(path.relative_to(ROOT)) for path in files)).strip() == ""


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("ALTER TABLE pods ADD COLUMN rank bigint NOT NULL;", "adding-required-field"),
        ("ALTER TABLE pods ALTER COLUMN name TYPE varchar(9);", "changing-column-type"),
        ("ALTER TABLE pods RENAME COLUMN name TO title;", "renaming-column"),
        ("ALTER TABLE pods ADD CONSTRAINT c CHECK (rank > 0);", "constraint-missing-not-valid"),
        ("CREATE INDEX pods_rank ON pods (rank);", "require-concurrent-index-creation"),
        ("ALTER TABLE pods ADD COLUMN seen_at timestamp;", "prefer-timestamp-tz"),
        ("DROP TABLE pods;", "ban-drop-table"),
        ("CREATE VIEW ranks AS SELEC rank FROM pods;", "syntax-error"),
    ],
)
def test_what_locks_or_breaks_a_running_release_is_found(statement: str, rule: str) -> None:
    """Read as a revision of its own."""
    assert rule in findings("--stdin-filepath", "migrations/sql/0003_ranks.sql", text=statement)


def test_a_column_that_may_be_null_is_fine() -> None:
    """The usual *pre* revision."""
    text = "ALTER TABLE pods ADD COLUMN rank integer;"
    assert findings("--stdin-filepath", "migrations/sql/0003_ranks.sql", text=text).strip() == ""
