"""A migrated database of the test's own, opened."""

from __future__ import annotations

from typing import NoReturn

import psycopg
import pytest
import pytest_asyncio

from fluxqueue.db.database import Database
from tests.support.rows import Rows, settings_for


@pytest.fixture(autouse=True)
def _no_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent in a pipeline, which executemany does.

    No time-out of the server ends the transaction of a client that stops in the midst of one.
    """

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("statements in a pipeline: a process that hangs would keep its locks")

    monkeypatch.setattr(psycopg.AsyncPipeline, "__aenter__", refuse)


@pytest_asyncio.fixture
async def rows(database: Database, database_url: str) -> Rows:
    """Builders, a matcher and the invariants over it."""
    return Rows(database, settings=settings_for(database_url))
