"""Expected starts and promises of waiting FluxJobs, which the matcher reads and writes.

``reservations`` is the plan of the last cycle. The first start that a FluxJob was promised is an
event ``Promised`` in ``history``. Its excuse is an event ``PromiseExcused`` behind it, so that
users and ``fluxqueue check`` can see both. ``worker.plans`` calls this module in transactions under
its term.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.db.store.preemption import PREEMPTING
from fluxqueue.fluxjob.wait_reason import WaitReason
from fluxqueue.prediction.calibration import Calibration, ToldStart
from fluxqueue.scheduler.forecast import Outlook
from fluxqueue.scheduler.promises import Promise

PROMISED, EXCUSED, DELAYED = "Promised", "PromiseExcused", "ExpectedStartDelayed"
"""Events in ``history``, beside the names of states."""

AHEAD = "a job ahead of it in the queue"
"""The excuse of an expected start that no mishap has delayed."""

STILL_WAITING = ("Pending", "Reserved", PREEMPTING, PROMISED, EXCUSED, DELAYED)
"""Events after which a FluxJob waits as before: its promise still stands."""

WEEK_S = 7 * 86_400
SLICE = 1_000
"""FluxJobs behind the examined ones that are read at once."""

OF_USER = 200
"""True starts of one user that are read: the newest ones of the last week."""


@dataclass(frozen=True, slots=True)
class StoredReservation:
    """A latest start: node of each slot in slot order, epoch seconds.

    ``is_firm`` and ``kept_from`` are those of its ``Placement``.
    """

    starts_at: int
    nodes: tuple[str, ...]
    is_firm: bool
    kept_from: int | None


async def read_reservations(tx: Transaction) -> dict[str, StoredReservation]:
    """Return the plan of the last cycle, by UID."""
    # A damaged reservation is made anew by the next cycle.
    return {
        uid: StoredReservation(starts_at, tuple(nodes), *how)
        for uid, starts_at, nodes, *how in await tx.fetch(Q.read_reservations, columns)
        if isinstance(nodes, list) and all(isinstance(one, str) for one in nodes)
    }


async def read_told(tx: Transaction) -> dict[str, Outlook]:
    """Return the last reports to FluxJobs without a reservation, where a start was estimated."""
    return {
        uid: Outlook(starts_at, reason, None if word is None else WaitReason(word), position)
        for uid, starts_at, reason, word, position in await tx.fetch(Q.read_told, columns)
        if word is None or word in set(WaitReason)
    }


async def read_told_starts(tx: Transaction, now: int) -> tuple[dict[str, ToldStart], Calibration]:
    """Return what waiting FluxJobs were shown first, and how wrong that was in the last week."""
    waiting: dict[str, ToldStart] = {}
    calibration = Calibration()
    rows = await tx.fetch(Q.read_told_starts, columns, since=now - WEEK_S, of_user=OF_USER)
    for uid, user, started_at, *told in rows:
        if started_at is None:
            waiting[uid] = ToldStart(*told)
        else:
            calibration.learn(ToldStart(*told), started_at, user)
    return waiting, calibration


async def store_true_starts(tx: Transaction, uids: Sequence[str], now: int) -> None:
    """Write down that FluxJobs have started which were shown when they would."""
    if uids:
        await tx.execute(Q.store_true_starts, uids=sorted(uids), now=now)


class BehindRow(NamedTuple):
    """A FluxJob behind those that a cycle examines, and what it is shown."""

    uid: str
    size: int
    duration_s: int | None
    priority: int
    place: int
    reason: str
    position: int | None
    expected_start: int | None


async def read_behind(tx: Transaction, queue: str, turn: tuple[int, int]) -> list[BehindRow]:
    """Return the next FluxJobs of a queue behind a turn, a slice of them, in their order."""
    falling, place = turn
    return await tx.fetch(
        Q.read_behind, BehindRow, queue=queue, priority=-falling, place=place, slice=SLICE
    )


async def read_jobids(tx: Transaction) -> dict[str, int]:
    """Return the jobid of everything that holds resources, by UID."""
    return dict(await tx.fetch(Q.jobids_of_running, columns))


async def store_outlooks(
    tx: Transaction, outlooks: Mapping[str, Outlook], dropped: Sequence[str]
) -> None:
    """Write the outlook of FluxJobs that still wait, and what they are shown of their starts.

    ``dropped``: those that have no estimated start any more.
    """
    await tx.execute(
        Q.lock_waiting,
        uids=sorted({*outlooks, *dropped}),
    )
    await tx.execute(
        Q.drop_expected_starts,
        uids=sorted(dropped),
    )
    rows = [
        {
            "uid": uid,
            "starts_at": one.expected_start,
            "reason": one.reason,
            "wait_reason": one.wait_reason,
            "position": one.position,
        }
        for uid, one in outlooks.items()
    ]
    await tx.execute(Q.store_outlooks, rows=rows)
    told = [
        {"uid": uid, **asdict(one.told)} for uid, one in outlooks.items() if one.told is not None
    ]
    if told:
        await tx.execute(Q.store_told_starts, rows=told)


async def read_promises(tx: Transaction) -> dict[str, Promise]:
    """Return promises that still stand, by UID: given since the FluxJob last began to wait."""
    rows = await tx.fetch(
        Q.read_promises,
        columns,
        still_waiting=list(STILL_WAITING),
        promised=PROMISED,
        excused=EXCUSED,
    )
    return {uid: Promise(starts_at, excuse) for uid, starts_at, excuse in rows}


async def store_promises(tx: Transaction, promises: Mapping[str, Promise]) -> None:
    """Write down promises that are new, or that have just got their excuse."""
    rows: list[dict[str, Any]] = [
        {
            "uid": uid,
            "event": PROMISED if one.excuse is None else EXCUSED,
            "detail": {"starts_at": one.starts_at}
            | ({} if one.excuse is None else {"excuse": one.excuse}),
        }
        for uid, one in promises.items()
    ]
    await _note(tx, rows)


async def store_delays(tx: Transaction, delayed: Mapping[str, int], excuse: str) -> None:
    """Write down the latest starts that have moved later, by UID, and why."""
    rows = [
        {"uid": uid, "event": DELAYED, "detail": {"latest_start": at, "excuse": excuse}}
        for uid, at in delayed.items()
    ]
    await _note(tx, rows)


async def _note(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        await tx.execute(Q.note_events, rows=rows)
