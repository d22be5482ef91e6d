"""All rows that ``fluxqueue check`` compares with the cluster, as of one instant.

Read in one statement, so that every row is of the same snapshot: a difference *between rows* found
here is real, whatever is being committed at that moment. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from fluxqueue.db.database import Database
from fluxqueue.db.leadership import DUE
from fluxqueue.db.store.ends import GRANTED_UNTIL, QUEUE_MOST_S
from fluxqueue.db.tables import LIVING
from fluxqueue.db.task_statements import TASK_ATTEMPTS


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
    fluxjobs: tuple[FluxJobRow, ...] = ()
    members: tuple[MemberRow, ...] = ()
    allocations: tuple[AllocationRow, ...] = ()
    slots: tuple[SlotRow, ...] = ()
    usage: tuple[UsageRow, ...] = ()
    reservations: tuple[ReservationRow, ...] = ()
    promises: tuple[PromiseRow, ...] = ()
    late: tuple[LateEffect, ...] = ()
    drift: tuple[DriftRow, ...] = ()
    loops: tuple[LoopRow, ...] = ()
    quarantined_objects: tuple[QuarantinedRow, ...] = ()


_TABLES: Mapping[str, tuple[type[Any], str]] = {
    "fluxjobs": (
        FluxJobRow,
        f"""
        SELECT uid, jobid, namespace, name, workload_kind, workload_name, flux_uid, state, reason,
               size, is_gone, extract(epoch FROM allocated_at)::bigint AS allocated_at_s,
               EXISTS (SELECT FROM reservations r WHERE r.uid = f.uid) AS has_reservation,
               vacate_by IS NOT NULL AS is_vacating, cancel_by IS NOT NULL AS is_cancelled,
               coalesce((SELECT string_agg(f ->> 'message', '; ')
                         FROM jsonb_array_elements(faults) AS t (f)), '')
               || coalesce((SELECT string_agg(format('%s is refused: %s', t.key, t.value), '; ')
                            FROM jsonb_each_text(stalled) AS t), '') AS trouble
        FROM fluxjobs f
        WHERE NOT is_gone OR {LIVING} OR uid = ANY(CAST(:uids AS text[]))
        """,  # noqa: S608 constant
    ),
    "members": (
        MemberRow,
        """
        SELECT p.uid AS pod_uid, p.workload_uid AS uid, p.slot_kind
        FROM pods p JOIN fluxjobs f ON f.uid = p.workload_uid WHERE f.is_gathered
          OR f.owner ->> 'suspend' <> ''
        """,
    ),
    "allocations": (
        AllocationRow,
        f"""
        SELECT a.id, a.uid, a.until AS until_s, ({GRANTED_UNTIL}) AS granted_s,
               {QUEUE_MOST_S} AS most_s
        FROM allocations a LEFT JOIN fluxjobs f USING (uid)
        LEFT JOIN fluxqueues q ON q.name = f.queue WHERE a.is_live
        """,  # noqa: S608 constants
    ),
    "slots": (
        SlotRow,
        """
        SELECT s.allocation_id, a.uid, s.number, s.node, s.resources, s.state, s.pod_uid
        FROM allocations a JOIN allocation_slots s ON s.allocation_id = a.id WHERE a.is_live
        """,
    ),
    "usage": (
        UsageRow,
        "SELECT node, resource, capacity, allocated, foreign_used, free FROM node_usage",
    ),
    "reservations": (
        ReservationRow,
        "SELECT uid, starts_at AS starts_at_s FROM reservations",
    ),
    "promises": (
        PromiseRow,
        f"""
        SELECT p.uid, (p.detail ->> 'starts_at')::bigint AS starts_at_s,
               CASE WHEN n.event = 'Allocated' THEN extract(epoch FROM n.at)::bigint END
                   AS allocated_at_s,
               (SELECT x.detail ->> 'excuse' FROM history x
                WHERE x.uid = p.uid AND x.id > p.id AND x.event = 'PromiseExcused'
                  AND (n.id IS NULL OR x.id < n.id) ORDER BY x.id LIMIT 1) AS excuse
        FROM fluxjobs f JOIN history p ON p.uid = f.uid AND p.event = 'Promised'
        LEFT JOIN LATERAL (
            SELECT h.id, h.event, h.at FROM history h
            WHERE h.uid = p.uid AND h.id > p.id
              AND h.event NOT IN ('Pending', 'Reserved', 'Preempting', 'PromiseExcused',
                                  'ExpectedStartDelayed')
            ORDER BY h.id LIMIT 1) n ON true
        WHERE (NOT f.is_gone OR f.{LIVING})
          AND (n.event = 'Allocated' OR n.event IS NULL AND f.state IN ('Pending', 'Reserved'))
        """,  # noqa: S608 constant
    ),
    "late": (
        LateEffect,
        f"""
        SELECT o.task, o.uid, coalesce(t.attempts, 0) AS attempts, o.last_error,
               extract(epoch FROM greatest(now() - {DUE}, interval '0'))::bigint AS overdue_s
        FROM pending_actions o LEFT JOIN ({TASK_ATTEMPTS}) t
            ON t.task_name = o.task AND t.uid = o.uid
        WHERE {DUE} < now() - make_interval(secs => :overdue_s) OR t.attempts >= :attempts
        """,  # noqa: S608 constant
    ),
    "drift": (DriftRow, "SELECT invariant, subject, detail FROM drift"),
    "loops": (
        LoopRow,
        """
        SELECT loop, patience_s, error,
               extract(epoch FROM now() - greatest(succeeded_at, began_at))::bigint AS silent_s
        FROM loops
        """,
    ),
    "quarantined_objects": (
        QuarantinedRow,
        "SELECT kind, key, namespace, name, reason FROM quarantined_objects",
    ),
}

_STATEMENT = "SELECT extract(epoch FROM now())::bigint AS now_s" + "".join(  # noqa: S608 constants
    f",\n (SELECT coalesce(jsonb_agg(to_jsonb(t)), '[]'::jsonb) FROM ({sql}) t) AS {name}"  # noqa: S608
    for name, (_, sql) in _TABLES.items()
)


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
    async with database.begin() as tx:
        found = await tx.fetch_one(
            _STATEMENT, uids=sorted(also), overdue_s=overdue_s, attempts=attempts
        )
    assert found is not None, "a SELECT without FROM gives one row"
    tables: dict[str, Any] = {
        name: tuple(_make(kind, row) for row in found[name]) for name, (kind, _) in _TABLES.items()
    }
    return Rows(now_s=found["now_s"], **tables)


def _make(kind: type[Any], row: Mapping[str, Any]) -> Any:
    return kind(**{one.name: row[one.name] for one in fields(kind)})
