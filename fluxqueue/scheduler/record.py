"""``DecisionRecord``: the decision that the status of a FluxJob shows, read back with care.

The controller reads it when rows are missing or older than the cluster (``db.store.rebuild``). RBAC
lets only our parts write the status, but it is still untrusted input. A field that we cannot have
written is dropped and named in ``troubles``. The caller then relies on the pods alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.states import FluxJobState, read_state
from fluxqueue.scheduler.resource_set import GivenSlots, read_resource_set

NUMBER_MAX = 2**53
"""Largest accepted jobid and version: a larger number would use the sequence up."""

PRIORITY_MAX = 2**31 - 1

TEXT_MAX = 4096
"""Longest accepted text, in characters. A reason has up to 1,024. No text has a NUL."""

FIELDS = (
    "state",
    "reason",
    "version",
    "jobid",
    "R",
    "startTime",
    "endTime",
    "operator",
    "queue",
    "acceptedBy",
    "authorHold",
)
"""Fields of the status that are read here."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision as the status shows it. Times are epoch seconds, None if not given.

    ``place`` is None if it is the jobid.

    ``held_by``, ``set_priority`` and ``set_queue`` are what an operator set. ``requeue_by`` and
    ``cancel_by`` name the operator that asked for it. ``accepted_by`` is the queue that accepted
    the job. ``author_hold`` is how its author holds it.
    """

    flux_uid: str
    submitted_at_s: int | None = None
    state: FluxJobState | None = None
    reason: str = ""
    version: int = 0
    jobid: int | None = None
    given: GivenSlots | None = None
    started_at_s: int | None = None
    ended_at_s: int | None = None
    held_by: str | None = None
    set_priority: int | None = None
    place: int | None = None
    set_queue: str | None = None
    requeue_by: str | None = None
    requeue: str | None = None
    cancel_by: str | None = None
    accepted_by: str | None = None
    author_hold: str | None = None
    troubles: tuple[str, ...] = ()


def read_record(fluxjob: Mapping[str, Any]) -> DecisionRecord:
    """Read a FluxJob object. No content of its status can make this fail."""
    status = fluxjob.get("status")
    status = status if isinstance(status, dict) else {}
    operator = status.get("operator")
    operator = operator if isinstance(operator, dict) else {}
    troubles: list[str] = []

    def field(where: str, fields: Mapping[str, Any], read: Callable[[Any], Value]) -> Value | None:
        value = fields.get(where.rpartition(".")[2])
        if value is None:
            return None
        try:
            return read(value)
        except (InvalidInput, ValueError, TypeError, OverflowError) as error:
            troubles.append(f"status.{where}: {error}")
            return None

    meta = fluxjob["metadata"]
    return DecisionRecord(
        flux_uid=str(meta["uid"]),
        submitted_at_s=_time(meta["creationTimestamp"]) if "creationTimestamp" in meta else None,
        state=field("state", status, read_state),
        reason=field("reason", status, _text) or "",
        version=field("version", status, _number) or 0,
        jobid=field("jobid", status, _number),
        place=field("place", status, _number),
        given=field("R", status, read_resource_set),
        started_at_s=field("startTime", status, _time),
        ended_at_s=field("endTime", status, _time),
        held_by=field("operator.heldBy", operator, _text),
        set_priority=field("operator.priority", operator, _priority),
        set_queue=field("operator.queue", operator, _text),
        requeue_by=field("operator.requeueBy", operator, _text),
        requeue=field("operator.requeue", operator, _text),
        cancel_by=field("operator.cancelBy", operator, _text),
        accepted_by=field(_says_who_took_it(status), status, _text),
        author_hold=field("authorHold", status, _text),
        troubles=tuple(troubles),
    )


def read_version(status: Mapping[str, Any]) -> int | None:
    """Return the version in a status, or None if it is not one of ours."""
    try:
        return _number(status.get("version"))
    except ValueError:
        return None


def _says_who_took_it(status: Mapping[str, Any]) -> str:
    """Return the status field that names the accepting queue.

    A job outside Held waits or runs by its ``queue``. Its ``acceptedBy`` can be stale, because an
    acceptance that changes nothing else causes no status update. It may then be empty or name the
    queue that the job was moved from.
    """
    return "acceptedBy" if status.get("state") in (None, FluxJobState.HELD) else "queue"


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > TEXT_MAX or "\0" in value:
        raise ValueError(f"{str(value)[:80]!r} is not a valid text")
    return value


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= NUMBER_MAX:
        raise ValueError(f"{value!r} is not a number from 1 to {NUMBER_MAX}")
    return value


def _priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > PRIORITY_MAX:
        raise ValueError(f"{value!r} is not a priority")
    return value


def _time(value: Any) -> int:
    return int(datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp())
