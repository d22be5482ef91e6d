"""Steering: what users change in a FluxJob's spec, carried into its row with an audit line.

The controller calls it, under its term. Every change says what it did, or why it does not do it. It
may be repeated, and may run beside another one: the row is locked, and the row decides. The worker
carries out effects on the cluster. The row keeps what was requested until then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy.exc import DataError

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.store.moves import Moved, apply_move, order_deletion, vacate
from fluxqueue.fluxjob.holders import (
    AUTHOR,
    BY_DEPENDENCY,
    BY_QUEUE,
    CHANGED,
    LOST_NODE,
    NOT_STARTED,
    OVERRAN,
    PAUSED,
    RELEASABLE,
    RESTARTED,
    author_reason,
    is_preemptor,
)
from fluxqueue.fluxjob.lifecycle import HELD_BY_HAND, RELEASED_BY_HAND
from fluxqueue.fluxjob.states import FluxJobState

RESERVED_ACTORS = RELEASABLE | {
    *(AUTHOR, BY_QUEUE, BY_DEPENDENCY, CHANGED, LOST_NODE, NOT_STARTED, OVERRAN, PAUSED),
    RESTARTED,
}
"""Words that ``held_by`` uses for itself."""


@dataclass(frozen=True, slots=True)
class SteeringOutcome:
    """What became of one change. ``is_done``: it is now as requested."""

    reference: str
    is_done: bool
    message: str


class _SteeringRefused(Exception):
    """The state does not allow the command. The message says what would be possible."""


class SteeredRow(NamedTuple):
    """What a command must know of a FluxJob. ``steered``: the values of its spec so far."""

    uid: str
    jobid: int
    name: str
    kind: str
    is_suspendable: bool
    made_by: str | None
    state: str
    held_by: str | None
    author_hold: str | None
    vacate_by: str | None
    cancel_by: str | None
    is_deleting: bool
    result: str | None
    queue: str
    set_priority: int | None
    steered: Mapping[str, Any] | None
    observed_generation: int


async def _note(tx: Transaction, row: SteeredRow, actor: str, event: str, **detail: Any) -> None:
    """Write the command to the audit trail. The row's trigger adds the transition it causes."""
    await tx.execute(
        Q.note_command,
        uid=row.uid,
        jobid=row.jobid,
        actor=actor,
        event=event,
        detail={"state": row.state, **detail},
    )


def _state(row: SteeredRow) -> FluxJobState:
    return FluxJobState(row.state)


def _refuse_if_over(row: SteeredRow, what: str) -> None:
    if _state(row).is_final:
        raise _SteeringRefused(f"is {row.state}: {what}")
    if row.cancel_by is not None:
        raise _SteeringRefused(f"is being cancelled by {row.cancel_by}")
    if row.is_deleting or row.result is not None:
        raise _SteeringRefused("is ending")


def _is_reserved(actor: str) -> bool:
    return actor in RESERVED_ACTORS or is_preemptor(actor)


def _is_operators(row: SteeredRow) -> bool:
    return row.held_by is not None and row.held_by not in RESERVED_ACTORS


async def _hold_or_release(tx: Transaction, row: SteeredRow, actor: str, is_held: Any) -> str:
    if not is_held:
        return await _release(tx, row, actor)
    _refuse_if_over(row, "nothing is left to hold")
    if not _state(row).is_waiting:
        raise _SteeringRefused(f"is {row.state}: only what waits can be held; requeue or cancel it")
    if _is_operators(row):
        return f"is held by {row.held_by} already"
    await _note(tx, row, actor, "hold")
    await apply_move(tx, HELD_BY_HAND, [Moved(row.uid, f"held by {actor}", actor)])
    return "is held"


