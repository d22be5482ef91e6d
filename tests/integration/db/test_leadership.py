"""Terms: one at a time, and none that is over commits anything."""

from __future__ import annotations

import asyncio

import pytest

from fluxqueue.db import leadership
from fluxqueue.db.database import Database
from fluxqueue.errors import LostLeadership
from fluxqueue.worker.schedule import ROLE, CycleRunner
from tests.support.rows import Rows, cpu_node, workload
from tests.support.waiting import eventually


async def acquire(database: Database, holder: str, duration_s: float = 60) -> int | None:
    """Begin a term."""
    return await leadership.try_acquire(database, ROLE, holder, duration_s=duration_s)


async def renew(database: Database, holder: str, term: int, duration_s: float = 60) -> bool:
    """Keep a term."""
    return await leadership.renew(database, ROLE, holder, term=term, duration_s=duration_s)


async def test_one_holder_at_a_time(database: Database) -> None:
    """Another gets nothing until the time runs out. Then a higher term."""
    assert await acquire(database, "a") == 1
    assert await acquire(database, "b") is None
    assert await renew(database, "a", 1, duration_s=-1)
    assert await acquire(database, "b") == 2
    assert not await renew(database, "a", 1)


async def test_a_restarted_process_begins_a_new_term(database: Database) -> None:
    """The same name is not the same process: what the old one still has in flight is fenced."""
    assert await acquire(database, "a") == 1
    assert await acquire(database, "a") == 2
    assert not await renew(database, "a", 1)
    assert await renew(database, "a", 2)


async def test_an_expired_term_may_be_renewed_while_nobody_took_it(database: Database) -> None:
    """Late, but first: no other matcher decided anything meanwhile."""
    assert await acquire(database, "a", duration_s=-1) == 1
    assert await renew(database, "a", 1)
    assert await acquire(database, "b") is None


async def test_resigning_lets_the_next_in_at_once(database: Database) -> None:
    """And only the holder of that term may resign it."""
    assert await acquire(database, "a") == 1
    assert await acquire(database, "a") == 2
    await leadership.resign(database, ROLE, "a", term=1)
    assert await acquire(database, "b") is None
    await leadership.resign(database, ROLE, "a", term=2)
    assert await acquire(database, "b") == 3


async def test_many_at_once_one_wins(database: Database) -> None:
    """Ten begin together: one term, one holder."""
    terms = await asyncio.gather(*(acquire(database, f"w{n}") for n in range(10)))
    assert sorted(t for t in terms if t is not None) == [1]


async def test_an_old_term_commits_nothing(rows: Rows) -> None:
    """A matcher that slept through its term decides, and nothing of it is stored."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.begin_term()
    old = rows.matcher
    assert old is not None
    await rows.begin_term()
    await rows.see(workload("a"))
    with pytest.raises(LostLeadership, match="our term is 1, the current one is 2"):
        await old.run()
    assert await rows.states() == {"a": "Pending"}
    assert await rows.fetch("SELECT 1 FROM allocations") == []
    assert await rows.fetch("SELECT key FROM graph_changes") != [], "its changes were not consumed"
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}
    assert await rows.value("SELECT term FROM allocations") == 2


async def test_a_term_that_ends_during_a_cycle_waits_for_its_commit(rows: Rows) -> None:
    """Taking over waits for the running transaction, so two can never interleave."""
    await rows.begin_term()
    async with rows.database.begin() as tx:
        await leadership.check_term(tx, ROLE, rows.term)
        taking = asyncio.create_task(leadership.seize(rows.database, ROLE, "next"))
        await asyncio.wait([taking], timeout=0.3)
        assert not taking.done()
    assert await taking == rows.term + 1


async def test_two_matchers_at_once_allocate_nothing_twice(rows: Rows) -> None:
    """One is fenced. Whichever, the rows stay sound and each job is placed at most once."""
    await rows.add_nodes(cpu_node("n0", cpu=10))
    await rows.begin_term()
    first = rows.matcher
    assert first is not None
    for number in range(20):
        await rows.see(workload(f"j{number:02}"))
    term = await leadership.seize(rows.database, ROLE, "second")
    second = CycleRunner(rows.context(), term)
    outcomes = await asyncio.gather(first.run(), second.run(), return_exceptions=True)
    assert isinstance(outcomes[0], LostLeadership)
    assert outcomes[1] is None
    assert await rows.value("SELECT count(*) FROM allocations WHERE is_live") == 10
    await rows.check()


async def test_no_cycle_sees_half_of_what_is_made_beside_what_runs(rows: Rows) -> None:
    """Rows that wait and rows that have their nodes come in one transaction: it waits for both."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a"))
    await rows.match()
    async with rows.database.begin() as tx:
        await leadership.hold_decisions(tx)
        cycle = asyncio.create_task(rows.match())
        blocked = (
            "SELECT FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND query LIKE '%UPDATE leadership l SET commits%'"
        )
        await eventually(lambda: rows.fetch(blocked), "a cycle waits")
    await cycle
