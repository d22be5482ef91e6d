"""The outbox: claimed once at a time, put off when it fails, never given up."""

from __future__ import annotations

import asyncio

from fluxqueue.db import outbox
from fluxqueue.db.task_queue import TaskName
from tests.support.rows import Rows

KIND = TaskName.RELEASE


async def put(rows: Rows, *keys: str) -> None:
    """Leave effects."""
    async with rows.database.begin() as tx:
        await outbox.put(tx, KIND, keys)


async def claim(rows: Rows, limit: int = 100) -> list[outbox.OutboxRow]:
    """Claim effects."""
    return await outbox.finish_and_claim(rows.database, KIND, outbox.Outcome(), limit=limit)


async def settle(rows: Rows, outcome: outbox.Outcome) -> None:
    """Settle a batch without claiming another."""
    await outbox.finish_and_claim(rows.database, KIND, outcome, limit=0)


async def test_claims_are_in_order_and_of_one_kind(rows: Rows) -> None:
    """Oldest first, up to the limit, nobody else's."""
    await put(rows, "a", "b", "c")
    async with rows.database.begin() as tx:
        await outbox.put(tx, TaskName.STATUS, ["x"])
    assert [row.key for row in await claim(rows, 2)] == ["a", "b"]
    assert [row.key for row in await claim(rows)] == ["c"]
    assert await claim(rows) == []


async def test_many_drains_share_without_overlap(rows: Rows) -> None:
    """SKIP LOCKED: eight claims at once take each row once."""
    await put(rows, *(f"k{n}" for n in range(200)))
    batches = await asyncio.gather(*(claim(rows, 25) for _ in range(8)))
    taken = [row.key for batch in batches for row in batch]
    assert len(taken) == len(set(taken))
    rest = [row.key for row in await claim(rows, 200)]
    assert sorted(taken + rest) == sorted(f"k{n}" for n in range(200))


async def test_a_drain_that_dies_leaves_rows_that_come_back(rows: Rows) -> None:
    """A claim is only a later due time."""
    await put(rows, "a")
    (first,) = await claim(rows)
    assert await claim(rows) == []
    await rows.execute(f"UPDATE outbox SET due_at = due_at - interval '{outbox.CLAIM_S + 1} s'")
    (again,) = await claim(rows)
    assert (again.id, again.attempts) == (first.id, first.attempts + 1)


async def test_done_is_deleted_failed_is_put_off_ever_longer(rows: Rows) -> None:
    """With its error; the pause grows and is bounded."""
    await put(rows, "a", "b")
    a, b = await claim(rows)
    await settle(rows, outbox.Outcome([a.id], {b.id: "no such host"}))
    assert await rows.fetch("SELECT key, last_error FROM outbox") == [
        {"key": "b", "last_error": "no such host"}
    ]
    pauses = []
    for _ in range(16):
        pauses.append(
            await rows.value("SELECT ceil(extract(epoch FROM due_at - now())) FROM outbox")
        )
        await rows.execute("UPDATE outbox SET due_at = now()")
        (row,) = await claim(rows)
        await settle(rows, outbox.Outcome([], {row.id: "still"}))
    assert pauses == sorted(pauses)
    assert pauses[-1] <= outbox.RETRY_MAX_S


async def test_keys_may_hold_anything(rows: Rows) -> None:
    """Quotes, colons and braces are data."""
    strange = ["it's", ':name "x"', "{a,b}", "\\N", ""]
    await put(rows, *strange)
    assert sorted(row.key for row in await claim(rows)) == sorted(strange)
