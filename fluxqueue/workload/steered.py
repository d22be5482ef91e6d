"""What users may change of a FluxJob: read from its spec, and checked at admission.

Called by the webhook, which records the user of each change (``spec.steeredBy``), and by the
controller, which copies the change into rows. Pure. Everything else in the spec is the request of
the workload. To change that, its author changes the workload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.states import FluxJobState, read_state
from fluxqueue.workload.annotations import parse_queue
from fluxqueue.workload.json_patch import at, edited
from fluxqueue.workload.objects import Object

HOLD, PRIORITY, QUEUE, BEGIN, REQUEUE = "hold", "priority", "queue", "beginTime", "requeue"
CANCEL = "cancel"
STEERABLE = (HOLD, PRIORITY, QUEUE, BEGIN, REQUEUE, CANCEL)
STEERED_BY = "steeredBy"

_ONLY_WAITING = {
    HOLD: "only what waits can be held; requeue or cancel it",
    QUEUE: "only what waits can be moved; requeue it first",
    BEGIN: "it has begun; requeue it first",
}


@dataclass(frozen=True, slots=True)
class Steered:
    """Spec changes by users: current values by field, and the last user of each change.

    A field that was changed and is now absent has no value: the author's value holds again.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    by: Mapping[str, str] = field(default_factory=dict)


def read_steered(fluxjob: Mapping[str, Any]) -> Steered | None:
    """Read the spec changes by users, or return None if there never were any."""
    spec = fluxjob.get("spec") or {}
    by = spec.get(STEERED_BY)
    if not by:
        return None
    values = {name: spec[name] for name in STEERABLE if name in by and spec.get(name) is not None}
    return Steered(values, dict(by))


def with_steerer(old: Object, new: Object, user: str) -> Object:
    """Return a changed FluxJob with the user beside each field that the user changes.

    Raises
    ------
    InvalidInput
        As ``changes_by_hand``.
    """
    place = ("spec", STEERED_BY)
    # From the old object: otherwise a user could write a false name for an earlier change.
    by = {**(at(old, place) or {}), **dict.fromkeys(changes_by_hand(old, new), user)}
    return edited(new, {place: by or None})


def changes_by_hand(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """Check a user's change of a FluxJob, and return the steerable fields that it changes.

    Raises
    ------
    InvalidInput
        The user must not change a field, or the change has no effect in its state. The error names
        the field, the value and the fix.
    """
    before, after = old.get("spec") or {}, new.get("spec") or {}
    changed = [
        name
        for name in sorted({*before, *after} - {STEERED_BY})
        if before.get(name) != after.get(name)
    ]
    for name in changed:
        if name not in STEERABLE:
            raise _not_his(name, before, after)
        _check_state(name, after.get(name), new)
    if QUEUE in changed and after.get(QUEUE) is not None:
        parse_queue(after[QUEUE], f"spec.{QUEUE}")
    return tuple(changed)


def _not_his(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> InvalidInput:
    workload = before.get("workload") or {}
    which = f"{workload.get('kind', 'workload')} {workload.get('name', '')}".rstrip()
    value = after.get(name)
    return InvalidInput(
        f"says what {which} asks for, and is changed there",
        where=f"spec.{name}",
        value="(removed)" if value is None else _as_json(value),
        hint=f"change only {', '.join(STEERABLE)}",
    )


def _check_state(name: str, value: Any, fluxjob: Mapping[str, Any]) -> None:
    state = read_state((fluxjob.get("status") or {}).get("state") or FluxJobState.PENDING)
    why = None
    if state.is_final:
        why = "submit it again" if name == REQUEUE else "it is over"
    elif name == REQUEUE and value and state.is_waiting:
        why = "it waits already"
    elif name == REQUEUE and value and not _can_be_suspended(fluxjob):
        why = "it cannot be suspended; delete it and submit it again"
    elif name in _ONLY_WAITING and value and not state.is_waiting:
        why = _ONLY_WAITING[name]
    if why is not None:
        raise InvalidInput(f"is {state}: {why}", where=f"spec.{name}", value=_as_json(value))


def _can_be_suspended(fluxjob: Mapping[str, Any]) -> bool:
    # Loaded for the first requeue alone: admission needs the entry of groups for nothing else.
    from fluxqueue.workload.kinds.table import kind_of_fluxjob

    return kind_of_fluxjob(fluxjob).can_be_suspended


def _as_json(value: Any) -> Any:
    """Return a value as its author wrote it."""
    return str(value).lower() if isinstance(value, bool) else value
