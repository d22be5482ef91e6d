"""An index keeps its slot: whatever else ends beside it, however it is seen, and after a rebuild.

Eight indexes on eight nodes of one slot each, so that the node tells the slot.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest

from fluxqueue.db.store.rebuild import Found, take_over
from fluxqueue.db.store.reconciling import Ungate
from fluxqueue.db.task_queue import TaskName
from fluxqueue.fluxjob.indexes import as_multirange
from fluxqueue.fluxjob.pod_facts import PodFact
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.scheduler.adoption import PlacedPod
from fluxqueue.scheduler.record import DecisionRecord
from fluxqueue.scheduler.resource_set import GivenSlots
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, pod, workload

WIDTH = 8


@dataclass
class Indexed:
    """An Indexed BatchJob of ``completions`` indexes, ``WIDTH`` at once, and its pods."""

    rows: Rows
    completions: int = WIDTH
    pods: dict[str, PodFact] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    is_index_told: bool = True

    async def start(self) -> None:
        """All of the first indexes run."""
        await self.rows.add_nodes(*(cpu_node(f"n{n}", cpu=2) for n in range(WIDTH)))
        await self.see()
        await self.rows.match()
        self.make(*range(WIDTH))
        await self.look()
        assert len(await self.homes()) == WIDTH

    def make(self, *indexes: int, generation: str = "a") -> None:
        """Gated pods of these indexes."""
        for index in indexes:
            uid = f"{index}{generation}"
            told = index if self.is_index_told else None
            self.pods[uid] = pod(uid, index=told)

    def end(self, phase: str, *uids: str, **more: bool) -> None:
        """These pods end."""
        for uid in uids:
            self.pods[uid] = replace(self.pods[uid], phase=phase, **more)

    def forget(self, *uids: str) -> None:
        """These pods are gone."""
        for uid in uids:
            del self.pods[uid]

    async def see(self, pods: Iterable[PodFact] | None = None) -> None:
        """The controller writes what it sees: also what pods tell and status does not yet."""
        seen = tuple(self.pods.values() if pods is None else pods)
        succeeded = {one.index for one in seen if one.phase == "Succeeded"}
        over = self.ended | {index for index in succeeded if index is not None}
        ranges = [(index, index + 1) for index in over]
        is_told = self.is_index_told
        await self.rows.see(
            workload(
                "a",
                request(WIDTH, cpu=2),
                wanted=min(WIDTH, self.completions - len(over)),
                is_suspended=False,
                pods=seen,
                ended_indexes=as_multirange([*ranges, (self.completions, None)] if is_told else []),
            )
        )

    async def look(self) -> list[Ungate]:
        """Seen and settled. A pod with a slot is released and runs there."""
        await self.see()
        ungates = await self.rows.reconcile("a")
        for one in ungates:
            started = replace(self.pods[one.pod_uid], phase="Running", is_gated=False)
            self.pods[one.pod_uid] = replace(started, node=one.to.name)
        await self.see()
        await self.rows.reconcile("a")
        await self.rows.check()
        return ungates

    async def homes(self) -> dict[str, tuple[int, str]]:
        """Slot and node of each pod."""
        rows = await self.rows.slots("a")
        return {uid: (number, node) for number, node, _, uid in rows if uid is not None}

    async def returned(self) -> set[int]:
        """Numbers of the slots that went back."""
        return {row[0] for row in await self.rows.slots("a") if row[2] == "returned"}


@pytest.mark.parametrize(("failed", "succeeded"), [(2, 5), (5, 2)])
async def test_the_slot_of_the_index_that_succeeded_goes_back(
    rows: Rows, failed: int, succeeded: int
) -> None:
    """In one observation one fails and another succeeds, of a lower number or of a higher one."""
    job = Indexed(rows)
    await job.start()
    before = await job.homes()
    job.end("Failed", f"{failed}a")
    job.end("Succeeded", f"{succeeded}a")
    await job.look()
    assert await job.returned() == {succeeded}
    job.make(failed, generation="b")
    await job.look()
    assert (await job.homes())[f"{failed}b"] == before[f"{failed}a"]


async def test_a_newcomer_takes_the_slot_of_one_that_succeeded(rows: Rows) -> None:
    """More indexes than slots: the next one comes before the replacement does, and both get one."""
    job = Indexed(rows, completions=20)
    await job.start()
    before = await job.homes()
    job.end("Failed", "0a", "2a", "6a")
    job.end("Succeeded", "5a", "1a")
    await job.look()
    assert await job.returned() == set()
    job.make(8, 9)
    job.make(6, generation="b")
    await job.look()
    job.make(0, 2, generation="b")
    await job.look()
    after = await job.homes()
    assert [after[f"{n}b"] for n in (0, 2, 6)] == [before[f"{n}a"] for n in (0, 2, 6)]
    assert {after["8a"], after["9a"]} == {before["5a"], before["1a"]}


async def test_status_before_pods_and_pods_before_status(rows: Rows) -> None:
    """Job and pods are watched apart: what is known of one and not of the other loses no slot."""
    job = Indexed(rows)
    await job.start()
    before = await job.homes()
    job.end("Failed", "2a")
    job.ended = {5}  # status tells. The pod is still seen to run
    await job.look()
    assert await job.returned() == set()
    job.forget("5a", "2a")  # never seen to have succeeded
    await job.look()
    assert await job.returned() == {5}
    job.ended = set()  # an older status, once more
    await job.look()
    job.make(2, generation="b")
    await job.look()
    assert (await job.homes())["2b"] == before["2a"]


async def test_a_newcomer_waits_while_it_is_not_known_who_has_ended(rows: Rows) -> None:
    """Pod 5 was gone before its success was seen: 8 gets its slot when status tells."""
    job = Indexed(rows, completions=20)
    await job.start()
    before = await job.homes()
    job.end("Failed", "2a")
    job.forget("5a")
    job.make(8)
    assert await job.look() == []
    assert await rows.value("SELECT lacking FROM fluxjobs") == 0
    job.ended = {5}
    await job.look()
    assert (await job.homes())["8a"] == before["5a"]
    job.make(2, generation="b")
    await job.look()
    assert (await job.homes())["2b"] == before["2a"]


async def test_no_slot_is_kept_for_an_index_that_failed_for_good(rows: Rows) -> None:
    """``backoffLimitPerIndex``: status lists it, and the next index takes its place."""
    job = Indexed(rows, completions=10)
    await job.start()
    before = await job.homes()
    job.end("Failed", "2a", "5a")
    await job.look()
    job.ended = {2}
    job.make(8)
    await job.look()
    assert (await job.homes())["8a"] == before["2a"]
    job.make(5, generation="b")
    await job.look()
    assert (await job.homes())["5b"] == before["5a"]
    job.end("Failed", "5b")
    job.ended = {2, 5}
    job.make(9)
    await job.look()
    assert (await job.homes())["9a"] == before["5a"]


async def test_a_kept_slot_is_not_lost_to_a_pod_that_will_not_come(rows: Rows) -> None:
    """The BatchJob has as many pods as it may have: waiting pods get what there is."""
    job = Indexed(rows, completions=20)
    await job.start()
    job.end("Failed", "2a")
    job.make(8)  # in place of 2, as no Job controller does
    await job.look()
    assert (await job.homes())["8a"][0] == 2


async def test_a_replacement_waits_for_its_slot_while_its_predecessor_goes(rows: Rows) -> None:
    """Also beside the slot of one that has succeeded, which goes back."""
    job = Indexed(rows)
    await job.start()
    before = await job.homes()
    job.pods["2a"] = replace(job.pods["2a"], is_terminating=True)
    job.end("Succeeded", "5a")
    job.make(2, generation="b")
    assert await job.look() == []
    assert await job.returned() == {5}
    job.forget("2a")
    await job.look()
    assert (await job.homes())["2b"] == before["2a"]


async def test_on_a_lost_node_nobody_waits_for_a_pod_to_go(rows: Rows) -> None:
    """Such a pod may stay for ever: its replacement gets a slot elsewhere, that is its own then."""
    job = Indexed(rows)
    await job.start()
    before = await job.homes()
    await rows.add_nodes(cpu_node("spare", cpu=2))
    job.pods["2a"] = replace(job.pods["2a"], is_terminating=True)
    job.make(2, generation="b")
    await job.look()
    await rows.forget_tasks()
    await rows.add_nodes(cpu_node(before["2a"][1], cpu=2, is_up=False))
    assert await rows.asked(TaskName.RECONCILE) == ["a"], "nobody else would look at it"
    await job.look()
    assert await rows.value("SELECT lacking FROM fluxjobs") == 1
    await rows.match()
    await job.look()
    assert (await job.homes())["2b"][1] == "spare"
    await rows.add_nodes(cpu_node(before["2a"][1], cpu=2))
    job.forget("2a")
    await job.look()
    assert await job.returned() == {before["2a"][0]}
    job.end("Failed", "2b")
    job.make(2, generation="c")
    await job.look()
    assert (await job.homes())["2c"][1] == "spare"


async def test_a_refused_index_is_matched_anew_and_others_keep_theirs(rows: Rows) -> None:
    """The refused one goes elsewhere. The one that failed beside it stays where it was."""
    job = Indexed(rows)
    await job.start()
    before = await job.homes()
    await rows.add_nodes(cpu_node("spare", cpu=2))
    job.end("Failed", "2a", is_refused=True)
    job.end("Failed", "3a")
    await job.look()
    job.make(2, 3, generation="b")
    await job.look()
    await rows.match()
    await job.look()
    after = await job.homes()
    assert after["3b"] == before["3a"]
    assert after["2b"][1] == "spare"


async def test_pods_without_an_index_share_their_slots(rows: Rows) -> None:
    """As ever: any replacement takes any slot, and the spare one goes back."""
    job = Indexed(rows, is_index_told=False)
    await job.start()
    job.end("Failed", "2a")
    job.end("Succeeded", "5a")
    job.ended = {5}
    await job.look()
    assert await job.returned() == {5}
    job.make(2, generation="b")
    await job.look()
    assert (await job.homes())["2b"][0] == 2


async def test_an_empty_database_learns_whose_slots_they_are(rows: Rows) -> None:
    """From R and the pods, those that failed among them: the same node, beside one that ended."""
    await rows.add_nodes(*(cpu_node(f"n{n}", cpu=2) for n in range(WIDTH)))
    job = Indexed(rows)
    job.ended = {2}
    homes = {n: (n + 3) % WIDTH for n in range(WIDTH)}  # R's order is not that of the indexes
    for index in set(homes) - {2, 5}:
        node = f"n{homes[index]}"
        job.pods[f"{index}a"] = pod(f"{index}a", "Running", is_gated=False, index=index, node=node)
    record = DecisionRecord(
        "flux-a",
        state=FluxJobState.RUNNING,
        jobid=1,
        version=9,
        given=GivenSlots(tuple((f"n{n}", {"cpu": 2}) for n in range(WIDTH)), 100, None),
    )
    seen = workload(
        "a",
        request(WIDTH, cpu=2),
        wanted=7,
        is_suspended=False,
        ended_indexes="{[2,3),[8,)}",
        pods=tuple(job.pods.values()),
    )
    placed = tuple(
        PlacedPod(one.uid, one.name, one.node, {"cpu": 2}, one.phase, one.index)
        for one in job.pods.values()
    )
    async with rows.database.begin() as tx:
        await take_over(tx, [Found(seen, record, placed, {5: f"n{homes[5]}"})])
    job.make(5, generation="b")
    await job.look()
    assert await job.returned() == {homes[2]}
    assert (await job.homes())["5b"][1] == f"n{homes[5]}"


@pytest.mark.cases_long("other stories")
@pytest.mark.parametrize("seed", range(3))
async def test_an_index_stays_where_it_was_whatever_is_seen(rows: Rows, seed: int) -> None:
    """Random ends, seen late, twice and without one another, until all is over."""
    draw = random.Random(seed)
    job = Indexed(rows, completions=draw.choice((WIDTH, WIDTH + 3, 2 * WIDTH)))
    await job.start()
    homes = {int(uid[:-1]): home for uid, home in (await job.homes()).items()}
    generation = dict.fromkeys(homes, 0)
    for _ in range(200):
        running = [uid for uid, one in job.pods.items() if one.phase == "Running"]
        for uid in draw.sample(running, min(len(running), draw.randrange(4))):
            job.end("Failed" if draw.random() < 0.5 else "Succeeded", uid)
        if draw.random() < 0.4:
            await job.see()  # seen, and not settled before more has happened
        for uid, one in list(job.pods.items()):
            if one.is_terminal and draw.random() < 0.3:
                if one.phase == "Succeeded" and one.index is not None:
                    job.ended.add(one.index)  # status first, then its finalizer
                job.forget(uid)
        over = job.ended | {p.index for p in job.pods.values() if p.phase == "Succeeded"}
        there = {p.index for p in job.pods.values() if not p.is_terminal}
        missing = [n for n in range(job.completions) if n not in over | there]
        for index in missing[: max(0, WIDTH - len(there))]:
            if draw.random() < 0.6:
                generation[index] = generation.get(index, -1) + 1
                job.make(index, generation=f"-{generation[index]}")
            else:
                break  # the lowest first, as the Job controller does
        await job.look()
        for uid, home in (await job.homes()).items():
            index = job.pods[uid].index
            assert index is not None
            assert homes.setdefault(index, home) == home, f"index {index} has moved"
        if len(over) == job.completions:
            return
    raise AssertionError(f"not over: {job.ended}, {job.pods}")
