"""A database that goes back is seen by the first transaction that would decide on it."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxqueue.db import leadership
from fluxqueue.db.database import Database
from fluxqueue.db.epoch import Marks, read_marks
from fluxqueue.errors import DatabaseWentBack, LostLeadership
from fluxqueue.worker.schedule import ROLE
from tests.support.rows import Rows, cpu_node, workload

CONTROLLER = leadership.CONTROLLER
_KEPT = "SELECT role, term, commits FROM leadership"


async def _decide(database: Database, role: str, term: int) -> None:
    async with database.begin() as tx:
        await leadership.check_term(tx, role, term)


async def _observe(database: Database, term: int) -> None:
    async with database.begin() as tx:
        await leadership.check_term(tx, CONTROLLER, term)
        await leadership.confirm(tx, CONTROLLER, term=term, duration_s=60)


async def _is_observed(database: Database) -> bool:
    async with database.begin() as tx:
        return await leadership.is_observed(tx)


@asynccontextmanager
async def _set_back(rows: Rows) -> AsyncIterator[None]:
    """What is committed inside is lost: the counts are as before."""
    before = await rows.fetch(_KEPT)
    yield
    for row in before:
        await rows.execute(
            "UPDATE leadership SET term = :term, commits = :commits WHERE role = :role", **row
        )


@pytest.mark.parametrize("role", [CONTROLLER, ROLE])
async def test_a_lost_commit_ends_all_terms(rows: Rows, role: str) -> None:
    """Whichever role has lost one. Nothing is decided until the rows are compared again."""
    database = rows.database
    terms = {one: await leadership.seize(database, one, "a") for one in (CONTROLLER, ROLE)}
    await _observe(database, terms[CONTROLLER])
    await _decide(database, ROLE, terms[ROLE])
    async with _set_back(rows):
        await _decide(database, role, terms[role])
    with pytest.raises(DatabaseWentBack):
        await _decide(database, role, terms[role])
    assert not await _is_observed(database)
    for one in (CONTROLLER, ROLE):
        with pytest.raises(LostLeadership):
            await _decide(database, one, terms[one])
    # Another process that has seen the same finds it done.
    terms = {one: await leadership.seize(database, one, "b") for one in (CONTROLLER, ROLE)}
    assert not await _is_observed(database)
    await _observe(database, terms[CONTROLLER])
    assert await _is_observed(database)
    await _decide(database, ROLE, terms[ROLE])


async def test_another_role_sees_what_it_has_read(rows: Rows) -> None:
    """The matcher has seen a commit of the controller that is lost, and none of its own is."""
    database = rows.database
    matcher = await leadership.seize(database, ROLE, "a")
    controller = await leadership.seize(database, CONTROLLER, "a")
    async with _set_back(rows):
        await _observe(database, controller)
        await _decide(database, ROLE, matcher)
    await rows.execute("UPDATE leadership SET commits = 90 WHERE role = 'matcher'")
    with pytest.raises(DatabaseWentBack):
        await _decide(database, ROLE, matcher)


async def test_what_is_rolled_back_was_not_seen(rows: Rows) -> None:
    term = await leadership.seize(rows.database, ROLE, "a")

    async def fail() -> None:
        async with rows.database.begin() as tx:
            await leadership.check_term(tx, ROLE, term)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    await _decide(rows.database, ROLE, term)


async def test_numbers_that_were_given_are_not_given_again(rows: Rows) -> None:
    """Nothing in the cluster has them any more."""
    term = await leadership.seize(rows.database, ROLE, "a")
    for uid in ("a", "b", "c"):
        await rows.see(workload(uid))
    await _decide(rows.database, ROLE, term)
    await rows.execute("DELETE FROM fluxjobs")
    await rows.execute("SELECT setval('fluxjobs_jobid_seq', 1)")
    await rows.execute("UPDATE leadership SET commits = 0")
    with pytest.raises(DatabaseWentBack):
        await _decide(rows.database, ROLE, term)
    await rows.see(workload("d"))
    assert await rows.value("SELECT jobid FROM fluxjobs") == 4


async def test_another_timeline_is_seen_without_memory(rows: Rows) -> None:
    """A replica took over, and all processes have started again."""
    term = await leadership.seize(rows.database, CONTROLLER, "a")
    await _observe(rows.database, term)
    await rows.execute("UPDATE leadership SET timeline = '000000FF'")
    settings = dataclasses.replace(
        rows.settings, database_url=rows.database.engine.url.render_as_string(hide_password=False)
    )
    async with Database(settings, role="worker") as fresh:
        assert not await _is_observed(fresh)
        with pytest.raises(DatabaseWentBack):
            await leadership.try_acquire(fresh, ROLE, "b", duration_s=60)
        assert await leadership.try_acquire(fresh, ROLE, "b", duration_s=60) is not None
        assert not await _is_observed(fresh)


async def test_the_matcher_reads_everything_anew(rows: Rows) -> None:
    """Its graph has nodes given away that the rows do not know of."""
    await rows.add_nodes(cpu_node("n0", cpu=1))
    await rows.see(workload("a"))
    await rows.match()
    assert rows.matcher is not None
    await rows.execute("UPDATE leadership SET commits = 0")
    with pytest.raises(DatabaseWentBack):
        await rows.matcher.run()
    assert rows.matcher._matcher is None


marks = st.builds(
    Marks,
    st.dictionaries(st.sampled_from([ROLE, CONTROLLER]), st.tuples(*[st.integers(0, 9)] * 2)),
    st.integers(0, 9),
)


@given(marks, marks)
def test_marks_only_rise(one: Marks, other: Marks) -> None:
    both = one.copy()
    both.note(other)
    assert not one.exceed(both)
    assert not other.exceed(both)
    assert read_marks(both.to_text()) == both


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", "null", '{"roles": 3}', '{"roles": {"a": [1]}, "jobid": 1}'),
        *('{"roles": {"matcher": [1, -1]}, "jobid": 1}', '{"roles": {}, "jobid": 1e300}'),
    ],
)
def test_an_unusable_annotation_says_nothing(text: str) -> None:
    """Any process that may update the Lease can write it."""
    assert read_marks(text) == Marks()
