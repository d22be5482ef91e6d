"""Statements of tests: any SQL, with rows as dicts. The product has only named ones."""

from __future__ import annotations

from typing import Any

from fluxqueue.db.reader import DatabaseReader, DatabaseReading, statement


async def dicts(where: DatabaseReader | DatabaseReading, sql: str, **values: Any) -> list[Any]:
    """Run one statement, in a transaction of its own where there is none, and return its rows."""
    if isinstance(where, DatabaseReader):
        async with where.begin() as tx:
            return await dicts(tx, sql, **values)
    result = await where.connection.execute(*statement(sql, values))
    return [dict(row) for row in result.mappings()]
