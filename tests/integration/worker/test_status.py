"""What users see of a FluxJob never goes back, whichever worker hangs before it writes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.clock import SystemClock
from fluxqueue.controller.observing import fluxjob_creator
from fluxqueue.db.store.statuses import WrittenStatus, read_statuses, remember_written
from fluxqueue.db.task_queue import TaskName
from fluxqueue.errors import ApiError
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.installation import install_definitions
from fluxqueue.kube.resources import EVENTS, FLUXJOBS, JOBS
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.release import release_workloads
from fluxqueue.worker.status import write_status, write_statuses
from fluxqueue.workload.labels import OWN_NAMESPACE
from fluxqueue.workload.site import DEFAULT_SITE
from localcluster import LocalCluster
from tests.support.clusters import InProcessTransport, config_of
from tests.support.rows import Rows, cpu_node
from tests.support.workers import QUIET, make_job, rows_of


class Waiting(KubeClient):
    """Hangs at some point until the test wakes it, as a stopped process does."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.hangs, self.goes_on = asyncio.Event(), asyncio.Event()

    async def hang(self) -> None:
        """Wait, and have it known."""
        self.hangs.set()
        await self.goes_on.wait()


class HangingClient(Waiting):
    """Hangs before its first write."""

    async def request(self, method: str, path: str, **named: Any) -> dict[str, Any]:
        """Write, when it may."""
        if method != "GET":
            await self.hang()
        return await super().request(method, path, **named)


class CountingClient(KubeClient):
    """Knows by what a status was written."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.asked: list[str] = []
        self.are_put_behind: list[bool] = []

    async def request(self, method: str, path: str, **named: Any) -> dict[str, Any]:
        """All is carried out."""
        if path.endswith("/status"):
            self.asked.append(method)
            self.are_put_behind.append(self._is_background)
        return await super().request(method, path, **named)


class SlowToTell(Waiting):
    """Hangs before each Event."""

    async def request(self, method: str, path: str, **named: Any) -> dict[str, Any]:
        """All else is carried out at once."""
        if path.endswith("/events"):
            await self.hang()
        return await super().request(method, path, **named)


class RefusingClient(KubeClient):
    """Has every Event refused, as a quota does. Its views share ``refused``."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.refused: list[str] = []

    async def request(self, method: str, path: str, **named: Any) -> dict[str, Any]:
        """All else is carried out."""
        if path.endswith("/events"):
            self.refused.append(path)
            raise ApiError(403, "Forbidden", "exceeded quota", {})
        return await super().request(method, path, **named)


@pytest_asyncio.fixture
async def cluster() -> Any:
    """An API server that stores, with our definitions."""
    async with LocalCluster(QUIET) as running, _client(running, KubeClient) as client:
        await install_definitions(client, OWN_NAMESPACE)
        yield running


def _client(cluster: LocalCluster, kind: type[Any]) -> Any:
    return kind(config_of(cluster), transport=InProcessTransport(cluster))


def _context(rows: Rows, client: KubeClient) -> WorkerContext:
    return WorkerContext(rows.database, client, rows.settings, SystemClock(), "w1")


async def _submit(
    rows: Rows, client: KubeClient, name: str, *, is_version_known: bool = True
) -> str:
    """A BatchJob with its FluxJob, as the controller leaves them. Give its UID."""
    seen = await make_job(client, name)
    job = await client.get(JOBS, "default", name)
    made = await client.create(FLUXJOBS, "default", fluxjob_creator._build(job, {}, DEFAULT_SITE))
    uid, version = (made["metadata"][key] for key in ("uid", "resourceVersion"))
    await rows.see(replace(seen, flux_uid=uid, flux_version=version if is_version_known else None))
    return seen.uid


BOTH = pytest.mark.parametrize("is_version_known", [True, False])