async def _release(tx: Transaction, row: SteeredRow, actor: str) -> str:
    is_releasable = _is_operators(row) or row.held_by in RELEASABLE
    if _state(row) is not FluxJobState.HELD or not is_releasable:
        return "is not held by hand"
    _refuse_if_over(row, "nothing is left to release")
    await _note(tx, row, actor, "release", held_by=row.held_by)
    if row.author_hold is not None:
        still = author_reason(row.author_hold)
        await tx.execute(Q.keep_author_hold, uid=row.uid, reason=still)
        return f"is no longer held by {row.held_by}, but {still}"
    # A release by a user begins a new series of tries.
    await apply_move(tx, RELEASED_BY_HAND, [Moved(row.uid)], query=Q.move_released)
    return "is released"


async def _cancel(tx: Transaction, row: SteeredRow, actor: str, is_cancelled: Any) -> str:
    if not is_cancelled and row.cancel_by is None:
        return "is not being cancelled"
    if not is_cancelled:
        raise _SteeringRefused(f"is being cancelled by {row.cancel_by}; submit it again")
    if _state(row) is FluxJobState.CANCELLED:
        return "is Cancelled"
    if _state(row).is_final:
        raise _SteeringRefused(f"is {row.state}: nothing is left to cancel")
    if row.cancel_by is not None:
        return f"is being cancelled by {row.cancel_by} already"
    if row.made_by is not None:
        raise _SteeringRefused(f"has pods that {row.made_by} would make again; delete that")
    await _note(tx, row, actor, "cancel")
    await order_deletion(tx, row.uid, by=actor, reason=f"is being cancelled by {actor}")
    return f"is being cancelled: {row.kind} {row.name} is deleted"


async def _requeue(tx: Transaction, row: SteeredRow, actor: str, request: Any) -> str:
    if not request:
        return "is not asked to be requeued"
    _refuse_if_over(row, "submit it again")
    if _state(row).is_waiting:
        return f"is {row.state}: it waits already"
    if not row.is_suspendable:
        why = f"is a {row.kind}, which cannot be suspended"
        raise _SteeringRefused(f"{why}; cancel it and submit it again")
    if row.vacate_by is not None:
        return f"is being requeued by {row.vacate_by} already"
    await _note(tx, row, actor, "requeue")
    await vacate(tx, row.uid, by=actor, reason=f"is being requeued by {actor}; its pods end")
    return "is being requeued: its pods end, then it waits at its old place"


async def _set_priority(tx: Transaction, row: SteeredRow, actor: str, priority: int | None) -> str:
    _refuse_if_over(row, "its priority no longer matters")
    if row.set_priority == priority:
        return f"has {'no' if priority is None else 'this'} set priority already"
    await _note(tx, row, actor, "priority", old=row.set_priority, new=priority)
    (now,) = await tx.fetch(Q.set_priority, int, uid=row.uid, priority=priority)
    return f"has priority {now}"


async def _move(tx: Transaction, row: SteeredRow, actor: str, to: Any) -> str:
    if to is None:
        await _note(tx, row, actor, "move", old=row.queue, new=None)
        await tx.execute(Q.unset_queue, uid=row.uid)
        return "is in its author's queue when it is next looked at"
    queue = str(to)
    _refuse_if_over(row, "its queue no longer matters")
    if not _state(row).is_waiting:
        raise _SteeringRefused(f"is {row.state}: only what waits can be moved; requeue it first")
    known = sorted(await tx.fetch(Q.queue_names, str))
    if queue not in known:
        raise _SteeringRefused(f"there is no queue {queue}; known are {', '.join(known)}")
    if row.queue == queue:
        return f"is in queue {queue} already"
    await _note(tx, row, actor, "move", old=row.queue, new=queue)
    await tx.execute(Q.move_fluxjob, uid=row.uid, queue=queue)
    return f"is in queue {queue}"


async def _set_begin(tx: Transaction, row: SteeredRow, actor: str, value: Any) -> str:
    _refuse_if_over(row, "it has begun")
    if not _state(row).is_waiting:
        raise _SteeringRefused(f"is {row.state}: it has begun; requeue it first")
    await _note(tx, row, actor, "begin", new=value)
    await tx.execute(Q.set_begin, uid=row.uid, at=value or "1970-01-01T00:00:00Z")
    return f"is not to start before {value}" if value else "may start at any time"


