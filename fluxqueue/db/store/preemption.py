"""Preemption in rows: candidates, pairs of victim and preemptor, and requests to leave.

The worker that holds the matcher's role calls it. A cycle reads and decides (``read_candidates``,
``read_under_way``, ``store``) without locking any FluxJob. Reconciling locks FluxJobs in another
order, so locks of both kinds in one transaction could deadlock. ``carry_out`` follows the cycle in
a separate transaction. The rows keep it pending until it has happened. After a crash in between,
the next cycle finds it, and the sweep asks for that cycle.

A victim is requeued in the same way as by hand (``steering``). It is suspended, its pods end, its
resources are returned, and it waits at its old place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns, value
from fluxqueue.db.store.cluster_rows import tell_matcher
from fluxqueue.db.store.moves import give_reasons, vacate
from fluxqueue.db.store.notices import Notice, leave_notices
from fluxqueue.fluxjob.holders import by_preemptor
from fluxqueue.fluxjob.states import RELEASED
from fluxqueue.fluxjob.times import to_rfc3339
from fluxqueue.scheduler.cycle_decisions import Decisions
from fluxqueue.scheduler.preemption_plan import MakingWay, PreemptionCandidate, Victim

PLANNED, PREEMPTED, SPARED, PREEMPTING = (
    "PreemptionPlanned",
    "Preempted",
    "PreemptionOff",
    "Preempting",
)
"""Events in ``history``, and the reasons of the Events on the workloads.

The first are those of a victim, the other one is that of a preemptor.
"""


class VictimRow(NamedTuple):
    """A victim of a preemption that is wanted. ``is_gone``: its allocation has ended."""

    preemptor: str
    victim: str
    jobid: int
    vacate_at: int
    is_gone: bool
    grace_s: int


class PreemptionRow(NamedTuple):
    """A preemption with something to announce or to do.

    ``is_staying``: the victim still runs, and nothing else ends it.
    """

    victim: str
    allocation_id: int
    preemptor: str
    jobid: int
    vacate_at: int
    is_told: bool
    is_vacated: bool
    is_off: bool
    reason_before: str
    victim_jobid: int
    reason: str
    namespace: str | None
    preemptor_namespace: str | None
    preemptor_name: str | None
    is_staying: bool


async def read_standings(tx: Transaction, uids: Collection[str]) -> dict[str, int]:
    """Return the part of each FluxJob's priority that counts for preemption, by UID."""
    return dict(await tx.fetch(Q.standings, columns, uids=list(uids)))


async def read_candidates(
    tx: Transaction, queues: Collection[str], below: int
) -> list[PreemptionCandidate]:
    """Return what runs in ``queues``, can be requeued, and has a standing lower than ``below``."""
    return await tx.fetch(
        Q.preemption_candidates, PreemptionCandidate, queues=sorted(queues), below=below
    )


async def read_under_way(tx: Transaction) -> dict[str, MakingWay]:
    """Return the victims of each preemptor, by the UID of the preemptor."""
    rows = await tx.fetch(Q.preemptions_under_way, VictimRow)
    found: dict[str, MakingWay] = {}
    for row in rows:
        one = found.get(row.preemptor) or MakingWay((), row.vacate_at)
        victims = (*one.victims, Victim(row.victim, row.jobid))
        gone = one.gone | {row.victim} if row.is_gone else one.gone
        grace_s = max(one.grace_s, row.grace_s)
        found[row.preemptor] = replace(one, victims=victims, gone=gone, grace_s=grace_s)
    return found


async def store(tx: Transaction, decisions: Decisions, under_way: Mapping[str, MakingWay]) -> None:
    """Write the new preemptions of this cycle, and mark those that are no longer wanted."""
    over = [uid for uid in under_way if uid not in decisions.making_way]
    if over:
        spared = await tx.fetch(Q.stop_preemptions, str, over=over)
        # The planned end of a spared victim is its former one again, so the matcher must read it
        # again.
        await tell_matcher(tx, "allocation", spared)
    new = [
        {"victim": one.uid, "preemptor": job.uid, "jobid": job.jobid, "at": making_way.vacate_at}
        for job, making_way in decisions.preempted
        for one in making_way.victims
    ]
    if new:
        await tx.execute(Q.store_preemptions, rows=new)


