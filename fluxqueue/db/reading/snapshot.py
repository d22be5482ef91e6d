"""All rows that ``fluxqueue check`` compares with the cluster, as of one instant.

Read in one snapshot: a difference *between rows* found
here is real, whatever is being committed at that moment. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fluxqueue.db.database import Database
from fluxqueue.db.queries import Q


@dataclass(frozen=True, slots=True)
class FluxJobRow:
    """One FluxJob. Times are epoch seconds.

    ``has_reservation``: a planned start is stored. ``is_vacating``: its pods end, and it waits
    again after that. ``is_cancelled``: a user wants its workload deleted. ``trouble``: what of it
    cannot be used or carried out, in words.
    """

    uid: str
    jobid: int
    namespace: str
    name: str
    workload_kind: str
    workload_name: str
    flux_uid: str | None
    state: str
    reason: str
    size: int
    is_gone: bool
    allocated_at_s: int | None
    has_reservation: bool
    is_vacating: bool = False
    is_cancelled: bool = False
    trouble: str = ""

    @property
    def subject(self) -> str:
        """Return the workload, as people name it."""
        return f"{self.workload_kind} {self.namespace}/{self.workload_name}"


@dataclass(frozen=True, slots=True)
class AllocationRow:
    """A live allocation. ``until_s`` is None for unlimited.

    ``granted_s``: until when its queue accepted it, None for unlimited. ``most_s``: the longest run
    that its queue accepts.
    """

    id: int
    uid: str
    until_s: int | None
    granted_s: int | None = None
    most_s: int | None = None


@dataclass(frozen=True, slots=True)
class SlotRow:
    """A slot of a live allocation."""

    allocation_id: int
    uid: str
    number: int
    node: str
    resources: Mapping[str, int]
    state: str
    pod_uid: str | None


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A pod of a workload without an object of its own, and the kind of slot that it needs."""

    pod_uid: str
    uid: str
    slot_kind: str


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One line of the view ``node_usage``, in base units."""

    node: str
    resource: str
    capacity: int
    allocated: int
    foreign_used: int
    free: int


@dataclass(frozen=True, slots=True)
class ReservationRow:
    """A planned start."""

    uid: str
    starts_at_s: int


@dataclass(frozen=True, slots=True)
class PromiseRow:
    """The first start promised in a wait. ``allocated_at_s`` is None while the wait lasts.

    ``excuse``: what the matcher blamed when its plan fell behind.
    """

    uid: str
    starts_at_s: int
    allocated_at_s: int | None
    excuse: str | None


@dataclass(frozen=True, slots=True)
class StartFiguresRow:
    """True starts of the last week, by what jobs were shown first: ``by_expected`` and so on.

    ``of_plan``: the median run time as a share of its plan by ended runs, None without any.
    """

    started: int = 0
    by_expected: int = 0
    by_latest: int = 0
    of_plan: float | None = None


@dataclass(frozen=True, slots=True)
class LateEffect:
    """An effect that is pending for long, or with a task that has failed often.

    ``overdue_s``: since it was due.
    """

    task: str
    uid: str
    attempts: int
    overdue_s: int
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class DriftRow:
    """A broken invariant that SQL found by itself."""

    invariant: str
    subject: str
    detail: str


@dataclass(frozen=True, slots=True)
class LoopRow:
    """A loop of controller or worker. ``silent_s``: since it last succeeded, or was begun.
    ``error``: why it has failed since."""

    loop: str
    silent_s: int
    patience_s: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class QuarantinedRow:
    """An object that the controller cannot read or write down."""

    kind: str
    key: str
    namespace: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one instant, ``now_s`` by the database's clock.

    ``fluxjobs`` are those not yet forgotten: not final, or with an object still in the cluster.
    """

    now_s: int
    fluxjobs: Sequence[FluxJobRow] = ()
    members: Sequence[MemberRow] = ()
    allocations: Sequence[AllocationRow] = ()
    slots: Sequence[SlotRow] = ()
    usage: Sequence[UsageRow] = ()
    reservations: Sequence[ReservationRow] = ()
    promises: Sequence[PromiseRow] = ()
    late: Sequence[LateEffect] = ()
    drift: Sequence[DriftRow] = ()
    loops: Sequence[LoopRow] = ()
    quarantined_objects: Sequence[QuarantinedRow] = ()


async def read_rows(
    database: Database,
    *,
    also: Iterable[str] = (),
    overdue_s: int = 60,
    attempts: int = 5,
) -> Rows:
    """Read everything as of one instant.

    Parameters
    ----------
    also : UIDs of workloads whose rows are wanted even if they are over and gone.
    overdue_s, attempts : effects this late, or tried this often, are among ``late``.
    """
    async with database.begin(at_one_instant=True) as tx:
        (now_s,) = await tx.fetch(Q.now_s, int)
        return Rows(
            now_s,
            fluxjobs=await tx.fetch(Q.kept_fluxjobs, FluxJobRow, uids=sorted(also)),
            members=await tx.fetch(Q.slot_members, MemberRow),
            allocations=await tx.fetch(Q.live_allocations, AllocationRow),
            slots=await tx.fetch(Q.live_slots, SlotRow),
            usage=await tx.fetch(Q.node_use, UsageRow),
            reservations=await tx.fetch(Q.planned_starts, ReservationRow),
            promises=await tx.fetch(Q.first_promises, PromiseRow),
            late=await tx.fetch(Q.late_effects, LateEffect, overdue_s=overdue_s, attempts=attempts),
            drift=await tx.fetch(Q.drift, DriftRow),
            loops=await tx.fetch(Q.loop_times, LoopRow),
            quarantined_objects=await tx.fetch(Q.quarantined, QuarantinedRow),
        )


async def read_start_figures(database: Database) -> StartFiguresRow:
    """Return how good the expected starts of the last week were."""
    (found,) = await database.fetch(Q.start_figures, StartFiguresRow)
    return found


async def drift(database: Database) -> list[DriftRow]:
    """Return the rows of the ``drift`` view: broken invariants, none in health."""
    return await database.fetch(Q.drift, DriftRow)
