"""Running workloads that need further slots, and the slots that they got. Pure data.

``db.store.matcher_rows`` reads them, ``decisions`` stores them. ``top_up`` and ``sweeps`` decide.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fluxqueue.graph.ledger.placement import FOREVER, Placement
from fluxqueue.jobspec import Jobspec
from fluxqueue.prediction.durations import planned_end


@dataclass(frozen=True, slots=True)
class Lack:
    """A running workload with pods that wait for ``count`` more slots.

    ``nodes`` are the nodes of its present slots. ``until`` is the planned end of its allocation in
    epoch seconds. ``refused`` are nodes that refused one of its pods, used if no other fits.

    ``kinds`` are the labels of the missing slots, one per pod, if the pods are unequal. The limits
    of ``queue`` and ``user`` apply. ``cpu_m`` is the millicores of its present slots.

    ``is_unsure``: its pods have constraints that the matcher cannot judge.

    Its further slots take their turn in the queue, by ``priority`` and ``place``.

    ``is_independent``: its pods are independent, and each ends after ``duration_s`` seconds.

    ``has_limit``: its planned end is enforced. ``is_whole``: its pods start together or not at all.
    """

    uid: str
    count: int
    request: Jobspec
    nodes: tuple[str, ...]
    until: int
    refused: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    queue: str = ""
    user: str = ""
    cpu_m: int = 0
    is_independent: bool = False
    priority: int = 0
    jobid: int = 0
    duration_s: int = 0
    is_unsure: bool = False
    has_limit: bool = True
    is_whole: bool = False
    place: int = 0

    @property
    def held_s(self) -> int:
        """Return how long a further pod holds its slot, in seconds."""
        return self.duration_s + self.request.grace_s

    def planned_end(self, now: int) -> int:
        """Return when its slots are planned to be free."""
        return planned_end(self.until, now, self.until if self.has_limit else FOREVER)

    @property
    def turn(self) -> tuple[int, int]:
        """Return its sort key in the queue, as ``PendingJob.turn``."""
        return -self.priority, self.place or self.jobid


@dataclass(slots=True)
class Given:
    """The slots that workloads got, and by UID what stops a workload from more.

    ``is_more``: a workload got as many as one cycle gives. The next cycle gives further ones.
    """

    slots: list[tuple[Lack, list[Placement]]] = field(default_factory=list)
    barred: dict[str, str] = field(default_factory=dict)
    is_more: bool = False