@dataclass(slots=True)
class Carried:
    """What has been done. ``next_at``: when the next victim has to leave (epoch seconds)."""

    notices: list[Notice] = field(default_factory=list)
    next_at: int | None = None

    def count(self, event: str) -> int:
        """Count the notices of this event."""
        return sum(one.event == event for one in self.notices)


async def carry_out(tx: Transaction, now: int) -> Carried:
    """Announce new preemptions, requeue victims that are due, and spare those no longer wanted.

    Parameters
    ----------
    tx : under the matcher's term.
    now : the time of the last cycle (epoch seconds). That cycle wanted all that is not off.
    """
    await tx.execute(Q.lock_preempted, now=now)
    rows = await tx.fetch(Q.pending_preemptions, PreemptionRow, now=now)
    carried = Carried()
    # Lock before reading: otherwise a victim could end between the decision and the write.
    await _spare(tx, carried, [row for row in rows if row.is_off])
    wanted = [row for row in rows if not row.is_off]
    await _vacate(tx, carried, [row for row in wanted if row.vacate_at <= now])
    await _announce(tx, carried, [row for row in wanted if row.vacate_at > now])
    _tell_preemptors(carried, [row for row in wanted if not row.is_told])
    await tx.execute(
        Q.mark_preemptions_told,
        uids=[row.victim for row in wanted],
    )
    await leave_notices(tx, carried.notices)
    (carried.next_at,) = await tx.fetch(Q.next_preemption, value)
    return carried


def _announcement(row: PreemptionRow) -> str:
    return (
        f"is requeued at {to_rfc3339(row.vacate_at)} for {_name(row)};"
        " it keeps its place in the queue"
    )


def _name(row: PreemptionRow) -> str:
    """Return the name of the preemptor, or only what a reader of the notice can look up."""
    who = by_preemptor(row.jobid)
    is_same = row.namespace is not None and row.preemptor_namespace == row.namespace
    return f"{who} ({row.preemptor_name})" if is_same else who


async def _announce(tx: Transaction, carried: Carried, rows: Sequence[PreemptionRow]) -> None:
    for row in rows:
        if row.is_staying and not row.is_told:
            message = _announcement(row)
            await tx.execute(Q.keep_reason, uid=row.victim, before=row.reason)
            await _say(tx, row.victim, message)
            carried.notices.append(_notice(row, PLANNED, message))


async def _spare(tx: Transaction, carried: Carried, rows: Sequence[PreemptionRow]) -> None:
    for row in rows:
        if row.is_staying and row.is_told and not row.is_vacated:
            if row.reason == _announcement(row):
                await _say(tx, row.victim, row.reason_before)
            message = f"goes on: {_name(row)} needs its room no more"
            carried.notices.append(_notice(row, SPARED, message))
    await tx.execute(
        Q.delete_preemptions,
        uids=[row.victim for row in rows],
    )


async def _vacate(tx: Transaction, carried: Carried, rows: Sequence[PreemptionRow]) -> None:
    for row in rows:
        if row.is_staying and not row.is_vacated:
            message = f"is preempted for {_name(row)}: its pods end, then it waits at its old place"
            await vacate(tx, row.victim, by=by_preemptor(row.jobid), reason=message)
            carried.notices.append(_notice(row, PREEMPTED, message))
    await tx.execute(
        Q.mark_vacated,
        uids=[row.victim for row in rows],
    )


async def _say(tx: Transaction, uid: str, reason: str) -> None:
    await give_reasons(tx, {uid: reason}, RELEASED)


def _notice(row: PreemptionRow, event: str, message: str) -> Notice:
    return Notice(row.victim, event, message, f"{event}/{row.allocation_id}")


def _tell_preemptors(carried: Carried, rows: Sequence[PreemptionRow]) -> None:
    victims: dict[str, list[PreemptionRow]] = {}
    for row in rows:
        victims.setdefault(row.preemptor, []).append(row)
    for uid, mine in victims.items():
        named = tuple(Victim(row.victim, row.victim_jobid) for row in mine)
        at = mine[0].vacate_at
        message = f"{MakingWay(named, at).describe()}, requeued at {to_rfc3339(at)}"
        key = f"{PREEMPTING}/{min(row.allocation_id for row in mine)}"
        carried.notices.append(Notice(uid, PREEMPTING, message, key))
