"""Steering: commands by hand on a FluxJob, each one transaction with an audit line.

The command line calls it, and so does the controller for spec changes (``apply_spec_changes``).
Every command says what it did, or why it does not do it. It may be repeated, and may run beside
another one: the row is locked, and the row decides. The worker carries out effects on the cluster.
The row keeps a command's wish until then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from sqlalchemy.exc import DataError

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.store.moves import Moved, apply_move
from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.holders import (
    ANNOTATION,
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
from fluxqueue.workload.object_paths import nested

RESERVED_ACTORS = RELEASABLE | {
    *(AUTHOR, BY_QUEUE, BY_DEPENDENCY, CHANGED, LOST_NODE, NOT_STARTED, OVERRAN, PAUSED),
    RESTARTED,
}
"""Words that ``held_by`` uses for itself."""

MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SteeringOutcome:
    """What became of a command for one reference. ``is_done``: it is now as requested."""

    reference: str
    is_done: bool
    message: str
    jobid: int | None = None
    name: str = ""
    state: str = ""


class _SteeringRefused(Exception):
    """The state does not allow the command. The message says what would be possible."""


class SteeredRow(NamedTuple):
    """What a command must know of a FluxJob. ``steered``: the values of its spec so far."""

    uid: str
    jobid: int
    namespace: str
    name: str
    kind: str
    is_suspendable: bool
    made_by: str | None
    owner: Mapping[str, str] | None
    state: str
    reason: str
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


Verb = Callable[[Transaction, SteeredRow, str], Awaitable[str]]


async def find(tx: Transaction, namespace: str, reference: str) -> SteeredRow | None:
    """Find and lock the FluxJob of a name or jobid.

    Of several with the same name, it is the newest one that has not ended.
    """
    is_number = reference.isascii() and reference.isdigit() and len(reference) <= 18
    jobid = int(reference) if is_number else None
    query = Q.find_by_name if jobid is None else Q.find_by_jobid
    return await tx.fetch_one(
        query, SteeredRow, namespace=namespace, reference=reference if jobid is None else jobid
    )


async def _steer(
    database: Database, namespace: str, references: Sequence[str], actor: str, verb: Verb
) -> list[SteeringOutcome]:
    """Apply ``verb`` to each reference, each in a transaction of its own under the actor's name."""
    if not actor or _is_reserved(actor):
        raise InvalidInput(
            f"{actor!r} cannot be an actor", where="--as", value=actor, hint="say who you are"
        )
    outcomes = []
    for reference in references:
        async with database.begin() as tx:
            await tx.execute(Q.set_actor, actor=actor)
            outcomes.append(await _one(tx, namespace, reference, actor, verb))
    return outcomes


async def _one(
    tx: Transaction, namespace: str, reference: str, actor: str, verb: Verb
) -> SteeringOutcome:
    row = await find(tx, namespace, reference)
    if row is None:
        return SteeringOutcome(
            reference, False, f"namespace {namespace} has no such workload in the queue"
        )
    try:
        message, is_done = await verb(tx, row, actor), True
    except _SteeringRefused as refusal:
        message, is_done = str(refusal), False
    return SteeringOutcome(reference, is_done, message, row.jobid, row.name, row.state)


