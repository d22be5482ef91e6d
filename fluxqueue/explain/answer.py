"""The answer to one review, as data. Made by ``explain.review``, written down by
``explain.status``. Times are integer epoch seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fluxqueue.fluxjob.kept_back import KeptBack
from fluxqueue.scheduler.cycle import PendingJob


class Verdict(StrEnum):
    """The three answers."""

    NOW = "Now"
    LATER = "Later"
    NEVER = "Never"


class Certainty(StrEnum):
    """How far an expected start can be relied on."""

    PROMISED = "Promised"
    """It would have a reservation: later than that only if something goes wrong."""
    ESTIMATED = "Estimated"
    """Behind what is planned for all that wait before it."""
    AT_BEST = "AtBest"
    """Behind what is planned; for some that wait before it nothing is planned yet."""


class Reason(StrEnum):
    """Why, in one word."""

    FITS = "Fits"
    RUNNING = "HasItsNodes"
    BUSY = "NodesBusy"
    PROMISED_TO_OTHERS = "PromisedToOthers"
    BEHIND = "BehindInQueue"
    OVER_LIMIT = KeptBack.OVER_LIMIT.value
    STOPPED = KeptBack.STOPPED.value
    NODES_UNUSABLE = KeptBack.UNUSABLE.value
    HELD = "Held"
    DEPENDENCY = "Dependency"
    BEGIN_TIME = "BeginTime"
    GATHERING = "Gathering"
    UNSATISFIABLE = "Unsatisfiable"
    REFUSED_BY_QUEUE = "RefusedByQueue"
    ENDED = "Ended"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that every node has to have, and how many have it: whatever else they lack.

    ``nodes`` counts the empty cluster, those down or cordoned included; ``free`` counts what is
    free at this moment, on nodes that can be used.
    """

    kind: str
    name: str
    nodes: int
    free: int


@dataclass(frozen=True, slots=True)
class Units:
    """Nodes that pass everything together, and how many units they have room for: on the empty
    cluster, with what is free now, and with what of that is promised to nobody for as long."""

    nodes: int
    units: int
    free_nodes: int
    free_units: int
    open_nodes: int
    open_units: int


@dataclass(frozen=True, slots=True)
class Counted:
    """One kind of slots: ``wanted`` units (``is_distinct``: nodes, with ``per_unit`` slots on
    each) of ``needs``, and what the nodes say to it."""

    label: str
    wanted: int
    per_unit: int
    is_distinct: bool
    needs: Mapping[str, int]
    checks: tuple[Check, ...]
    together: Units


@dataclass(frozen=True, slots=True)
class LevelCount:
    """``wanted`` places of a level must each hold ``contents``; of ``places`` so many could on the
    empty cluster (``could``), and so many can now (``can``)."""

    level: str
    contents: str
    wanted: int
    places: int
    could: int
    can: int


@dataclass(frozen=True, slots=True)
class Blocker:
    """Somebody who has, or is to have before it, nodes that it waits for.

    ``uid`` is of a workload; ``until`` None is without a known end.
    """

    uid: str
    is_running: bool
    nodes: int
    until: int | None


@dataclass(frozen=True, slots=True)
class Change:
    """What would be different: one field of a review's ``spec.changes`` or of the FluxJob, its
    value, and both in words: ``with 4 pods instead of 8``."""

    field: str
    value: str
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """When and where something starts; ``nodes`` are those of its slots, ``starts_at`` None is
    not known."""

    verdict: Verdict
    reason: Reason
    message: str
    starts_at: int | None = None
    certainty: Certainty | None = None
    nodes: tuple[str, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    further_blockers: int = 0


@dataclass(frozen=True, slots=True)
class Variant:
    """What would start at once, or earlier; ``job`` is the whole request with the change."""

    change: Change
    outcome: Outcome
    job: PendingJob


@dataclass(frozen=True, slots=True)
class Place:
    """Its turn: ``position`` counts from 1 among the ``waiting`` of its queue, itself included."""

    queue: str
    priority: int
    position: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything that a review says."""

    request: str
    outcome: Outcome
    place: Place | None = None
    kinds: tuple[Counted, ...] = ()
    levels: tuple[LevelCount, ...] = ()
    variants: tuple[Variant, ...] = ()
    nodes_total: int = 0
    nodes_usable: int = field(default=0)
