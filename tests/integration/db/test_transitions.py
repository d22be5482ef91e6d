"""The transition table of the code and that of the database, edge by edge. The triggers."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import DBAPIError

from fluxqueue.db.task_queue import TaskName
from fluxqueue.fluxjob.states import TRANSITIONS, FluxJobState
from tests.support.rows import Rows, workload

EDGES = [(old, new) for old in FluxJobState for new in FluxJobState]

_WRITTEN = "UPDATE fluxjobs SET published = published || jsonb_build_object('version', version)"


async def test_sql_function_equals_the_table(rows: Rows) -> None:
    """Every pair of states gets the same answer from both."""
    answers = await rows.fetch(
        "SELECT o, n, fluxjob_transition_allowed(o, n) AS allowed"
        " FROM unnest(CAST(:s AS text[])) o, unnest(CAST(:s AS text[])) n",
        s=[str(state) for state in FluxJobState],
    )
    of_sql = {(row["o"], row["n"]): row["allowed"] for row in answers}
    of_code = {(str(o), str(n)): o is n or n in TRANSITIONS[o] for o, n in EDGES}
    assert of_sql == of_code


async def force(rows: Rows, state: FluxJobState) -> None:
    """A FluxJob in ``state``, however one gets there."""
    ended = "now()" if state.is_final else "NULL"
    async with rows.database.begin() as tx:
        await tx.execute("ALTER TABLE fluxjobs DISABLE TRIGGER fluxjobs_before_update")
        await tx.execute(
            f"UPDATE fluxjobs SET state = :state, ended_at = {ended},"
            " reason = '', observed = CASE WHEN :state = 'Gathering'"
            " THEN '{\"missing\": 1, \"gather_s\": 600}' ELSE '{}' END::jsonb",
            state=state,
        )
        await tx.execute("ALTER TABLE fluxjobs ENABLE TRIGGER fluxjobs_before_update")
        await tx.execute("DELETE FROM procrastinate.procrastinate_jobs")
        await tx.execute(_WRITTEN)
        await tx.execute("DELETE FROM history")


async def written_version(rows: Rows) -> None:
    """Each process has seen how it is, and nothing is under way."""
    await rows.execute(_WRITTEN)
    await rows.forget_tasks()


async def test_each_edge_is_taken_or_refused_by_the_trigger(rows: Rows) -> None:
    """A legal one leaves a status effect and an audit line. An illegal one changes nothing."""
    await rows.see(workload("a"))
    for old, new in EDGES:
        if old is not new:
            await force(rows, old)
            await _try_edge(rows, old, new)


async def _try_edge(rows: Rows, old: FluxJobState, new: FluxJobState) -> None:
    ended = "now()" if new.is_final else "NULL"
    # No job enters or leaves this state but by what is missing. See test_gathering.
    missing = new is FluxJobState.GATHERING
    observed = '{"missing": 1, "gather_s": 600, "gather_reason": "why"}' if missing else "{}"
    to = FluxJobState.PENDING if missing else new
    move = f"UPDATE fluxjobs SET state = :new, reason = 'why', ended_at = {ended}"
    move += f", observed = '{observed}'"
    if new not in TRANSITIONS[old]:
        with pytest.raises(DBAPIError, match="is not a transition"):
            await rows.execute(move, new=str(to))
        assert await rows.states() == {"a": str(old)}
        assert await rows.fetch("SELECT 1 FROM history") == []
        return
    await rows.execute(move, new=str(to))
    assert await rows.asked(TaskName.STATUS) == ["a"]
    assert await rows.value(
        "SELECT coalesce((published ->> 'version')::bigint, 0) < version FROM fluxjobs"
    )
    (line,) = await rows.fetch("SELECT uid, jobid, actor, event, detail FROM history")
    assert line["event"] == str(new)
    assert line["actor"] == "test"
    assert line["detail"] == {"from": str(old), "reason": "why"}


async def test_what_nobody_sees_makes_no_noise(rows: Rows) -> None:
    """Columns the FluxJob object does not show change without an effect or a version."""
    await rows.see(workload("a"))
    version = await rows.value("SELECT version FROM fluxjobs")
    await written_version(rows)
    await rows.execute("UPDATE fluxjobs SET observed = '{\"wanted\": 7}', is_examined = true")
    assert await rows.value("SELECT version FROM fluxjobs") == version
    assert await rows.asked(TaskName.STATUS) == []


async def test_what_users_see_is_published_without_an_audit_line(rows: Rows) -> None:
    """The same state, another figure: a status effect, no transition."""
    await rows.see(workload("a"))
    before = await rows.value("SELECT count(*) FROM history")
    for change in (
        "reason = 'x'",
        "overrides = '{\"priority\": 5}'",
        "queue = 'q'",
        "expected_start = now()",
    ):
        await written_version(rows)
        await rows.execute(f"UPDATE fluxjobs SET {change}")
        assert await rows.asked(TaskName.STATUS) == ["a"]
    assert await rows.value("SELECT count(*) FROM history") == before


async def test_an_actor_in_psql_is_named_by_its_session(rows: Rows, database_url: str) -> None:
    """The user who changes rows by hand stands in the audit trail."""
    import psycopg

    await rows.see(workload("a"))
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as hand:
        cursor = await hand.execute("SELECT session_user")
        (user,) = await cursor.fetchone() or ("",)
        await hand.execute("UPDATE fluxjobs SET state = 'Held', held_by = session_user")
    assert await rows.value("SELECT actor FROM history ORDER BY id DESC LIMIT 1") == user
