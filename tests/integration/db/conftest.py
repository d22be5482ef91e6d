"""A migrated database of the test's own, opened."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from fluxqueue.db.database import Database
from tests.support.rows import Rows, settings_for


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """One process's access to it."""
    async with Database(settings_for(database_url), role="test") as opened:
        yield opened


@pytest_asyncio.fixture
async def rows(database: Database, database_url: str) -> Rows:
    """Builders, a matcher and the invariants over it."""
    return Rows(database, settings=settings_for(database_url))
