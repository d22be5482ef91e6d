"""Running workloads that need further slots, and the slots that they got. Pure data.

``db.store.decisions`` reads and stores them. ``top_up`` and ``sweeps`` decide.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.jobspec import Jobspec


@dataclass(frozen=True, slots=True)
class Lack:
    """A running workload with pods that wait for ``count`` more slots.

    ``nodes`` are the nodes of its present slots. ``until`` is the end of its allocation in epoch
    seconds. ``refused`` are nodes that refused one of its pods, used only if there is no other.

    ``kinds`` are the labels of the missing slots, one per pod, if the pods are unequal. The limits
    of ``queue`` and ``user`` apply. ``cpu_m`` is the millicores of its present slots.

    ``is_unsure``: its pods have constraints that the matcher cannot judge.

    ``is_sweep``: its pods are independent. Each further one takes its turn in the queue, by
    ``priority`` and ``jobid``, and ends after ``duration_s`` seconds (0: unknown).
    """

    uid: str
    count: int
    request: Jobspec
    nodes: tuple[str, ...]
    until: int | None
    refused: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    queue: str = ""
    user: str = ""
    cpu_m: int = 0
    is_sweep: bool = False
    priority: int = 0
    jobid: int = 0
    duration_s: int = 0
    is_unsure: bool = False


@dataclass(slots=True)
class Given:
    """The slots that workloads got, and by UID what stops a workload from more.

    ``is_more``: a workload got as many as one cycle gives. The next cycle gives further ones.
    """

    slots: list[tuple[Lack, list[Placement]]] = field(default_factory=list)
    barred: dict[str, str] = field(default_factory=dict)
    is_more: bool = False

    def add(self, other: Given) -> None:
        """Add what other workloads got."""
        self.slots += other.slots
        self.barred |= other.barred
        self.is_more |= other.is_more
