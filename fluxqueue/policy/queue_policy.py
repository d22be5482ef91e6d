"""The queue policies, each as three numbers that the cycle follows.

The semantics are those of flux-sched's qmanager (``qmanager/policies``). A cycle walks the queue in
order. A FluxJob that cannot start gets a reservation, as long as reservations are left. Behind the
last reservation, jobs may start only if they delay none (backfill). ``fcfs`` gives no reservation
and stops at the first blocked job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fluxqueue.errors import InvalidSettings

QUEUE_DEPTH = 1000
"""Number of FluxJobs examined in one cycle: the depth of backfill."""

RESERVATIONS_MAX = 100_000
HYBRID_RESERVATIONS = 64


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How far a cycle looks, and how many reservations it makes."""

    name: str
    reservation_depth: int
    is_backfilling: bool = True
    queue_depth: int = QUEUE_DEPTH


POLICIES = {
    "fcfs": QueuePolicy("fcfs", 0, is_backfilling=False),
    "easy": QueuePolicy("easy", 1),
    "hybrid": QueuePolicy("hybrid", HYBRID_RESERVATIONS),
    "conservative": QueuePolicy("conservative", RESERVATIONS_MAX),
}


def queue_policy(
    name: str, *, reservation_depth: int | None = None, queue_depth: int | None = None
) -> QueuePolicy:
    """Return a policy by name, with the administrator's depths in place of the defaults.

    Raises
    ------
    InvalidSettings
        The name is unknown, or a depth is out of range.
    """
    policy = POLICIES.get(name)
    if policy is None:
        raise InvalidSettings(
            f"unknown queue policy {name!r}",
            where="queue policy",
            value=name,
            hint=f"one of {', '.join(POLICIES)}",
        )
    if reservation_depth is not None and name == "hybrid":
        policy = replace(policy, reservation_depth=_at_least_one(reservation_depth))
    if queue_depth is not None:
        policy = replace(policy, queue_depth=_at_least_one(queue_depth))
    return policy


def _at_least_one(depth: int) -> int:
    if depth < 1:
        raise InvalidSettings(
            f"a depth of {depth} looks at nothing", where="depth", value=depth, hint="1 or more"
        )
    return min(depth, RESERVATIONS_MAX)
