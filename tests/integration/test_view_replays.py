"""Replays by the view server: what they answer, to whom, and how they are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from fluxqueue.errors import InvalidInput
from fluxqueue.simulation import swf
from fluxqueue.view import replays
from fluxqueue.view.openapi import document
from fluxqueue.view.replays import (
    AskedReplay,
    ReplayTooLong,
    TimeMachine,
    TooManyReplays,
)
from fluxqueue.view.same_site import ACTING
from fluxqueue.view.sessions import COOKIE
from tests.support.rows import Rows
from tests.support.viewing import EVERYWHERE, Viewing, filled
from tests.support.waiting import eventually

PATH = "/api/v1/replays"


@pytest_asyncio.fixture
async def rows(database_url: str) -> AsyncIterator[Rows]:
    """Two nodes: ``runs`` has both, ``next`` and ``last`` wait, ``over`` ended."""
    async with filled(database_url) as found:
        yield found


async def _post(
    view: Viewing, body: Any, who: str = "admin", **headers: str
) -> tuple[int, dict[str, Any]]:
    token = view.tokens.get(who, who)
    given = {"Authorization": f"Bearer {token}", **headers} if who else headers
    async with view.session.post(view.url + PATH, json=body, headers=given) as told:
        return told.status, await told.json()


async def test_a_replay(view: Viewing, rows: Rows) -> None:
    """It is as documented, with the changes that were asked for."""
    for table, columns in (("fluxjobs", ("submitted_at", "allocated_at")),
                           ("accounting", ("queued_at", "allocated_at", "ended_at"))):  # fmt: skip
        earlier = ", ".join(f"{one} = {one} - interval '1 minute'" for one in columns)
        await rows.execute(f"UPDATE {table} SET {earlier}")
    code, told = await _post(
        view,
        {"from": "1h", "policy": "fcfs", "addNodes": ["2:n1"], "queueWeights": ["default=x2"]},
    )
    assert code == 200, told
    about = document()
    schema = about["paths"][PATH]["post"]["responses"]["200"]["content"]["application/json"]
    jsonschema.validate(told, {**schema["schema"], "components": about["components"]})
    assert told["changes"] == "policy fcfs, 2 more nodes like n1, weight of default times 2"
    assert [one[0] for one in told["nodes"]] == ["n1", "n2", "n1-more1-1", "n1-more1-2"]
    assert told["added"] == 2
    assert {one[2] for one in told["jobs"]} == {"over", "runs"}
    assert told["recorded"]["waits"]["all"]["jobs"] == 2
    assert told["replayed"]["utilisation"]["cpu"] < told["recorded"]["utilisation"]["cpu"]


async def _log(view: Viewing, query: str, who: str = "admin") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {view.tokens.get(who, who)}"}
    async with view.session.get(f"{view.url}/api/v1/swf{query}", headers=headers) as told:
        return told.status, await told.text()


async def test_a_recorded_time_as_a_workload_log(view: Viewing, rows: Rows) -> None:
    """It has the jobs that have ended, and is a download."""
    await rows.execute(
        "UPDATE accounting SET queued_at = queued_at - interval '1 minute',"
        " allocated_at = allocated_at - interval '1 minute',"
        " ended_at = ended_at - interval '1 minute'"
    )
    code, text = await _log(view, "?from=1h")
    assert code == 200, text
    log = swf.parse(text, source="fluxqueue.swf")
    assert log.header["MaxNodes"] == "2"
    (over,) = log.jobs
    assert over.status == swf.COMPLETED
    for query, words in (
        ("?from=never", "from"),
        ("?from=1h&until=2h", "until"),
        ("?policy=fcfs", "no such parameter"),
    ):
        code, text = await _log(view, query)
        assert code == 400
        assert words in text


@pytest.mark.parametrize(
    ("rights", "words"),
    [
        ((("nodes", EVERYWHERE), ("fluxjobs", "default")), "may not list fluxjobs in all"),
        ((("fluxjobs", EVERYWHERE),), "may not list nodes"),
        ((), "may not list nodes"),
    ],
)
async def test_who_may_not_see_all_may_not_replay(
    view: Viewing, rights: tuple[tuple[str, str], ...], words: str
) -> None:
    """It would show the jobs of others."""
    await view.let("carl", *rights)
    code, told = await _post(view, {}, "carl")
    assert code == 403
    assert words in told["detail"]
    code, text = await _log(view, "", "carl")
    assert code == 403
    assert words in text


async def test_another_site_cannot_ask(view: Viewing) -> None:
    """With the cookie of the browser it needs the header of the page."""
    cookie = {"Cookie": f"{COOKIE}={view.tokens.get('admin', 'admin')}"}
    assert (await _post(view, {"from": "1h"}, "", **cookie))[0] == 403
    foreign = {**cookie, ACTING: "1", "Origin": "https://elsewhere.example"}
    assert (await _post(view, {"from": "1h"}, "", **foreign))[0] == 403
    assert (await _post(view, {}, ""))[0] == 401


@pytest.mark.cases_long("other questions")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"from": "tuesday"}, "from = 'tuesday': is not a time. Fix: "),
        ({"from": "0001-01-01"}, "from = '0001-01-01': is not a time of a cluster. Fix: "),
        ({"from": 7}, "from: is not allowed. Fix: "),
        ({"from": "1h\u0000"}, "from"),
        ({"from": "1h", "until": "2h"}, "until: is not after `from`. Fix: "),
        ({"from": "99d"}, "until: is more than 31 days after `from`. Fix: "),
        ({"days": 7}, "days: no such field. Fix: known are from, until"),
        ({"addNodes": "8:n1"}, "addNodes: is no short list. Fix: "),
        ({"addNodes": ["1:n1"] * 21}, "addNodes: is no short list. Fix: "),
        ({"addNodes": [{}]}, "addNodes: is not allowed. Fix: "),
        ({"addNodes": ["8:nowhere"]}, "add-nodes: there is no node 'nowhere'. Fix: "),
        ({"queueWeights": ["gold=2"]}, "queue-weight: there is no queue 'gold'. Fix: "),
        ({"policy": "magic"}, "policy: 'magic' is no queue policy. Fix: one of fcfs"),
        ([], "body"),
    ],
)
async def test_what_cannot_be_replayed(view: Viewing, body: Any, message: str) -> None:
    """Field, value and way out."""
    code, told = await _post(view, body)
    assert code == 400, told
    assert message in told["detail"]


def _asked(**more: Any) -> AskedReplay:
    values: dict[str, Any] = {"policy": "", "nodes": (), "weights": (), **more}
    return AskedReplay(**values)


async def _last_hour(rows: Rows) -> AskedReplay:
    now = int(await rows.value("SELECT extract(epoch FROM now())::float8"))
    return _asked(since_s=now - 3600, until_s=now + 1)


def _children() -> list[int]:
    """Return the processes of replays that this process has started."""
    import os

    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        if parent == os.getpid() and b"simulation.answering" in words:
            found.append(int(folder.name))
    return found


async def _begun() -> list[int]:
    return await eventually(_children, "no process was started")


async def test_one_replay_for_each_user_and_few_at_once(rows: Rows) -> None:
    """The others must wait."""
    machine, asked = TimeMachine(rows.database), await _last_hour(rows)
    first = asyncio.create_task(machine.replay("ada", asked))
    second = asyncio.create_task(machine.replay("bo", asked))
    await asyncio.sleep(0)
    with pytest.raises(TooManyReplays, match="of yours"):
        await machine.replay("ada", asked)
    with pytest.raises(TooManyReplays, match="others"):
        await machine.replay("carl", asked)
    assert len(await first) > 100
    assert len(await second) > 100
    assert len(await machine.replay("ada", asked)) > 100


async def test_a_replay_ends_at_its_deadline(rows: Rows) -> None:
    """Its process as well."""
    machine = TimeMachine(rows.database, deadline_s=0.05)
    with pytest.raises(ReplayTooLong, match=r"took more than 0\.05 s: replay a shorter time"):
        await machine.replay("ada", await _last_hour(rows))
    assert not _children()


async def test_a_replay_ends_with_the_request(rows: Rows) -> None:
    """A user that closes the page leaves no process behind."""
    machine = TimeMachine(rows.database)
    task = asyncio.create_task(machine.replay("ada", await _last_hour(rows)))
    await _begun()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not _children()
    assert len(await machine.replay("ada", await _last_hour(rows))) > 100


async def test_a_replay_has_little_memory(rows: Rows) -> None:
    """Its process ends, and the server does not."""
    machine = TimeMachine(rows.database, memory_bytes=16 * 2**20)
    with pytest.raises(ReplayTooLong, match="more memory or time"):
        await machine._ask(b" " * (64 * 2**20))
    assert len(await machine.replay("ada", await _last_hour(rows))) > 100


async def test_too_many_jobs(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused before they are read into memory."""
    monkeypatch.setattr(replays, "JOBS_MAX", 1)
    with pytest.raises(InvalidInput, match="until: there are more than 1 jobs"):
        await TimeMachine(rows.database).replay("ada", await _last_hour(rows))


async def test_the_process_has_no_secret(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the environment but what starts Python."""
    monkeypatch.setenv("DATABASE_URL", "postgresql://x:secret@nowhere/x")
    machine = TimeMachine(rows.database)
    task = asyncio.create_task(machine.replay("ada", await _last_hour(rows)))
    (pid,) = await _begun()
    assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
    await task