@BOTH
async def test_a_first_status_that_comes_late_overwrites_nothing(
    database_url: str, cluster: LocalCluster, is_version_known: bool
) -> None:
    """A worker hangs before the first write of all. Meanwhile another tells what has come of it."""
    async with (
        rows_of(database_url) as rows,
        _client(cluster, KubeClient) as client,
        _client(cluster, HangingClient) as hanging,
    ):
        uid = await _submit(rows, client, "a", is_version_known=is_version_known)
        before = (await read_statuses(rows.database, [uid]))[uid]
        late = asyncio.create_task(write_status(hanging, before))
        await hanging.hangs.wait()
        await rows.add_nodes(cpu_node("n0"))
        await rows.match()
        now = (await read_statuses(rows.database, [uid]))[uid]
        await write_status(client, now)
        hanging.goes_on.set()
        await late
        status = (await client.get(FLUXJOBS, "default", "a-job"))["status"]
        assert (status["state"], status["nodes"]) == ("Allocated", "n0")


async def test_a_status_is_put_in_the_place_of_the_last(
    database_url: str, cluster: LocalCluster
) -> None:
    """And patched where a user has changed the object meanwhile: none of that is lost, and what
    comes after that is put again."""
    async with rows_of(database_url) as rows, _client(cluster, CountingClient) as client:
        uid = await _submit(rows, client, "a")
        made = await client.get(FLUXJOBS, "default", "a-job")

        async def status(reason: str) -> list[str]:
            await rows.execute("UPDATE fluxjobs SET reason = :reason", reason=reason)
            await rows.execute("UPDATE fluxjobs SET status_due_at = now()")
            client.asked.clear()
            await write_statuses(_context(rows, client), [uid])
            now = await client.get(FLUXJOBS, "default", "a-job")
            assert now["status"]["reason"] == reason
            assert now["metadata"]["ownerReferences"] == made["metadata"]["ownerReferences"]
            assert {**made["spec"], "priority": now["spec"]["priority"]} == now["spec"]
            return client.asked

        assert await status("waits for n1") == ["PUT"]
        assert await status("waits for n2") == ["PUT"]
        await client.patch(FLUXJOBS, "default", "a-job", {"spec": {"priority": 7}})
        assert await status("waits for n3") == ["PUT", "PATCH"]
        assert await status("waits for n4") == ["PUT"]
        assert (await client.get(FLUXJOBS, "default", "a-job"))["spec"]["priority"] == 7
        await rows.add_nodes(cpu_node("n0"))
        await rows.match()
        client.asked.clear()
        await release_workloads(_context(rows, client), [uid])
        assert client.asked == ["PUT"], "with the release"
        await remember_written(rows.database, [WrittenStatus(uid, 1, flux_version="1")])
        assert await status("is preempted for job 7") == ["PUT"], "who is late is not believed"


async def test_conditions_have_the_times_of_the_audit_trail(
    database_url: str, cluster: LocalCluster
) -> None:
    """Since when it waits: since it came, also when a reservation came and went. It was queued
    until it got its nodes."""
    async with rows_of(database_url) as rows, _client(cluster, KubeClient) as client:
        uid = await _submit(rows, client, "a")
        times = dict.fromkeys(("Pending", "Reserved", "Allocated"), "")
        for minute, state in enumerate(("Pending", "Reserved", "Pending", "Allocated")):
            at = f"2030-01-01T00:0{minute}:00Z"
            if minute:
                await rows.execute("UPDATE fluxjobs SET state = :state", state=state)
            await rows.execute(
                "UPDATE history SET at = CAST(:at AS text)::timestamptz"
                " WHERE id = (SELECT max(id) FROM history)",
                at=at,
            )
            times[state] = times[state] or at
        await rows.execute(
            "UPDATE fluxjobs SET allocated_at = CAST(:at AS text)::timestamptz",
            at=times["Allocated"],
        )
        row = (await read_statuses(rows.database, [uid]))[uid]
        await write_status(client, row)
        status = (await client.get(FLUXJOBS, "default", "a-job"))["status"]
        found = {
            one["type"]: (one["status"], one["lastTransitionTime"]) for one in status["conditions"]
        }
        assert found["Queued"] == ("False", times["Allocated"])
        assert found["Reserved"] == ("False", "2030-01-01T00:02:00Z")
        assert found["Allocated"] == ("True", times["Allocated"])


