"""The answer to one review, as data. Times are integer epoch seconds.

``explain.review`` makes it, and ``explain.review_status`` renders it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fluxqueue.fluxjob.wait_reason import WaitReason
from fluxqueue.scheduler.pending_job import PendingJob


class PlacementVerdict(StrEnum):
    """The three answers."""

    NOW = "Now"
    LATER = "Later"
    NEVER = "Never"


class Certainty(StrEnum):
    """How reliable an expected start is."""

    PROMISED = "Promised"
    """It would have a reservation: it starts later only if something fails."""
    ESTIMATED = "Estimated"
    """Planned behind the plans of all jobs ahead of it."""
    AT_BEST = "AtBest"
    """Planned behind the plans of jobs ahead, of which some have no plan yet."""


class Reason(StrEnum):
    """The reason in one word."""

    FITS = "Fits"
    RUNNING = "HasItsNodes"
    BUSY = "NodesBusy"
    PROMISED_TO_OTHERS = "PromisedToOthers"
    BEHIND = "BehindInQueue"
    OVER_LIMIT = WaitReason.OVER_LIMIT.value
    STOPPED = WaitReason.STOPPED.value
    CLAIM_IN_USE = WaitReason.CLAIM_IN_USE.value
    PROVISIONING = WaitReason.PROVISIONING.value
    NODES_UNUSABLE = WaitReason.UNUSABLE.value
    HELD = "Held"
    DEPENDENCY = "Dependency"
    BEGIN_TIME = "BeginTime"
    GATHERING = "Gathering"
    UNSATISFIABLE = "Unsatisfiable"
    REFUSED_BY_QUEUE = "RefusedByQueue"
    ENDED = "Ended"


@dataclass(frozen=True, slots=True)
class Check:
    """One requirement on a node, and how many nodes pass it, whatever else they lack.

    ``nodes`` counts on the empty cluster, nodes that are down or cordoned included. ``free`` counts
    what is free now, on usable nodes.
    """

    kind: str
    name: str
    nodes: int
    free: int


@dataclass(frozen=True, slots=True)
class Units:
    """Nodes that pass all requirements together, and the units that fit on them.

    ``nodes`` and ``units`` are on the empty cluster, ``free_nodes`` and ``free_units`` with what is
    free now. ``open_nodes`` and ``open_units`` leave out what is promised to others during the run.
    """

    nodes: int
    units: int
    free_nodes: int
    free_units: int
    open_nodes: int
    open_units: int


@dataclass(frozen=True, slots=True)
class Counted:
    """One kind of slots, and how the nodes meet its needs.

    ``wanted`` units of ``needs`` are requested. With ``is_distinct`` a unit is a node with
    ``per_unit`` slots.
    """

    label: str
    wanted: int
    per_unit: int
    is_distinct: bool
    needs: Mapping[str, int]
    checks: tuple[Check, ...]
    together: Units


@dataclass(frozen=True, slots=True)
class LevelAnswer:
    """How many places of a level can hold ``contents``. ``wanted`` of them are needed.

    There are ``places`` places. ``could`` of them are large enough on the empty cluster, and
    ``can`` of them have enough free now.
    """

    level: str
    contents: str
    wanted: int
    places: int
    could: int
    can: int


@dataclass(frozen=True, slots=True)
class Blocker:
    """A job that has nodes of the request, or gets them before it.

    ``uid`` is the UID of its workload. ``until`` None: no known end.
    """

    uid: str
    is_running: bool
    nodes: int
    until: int | None


@dataclass(frozen=True, slots=True)
class Change:
    """One change to a request.

    ``field`` is a field of ``spec.changes`` of a review, or of the FluxJob. ``text`` is the change
    in words: ``with 4 pods instead of 8``.
    """

    field: str
    value: str
    text: str


@dataclass(frozen=True, slots=True)
class PlacementOutcome:
    """When and where the request starts.

    ``nodes`` are the nodes of its slots. ``starts_at`` None: unknown. ``expected_by``: nine of ten
    such requests start by then.
    """

    verdict: PlacementVerdict
    reason: Reason
    message: str
    starts_at: int | None = None
    expected_by: int | None = field(default=None, kw_only=True)
    certainty: Certainty | None = None
    nodes: tuple[str, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    further_blockers: int = 0


@dataclass(frozen=True, slots=True)
class Variant:
    """A changed request that would start at once, or earlier.

    ``job`` is the whole request with the change.
    """

    change: Change
    outcome: PlacementOutcome
    job: PendingJob


@dataclass(frozen=True, slots=True)
class Place:
    """Its turn: ``position`` from 1 among the ``waiting`` jobs of its queue, itself included."""

    queue: str
    priority: int
    position: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything that a review answers."""

    request: str
    outcome: PlacementOutcome
    place: Place | None = None
    kinds: tuple[Counted, ...] = ()
    levels: tuple[LevelAnswer, ...] = ()
    variants: tuple[Variant, ...] = ()
    nodes_total: int = 0
    nodes_usable: int = field(default=0)
