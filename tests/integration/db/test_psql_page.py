"""The queries of docs/admin/psql.md answer, to a role that may only read."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import psycopg

from fluxqueue.db.database import Database
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, settings_for, workload

PAGE = (Path(__file__).parents[3] / "docs" / "admin" / "psql.md").read_text()
QUERIES = re.findall(r"^```sql\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


async def _fill(url: str) -> None:
    """One runs, one waits, one is held."""
    async with Database(settings_for(url), role="test") as database:
        rows = Rows(database)
        await rows.add_nodes(cpu_node("n1", 4000))
        await rows.see(
            workload("train", request(4, cpu=1000)), workload("next", request(4, cpu=1000))
        )
        await rows.see(workload("kept"))
        await rows.execute(
            "UPDATE fluxjobs SET state = 'Held', held_by = 'carol' WHERE workload_name = 'kept'"
        )
        await rows.match()


def test_ten_queries_answer(database_url: str) -> None:
    """Each runs as the reader. Those about what is there find it."""
    asyncio.run(_fill(database_url))
    assert len(QUERIES) == 10
    with psycopg.connect(database_url) as connection:
        connection.execute("SET ROLE fluxqueue_reader")
        found = [connection.execute(query.encode()).fetchall() for query in QUERIES]
    assert found[0][0][1] == "next"
    assert found[1] == [("default", 1, 4)]
    assert found[2][0][:2] == ("n1", "default")
    assert found[3][0][:2] == ("n1", 0)
    assert [row[2] for row in found[4]] in ([], ["next"])
    assert len(found[7]) > 1
    assert [row[1:3] for row in found[8]] == [("kept", "carol")]


def test_every_view_is_on_the_page(database_url: str) -> None:
    """Neither more nor less."""
    with psycopg.connect(database_url) as connection:
        views = connection.execute("SELECT viewname FROM pg_views WHERE schemaname = 'public'")
        there = {name for (name,) in views}
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == there