async def test_statuses_wait_for_releases_and_those_of_a_release_do_not(
    database_url: str, cluster: LocalCluster
) -> None:
    """A thousand statuses must not be in the way of the next start."""
    async with rows_of(database_url) as rows, _client(cluster, CountingClient) as client:
        uid = await _submit(rows, client, "a")
        await rows.execute("UPDATE fluxjobs SET status_due_at = now()")
        await write_statuses(_context(rows, client), [uid])
        assert set(client.are_put_behind) == {True}
        client.are_put_behind.clear()
        await write_status(client, (await read_statuses(rows.database, [uid]))[uid])
        assert set(client.are_put_behind) == {False}


async def test_an_event_that_is_refused_stops_nobody(
    database_url: str, cluster: LocalCluster
) -> None:
    """The statuses of a batch are written, whatever becomes of its Events."""
    async with rows_of(database_url) as rows, _client(cluster, RefusingClient) as client:
        uids = [await _submit(rows, client, name) for name in ("a", "b")]
        await rows.execute("UPDATE fluxjobs SET status_due_at = now()")  # due a moment later
        await write_statuses(_context(rows, client), uids)
        assert len(client.refused) == 2
        for uid in uids:
            (row,) = (await read_statuses(rows.database, [uid])).values()
            found = await client.get(FLUXJOBS, "default", row.name)
            assert found["status"]["state"] == "Pending"
        assert await rows.value("SELECT count(*) FROM pending_actions WHERE task = 'status'") == 0


async def test_an_event_tells_what_has_changed_in_kind(
    database_url: str, cluster: LocalCluster
) -> None:
    """Not in number. Its reason is that of the conditions, and it names the FluxJob, too."""
    async with rows_of(database_url) as rows, _client(cluster, KubeClient) as client:
        uid = await _submit(rows, client, "a")
        context = _context(rows, client)

        async def status(**changed: object) -> tuple[list[str], set[str]]:
            sets = ", ".join(f"{name} = :{name}" for name in changed)
            await rows.execute(f"UPDATE fluxjobs SET {sets}", **changed)
            await rows.execute("UPDATE fluxjobs SET status_due_at = now()")
            await write_statuses(context, [uid])
            status = (await client.get(FLUXJOBS, "default", "a-job"))["status"]
            assert {one["observedGeneration"] for one in status["conditions"]} == {1}
            events = (await client.list(EVENTS, "default")).items
            assert {one["related"]["name"] for one in events} == {"a-job"}
            events.sort(key=lambda one: int(one["metadata"]["resourceVersion"]))
            return [one["reason"] for one in events], {c["reason"] for c in status["conditions"]}

        assert await status(reason="waits for n1") == (["Queued"], {"Queued"})
        assert await status(reason="waits for n2", position=3) == (["Queued"], {"Queued"})
        over = {"reason": "user bob has 3 of 3", "wait_reason": "OverLimit"}
        assert await status(**over) == (["Queued", "OverLimit"], {"OverLimit"})
        over["reason"] = "user bob has 2 of 2"
        assert await status(**over) == (["Queued", "OverLimit"], {"OverLimit"})
        told, reasons = await status(state="Held", held_by="bob", reason="held by bob")
        assert (told, reasons) == (["Queued", "OverLimit", "Held"], {"Held"})
        row = await rows.fetch("SELECT wait_reason, position FROM fluxjobs")
        assert row == [{"wait_reason": None, "position": None}], "what waits no more has neither"


async def test_two_who_tell_one_start_make_one_event(
    database_url: str, cluster: LocalCluster
) -> None:
    """The worker that starts the pods is slow to report it. Another reports it before they run."""
    async with (
        rows_of(database_url) as rows,
        _client(cluster, KubeClient) as client,
        _client(cluster, SlowToTell) as slow,
    ):
        uid = await _submit(rows, client, "a")
        await rows.add_nodes(cpu_node("n0"))
        await rows.match()
        late = asyncio.create_task(release_workloads(_context(rows, slow), [uid]))
        await slow.hangs.wait()
        await rows.execute("UPDATE fluxjobs SET state = 'Running', started_at = now()")
        await rows.execute("UPDATE fluxjobs SET status_due_at = now()")
        await write_statuses(_context(rows, client), [uid])
        slow.goes_on.set()
        await late
        events = (await client.list(EVENTS, "default")).items
        assert [one["reason"] for one in events] == ["Started"]