async def _note(tx: Transaction, row: SteeredRow, actor: str, event: str, **detail: Any) -> None:
    """Write the command to the audit trail. The row's trigger adds the transition it causes."""
    await tx.execute(
        Q.note_command,
        uid=row.uid,
        jobid=row.jobid,
        actor=actor,
        event=event,
        detail=orjson.dumps({"state": row.state, **detail}).decode(),
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


async def hold(
    database: Database, namespace: str, references: Sequence[str], actor: str
) -> list[SteeringOutcome]:
    """Keep waiting FluxJobs from starting until they are released."""
    return await _steer(database, namespace, references, actor, _hold)


async def _hold(tx: Transaction, row: SteeredRow, actor: str) -> str:
    _refuse_if_over(row, "nothing is left to hold")
    if not _state(row).is_waiting:
        raise _SteeringRefused(f"is {row.state}: only what waits can be held; requeue or cancel it")
    if _is_operators(row):
        return f"is held by {row.held_by} already"
    await _note(tx, row, actor, "hold")
    await apply_move(tx, HELD_BY_HAND, [Moved(row.uid, f"held by {actor}", actor)])
    return "is held"


async def release(
    database: Database, namespace: str, references: Sequence[str], actor: str
) -> list[SteeringOutcome]:
    """Release held FluxJobs to their places, or explain what else can release them."""
    return await _steer(database, namespace, references, actor, _release)


async def _release(tx: Transaction, row: SteeredRow, actor: str) -> str:
    _refuse_if_over(row, "nothing is left to release")
    if _state(row) is not FluxJobState.HELD:
        return f"is {row.state}: it is not held"
    if not _is_operators(row) and row.held_by not in RELEASABLE:
        raise _SteeringRefused(_whose(row))
    await _note(tx, row, actor, "release", held_by=row.held_by)
    if row.author_hold is not None:
        still = row._replace(held_by=AUTHOR, reason="held by its author")
        await tx.execute(
            Q.keep_author_hold,
            uid=row.uid,
            reason=author_reason(row.author_hold),
        )
        return f"is no longer held by {row.held_by}, but {_whose(still)}"
    # A release by a user begins a new series of tries.
    await apply_move(tx, RELEASED_BY_HAND, [Moved(row.uid)], query=Q.move_released)
    return "is released"


def _whose(row: SteeredRow) -> str:
    """Return what holds it, if no operator does, and what releases it."""
    kind, name = row.kind.lower(), row.name
    if row.held_by == AUTHOR and row.author_hold == ANNOTATION:
        return f"is held by its annotation: kubectl annotate {kind} {name} fluxqueue/hold-"
    if row.held_by == AUTHOR and row.author_hold == PAUSED:
        patch = """-p '{"spec":{"parallelism":1}}'"""
        return f"is paused by its author: kubectl patch {kind} {name} {patch} continues it"
    if row.held_by == AUTHOR:
        field = (row.owner or {}).get("suspend") or "spec.suspend"
        patch = f"--type merge -p '{orjson.dumps(nested(field, False)).decode()}'"
        return f"was suspended by its author: kubectl patch {kind} {name} {patch} resumes it"
    if row.held_by == BY_QUEUE:
        return f"is held by its queue {row.queue}: {row.reason}; move it to another"
    return f"is held by what it depends on: {row.reason}"


async def cancel(
    database: Database, namespace: str, references: Sequence[str], actor: str
) -> list[SteeringOutcome]:
    """Delete the workloads.

    The FluxJobs end when that has happened and no pod is left.
    """
    return await _steer(database, namespace, references, actor, _cancel)


async def _cancel(tx: Transaction, row: SteeredRow, actor: str) -> str:
    if _state(row) is FluxJobState.CANCELLED:
        return "is Cancelled"
    if _state(row).is_final:
        raise _SteeringRefused(f"is {row.state}: nothing is left to cancel")
    if row.cancel_by is not None:
        return f"is being cancelled by {row.cancel_by} already"
    if row.made_by is not None:
        raise _SteeringRefused(f"has pods that {row.made_by} would make again; delete that")
    await _note(tx, row, actor, "cancel")
    await tx.execute(
        Q.cancel_fluxjob,
        uid=row.uid,
        by=actor,
        reason=f"is being cancelled by {actor}",
    )
    return f"is being cancelled: {row.kind} {row.name} is deleted"


async def requeue(
    database: Database, namespace: str, references: Sequence[str], actor: str
) -> list[SteeringOutcome]:
    """Have running BatchJobs suspended: their pods end, and they wait at their old place."""
    return await _steer(database, namespace, references, actor, _requeue)


async def _requeue(tx: Transaction, row: SteeredRow, actor: str) -> str:
    _refuse_if_over(row, "submit it again")
    if _state(row).is_waiting:
        return f"is {row.state}: it waits already"
    if not row.is_suspendable:
        why = f"is a {row.kind}, which cannot be suspended"
        raise _SteeringRefused(f"{why}; cancel it and submit it again")
    if row.vacate_by is not None:
        return f"is being requeued by {row.vacate_by} already"
    await _note(tx, row, actor, "requeue")
    await tx.execute(
        Q.requeue_fluxjob,
        uid=row.uid,
        by=actor,
        reason=f"is being requeued by {actor}; its pods end",
    )
    return "is being requeued: its pods end, then it waits at its old place"


async def set_priority(
    database: Database,
    namespace: str,
    references: Sequence[str],
    actor: str,
    *,
    priority: int | None,
) -> list[SteeringOutcome]:
    """Give FluxJobs a priority that overrides their authors'. None restores the author's."""
    if priority is not None and abs(priority) > MAX_INT32:
        raise InvalidInput(
            f"{priority} is no priority",
            where="PRIORITY",
            value=priority,
            hint=f"from -{MAX_INT32} to {MAX_INT32}",
        )

    async def verb(tx: Transaction, row: SteeredRow, actor: str) -> str:
        return await _set_priority(tx, row, actor, priority)

    return await _steer(database, namespace, references, actor, verb)


async def _set_priority(tx: Transaction, row: SteeredRow, actor: str, priority: int | None) -> str:
    _refuse_if_over(row, "its priority no longer matters")
    if row.set_priority == priority:
        return f"has {'no' if priority is None else 'this'} set priority already"
    await _note(tx, row, actor, "priority", old=row.set_priority, new=priority)
    (now,) = await tx.fetch(Q.set_priority, int, uid=row.uid, priority=priority)
    return f"has priority {now}"


async def move(
    database: Database, namespace: str, references: Sequence[str], actor: str, *, queue: str
) -> list[SteeringOutcome]:
    """Move waiting FluxJobs into another queue, whatever their authors' labels say."""

    async def verb(tx: Transaction, row: SteeredRow, actor: str) -> str:
        return await _move(tx, row, actor, queue)

    return await _steer(database, namespace, references, actor, verb)


async def _move(tx: Transaction, row: SteeredRow, actor: str, queue: str) -> str:
    _refuse_if_over(row, "its queue no longer matters")
    if not _state(row).is_waiting:
        raise _SteeringRefused(f"is {row.state}: only what waits can be moved; requeue it first")
    known = sorted(await tx.fetch(Q.queue_names, str))
    if queue not in known:
        raise _SteeringRefused(f"there is no queue {queue}; known are {', '.join(known)}")
    if row.queue == queue:
        return f"is in queue {queue} already"
    await _note(tx, row, actor, "move", old=row.queue, new=queue)
    await tx.execute(
        Q.move_fluxjob,
        uid=row.uid,
        queue=queue,
    )
    return f"is in queue {queue}"


# --- what people change of a FluxJob's spec -------------------------------------------------------


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
    for field, verb in _SPEC_VERBS.items():
        if before.get(field) == values.get(field):
            continue
        actor = by.get(field) or "an unknown user"
        actor = f"user {actor}" if _is_reserved(actor) else actor
        await tx.execute(Q.set_actor, actor=actor)
        outcomes.append(await _apply_spec_change(tx, row, actor, field, verb, values.get(field)))
        row = await _lock(tx, fluxjob) or row
    if before != dict(values) or generation > row.observed_generation:
        await tx.execute(
            Q.keep_steered,
            uid=fluxjob.workload_uid,
            values=orjson.dumps(dict(values)).decode(),
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
    return await _apply_spec_change(
        tx, row, actor, "", lambda tx, row, by, _: _cancel(tx, row, by), None
    )


async def _lock(tx: Transaction, fluxjob: FluxJobOf) -> SteeredRow | None:
    return await tx.fetch_one(
        Q.lock_steered,
        SteeredRow,
        uid=fluxjob.workload_uid,
        namespace=fluxjob.namespace,
        name=fluxjob.name,
    )


SpecVerb = Callable[[Transaction, SteeredRow, str, Any], Awaitable[str]]


async def _apply_spec_change(
    tx: Transaction, row: SteeredRow, actor: str, field: str, verb: SpecVerb, value: Any
) -> SteeringOutcome:
    try:
        # A savepoint: a value that no row accepts must not undo the other fields.
        async with tx.connection.begin_nested():
            message, is_done = await verb(tx, row, actor, value), True
    except _SteeringRefused as refusal:
        message, is_done = str(refusal), False
    except (DataError, ValueError, TypeError, KeyError, ArithmeticError) as error:
        said = str(getattr(error, "orig", None) or error).partition("\n")[0]
        message, is_done = f"{value!r:.80} cannot be used: {said}; the former value counts", False
    reference = f"spec.{field}" if field else row.name
    return SteeringOutcome(reference, is_done, message, row.jobid, row.name, row.state)


async def _apply_hold(tx: Transaction, row: SteeredRow, actor: str, value: Any) -> str:
    if value:
        return await _hold(tx, row, actor)
    if _is_operators(row) and _state(row) is FluxJobState.HELD:
        return await _release(tx, row, actor)
    return "is not held by hand"


async def _apply_queue(tx: Transaction, row: SteeredRow, actor: str, value: Any) -> str:
    if value is not None:
        return await _move(tx, row, actor, str(value))
    await _note(tx, row, actor, "move", old=row.queue, new=None)
    await tx.execute(Q.unset_queue, uid=row.uid)
    return "is in its author's queue when it is next looked at"


async def _apply_begin(tx: Transaction, row: SteeredRow, actor: str, value: Any) -> str:
    _refuse_if_over(row, "it has begun")
    if not _state(row).is_waiting:
        raise _SteeringRefused(f"is {row.state}: it has begun; requeue it first")
    await _note(tx, row, actor, "begin", new=value)
    await tx.execute(
        Q.set_begin,
        uid=row.uid,
        at=value or "1970-01-01T00:00:00Z",
    )
    return f"is not to start before {value}" if value else "may start at any time"


async def _apply_requeue(tx: Transaction, row: SteeredRow, actor: str, value: Any) -> str:
    return await _requeue(tx, row, actor) if value else "is not asked to be requeued"


async def _apply_cancel(tx: Transaction, row: SteeredRow, actor: str, value: Any) -> str:
    if value:
        return await _cancel(tx, row, actor)
    if row.cancel_by is not None:
        raise _SteeringRefused(f"is being cancelled by {row.cancel_by}; submit it again")
    return "is not being cancelled"


_SPEC_VERBS: Mapping[str, SpecVerb] = {
    "hold": _apply_hold,
    "priority": _set_priority,
    "queue": _apply_queue,
    "beginTime": _apply_begin,
    "requeue": _apply_requeue,
    "cancel": _apply_cancel,
}
"""The verb of each spec field.

The requeue comes after the others: what applies when it waits again is known by then. The
cancellation is last, because nothing applies after it.
"""