@dataclass(frozen=True, slots=True)
class FluxJobOf:
    """A FluxJob, and the workload that it names.

    Any user can create a FluxJob that names another user's workload, so the name is not trusted.
    """

    namespace: str
    name: str
    workload_uid: str


async def apply_spec_changes(
    tx: Transaction,
    fluxjob: FluxJobOf,
    values: Mapping[str, Any],
    by: Mapping[str, str],
    generation: int = 1,
) -> list[SteeringOutcome] | None:
    """Carry the changed fields of a FluxJob's spec into its row.

    A refused change is reported and not retried until the field changes again. It would otherwise
    take effect at a time when no user expects it.

    Parameters
    ----------
    tx : under the controller's term: a controller that was stopped meanwhile knows an old spec.
    fluxjob : the FluxJob, and the workload that it names.
    values, by : as of ``workload.steered.Steered``.
    generation : of that spec.

    Returns
    -------
    list of Outcome or None
        The outcome of each change. None if the workload has no row (yet), or another FluxJob.
    """
    row = await _lock(tx, fluxjob)
    if row is None:
        return None
    before = row.steered or {}
    outcomes = []
    for field in _VERBS:
        if before.get(field) == values.get(field):
            continue
        actor = by.get(field) or "an unknown user"
        actor = f"user {actor}" if _is_reserved(actor) else actor
        await tx.execute(Q.set_actor, actor=actor)
        outcomes.append(await _apply_spec_change(tx, row, actor, field, values.get(field)))
        row = await _lock(tx, fluxjob) or row
    if before != dict(values) or generation > row.observed_generation:
        await tx.execute(
            Q.keep_steered,
            uid=fluxjob.workload_uid,
            values=dict(values),
            generation=generation,
        )
    return outcomes


async def cancel_deleted(tx: Transaction, fluxjob: FluxJobOf, actor: str) -> SteeringOutcome | None:
    """Cancel a workload after its FluxJob was deleted.

    Returns None where it has no row, or another FluxJob. ``tx``: as of ``apply_spec_changes``.
    """
    await tx.execute(Q.set_actor, actor=actor)
    row = await _lock(tx, fluxjob)
    if row is None:
        return None
    return await _apply_spec_change(tx, row, actor, "cancel", True)


async def _lock(tx: Transaction, fluxjob: FluxJobOf) -> SteeredRow | None:
    return await tx.fetch_one(
        Q.lock_steered,
        SteeredRow,
        uid=fluxjob.workload_uid,
        namespace=fluxjob.namespace,
        name=fluxjob.name,
    )


async def _apply_spec_change(
    tx: Transaction, row: SteeredRow, actor: str, field: str, value: Any
) -> SteeringOutcome:
    try:
        # A savepoint: a value that no row accepts must not undo the other fields.
        async with tx.connection.begin_nested():
            message, is_done = await _VERBS[field](tx, row, actor, value), True
    except _SteeringRefused as refusal:
        message, is_done = str(refusal), False
    except (DataError, ValueError, TypeError, KeyError, ArithmeticError) as error:
        said = str(getattr(error, "orig", None) or error).partition("\n")[0]
        message, is_done = f"{value!r:.80} cannot be used: {said}; the former value counts", False
    return SteeringOutcome(f"spec.{field}", is_done, message)


_VERBS: Mapping[str, Callable[[Transaction, SteeredRow, str, Any], Awaitable[str]]] = {
    "hold": _hold_or_release,
    "priority": _set_priority,
    "queue": _move,
    "beginTime": _set_begin,
    "requeue": _requeue,
    "cancel": _cancel,
}
"""The verb of each spec field: it returns what it did with the new value.

The requeue comes after the others: what applies when it waits again is known by then. The
cancellation is last, because nothing applies after it.
"""