async def test_who_is_late_to_tell_does_not_make_it_news_again(
    database_url: str, cluster: LocalCluster
) -> None:
    """It tells that a FluxJob waits after another has told that it is held, which it still is."""
    async with (
        rows_of(database_url) as rows,
        _client(cluster, KubeClient) as client,
        _client(cluster, SlowToTell) as slow,
    ):
        uid = await _submit(rows, client, "a")
        await rows.execute("UPDATE fluxjobs SET status_due_at = now()")
        late = asyncio.create_task(write_statuses(_context(rows, slow), [uid]))
        await slow.hangs.wait()
        held = {"state": "Held", "held_by": "bob", "reason": "held by bob"}
        for number, goes_on in enumerate((False, True)):
            sets = ", ".join(f"{name} = :{name}" for name in held)
            await rows.execute(
                f"UPDATE fluxjobs SET {sets}, published = published || :generation",
                **held,
                generation=f'{{"generation": {number + 2}}}',
            )
            await rows.execute("UPDATE fluxjobs SET status_due_at = now()")
            await write_statuses(_context(rows, client), [uid])
            if not goes_on:
                slow.goes_on.set()
                await late
        events = (await client.list(EVENTS, "default")).items
        assert sorted(one["reason"] for one in events) == ["Held", "Queued"]


async def test_a_task_takes_along_the_others_that_are_due(
    database_url: str, cluster: LocalCluster
) -> None:
    """Many transactions ask for a status at the same moment: one task writes them all."""
    async with rows_of(database_url) as rows, _client(cluster, KubeClient) as client:
        uids = [await _submit(rows, client, name) for name in ("a", "b", "c")]
        await rows.execute("UPDATE fluxjobs SET status_due_at = now() WHERE workload_name <> 'c'")
        await rows.execute(
            "UPDATE procrastinate.procrastinate_jobs SET scheduled_at = now()"
            " WHERE task_name = 'status' AND NOT args -> 'uids' ? :uid",
            uid=uids[2],
        )
        await write_statuses(_context(rows, client), uids[:1])
        told = await rows.fetch(
            "SELECT uid FROM fluxjobs WHERE (published ->> 'version')::bigint = version"
            " ORDER BY jobid"
        )
        assert [row["uid"] for row in told] == uids[:2]
        assert await rows.asked(TaskName.STATUS) == [uids[2]], "it is not due"


@BOTH
async def test_a_status_never_reaches_the_next_workload_of_the_same_name(
    database_url: str, cluster: LocalCluster, is_version_known: bool
) -> None:
    """Told late, when the Job was deleted and made again. What the new one tells is taken."""
    async with rows_of(database_url) as rows, _client(cluster, KubeClient) as client:
        context = _context(rows, client)
        await rows.add_nodes(cpu_node("n0"))
        old = await _submit(rows, client, "a", is_version_known=is_version_known)
        await rows.match()
        late = (await read_statuses(rows.database, [old]))[old]
        await client.delete(JOBS, "default", "a", propagation="Background")
        await client.delete(FLUXJOBS, "default", "a-job")
        new = await _submit(rows, client, "a")
        written = await write_status(context.client, late)
        assert written.is_gone, "an Event has to say how it ended"
        found = await client.get(FLUXJOBS, "default", "a-job")
        assert found["status"] == {"state": "Pending"}, "as the definition's default says"
        await write_status(context.client, (await read_statuses(rows.database, [new]))[new])
        found = await client.get(FLUXJOBS, "default", "a-job")
        assert found["status"]["workloadUID"] == new == found["spec"]["workload"]["uid"]
