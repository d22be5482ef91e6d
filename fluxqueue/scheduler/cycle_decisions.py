"""What a cycle is given beside the queue, and what it decides. ``cycle`` fills it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fluxqueue.fluxjob.wait_reason import WaitReason
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.policy.limits import NOTHING, Amounts
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.scheduler.lack import Given, Lack
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.scheduler.preemption_plan import NO_PREEMPTIONS, MakingWay, Preemptions

Failed: TypeAlias = tuple[PendingJob, Exception]
"""A job that could not be decided, and the error."""


@dataclass(slots=True)
class Decisions:
    """What one cycle decided.

    ``allocated`` jobs start now and ``reserved`` jobs have a promised start. ``unsatisfiable`` jobs
    can never run on this cluster. ``waiting`` holds the reason of each job that waits, with the
    time if it is known.

    ``unpromised`` jobs wait as well. Nodes are kept for them from a latest start on that they
    cannot rely on. ``expected`` maps the UIDs of some of them to their planned start.

    ``pulled`` jobs wait as well. Their nodes are kept for this cycle only.

    ``barred`` are the UIDs of jobs that wait for something other than resources, such as a limit or
    a stopped queue. ``wait_reason`` maps a UID to the kind of what the job waits for. It has no
    entry for a job that waits for nodes or for its turn.

    ``making_way`` maps the UID of a reserved job to the victims that leave for it. ``preempted``
    lists those preemptions that this cycle has decided.

    ``provisioning`` are the UIDs of jobs that wait for nodes that were asked for. The caller of
    ``run_cycle`` adds them.

    ``costly`` jobs wait as well: to decide about them takes too much work while others run.

    ``quarantined`` jobs could not be decided because of a defect. Nothing is allocated to them.

    ``grown``: the further slots of running workloads.
    """

    allocated: list[tuple[PendingJob, Placement]] = field(default_factory=list)
    reserved: list[tuple[PendingJob, Placement]] = field(default_factory=list)
    unsatisfiable: list[tuple[PendingJob, str]] = field(default_factory=list)
    waiting: list[tuple[PendingJob, str]] = field(default_factory=list)
    unpromised: list[tuple[PendingJob, Placement]] = field(default_factory=list)
    pulled: list[tuple[PendingJob, Placement]] = field(default_factory=list)
    expected: dict[str, int] = field(default_factory=dict)
    barred: set[str] = field(default_factory=set)
    wait_reason: dict[str, WaitReason] = field(default_factory=dict)
    making_way: dict[str, MakingWay] = field(default_factory=dict)
    preempted: list[tuple[PendingJob, MakingWay]] = field(default_factory=list)
    provisioning: set[str] = field(default_factory=set)
    costly: list[PendingJob] = field(default_factory=list)
    quarantined: list[Failed] = field(default_factory=list)
    grown: Given = field(default_factory=Given)

    @property
    def kept(self) -> list[tuple[PendingJob, Placement]]:
        """Return the waiting jobs that have nodes in the plan of this cycle, and these nodes."""
        return [*self.reserved, *self.unpromised, *self.pulled]


@dataclass(frozen=True, slots=True)
class Queues:
    """The named queues of one cycle: the rules of each, and what each uses already.

    ``rules`` has the name of the queue as its key, ``use`` the queue and the user.
    """

    rules: Mapping[str, QueueRules] = field(default_factory=dict)
    use: dict[tuple[str, str], Amounts] = field(default_factory=dict)

    @property
    def are_several(self) -> bool:
        """Whether jobs of another queue may come between the jobs of one queue."""
        return len(self.rules) > 1

    def count(self, queue: str, user: str, more: Amounts) -> None:
        """Add an amount that was given outside the walk."""
        self.use[queue, user] = self.use.get((queue, user), NOTHING) + more


@dataclass(frozen=True, slots=True)
class Ongoing:
    """What goes on beside the queue while it is walked.

    Parameters
    ----------
    preemptions : Running jobs that may be requeued, and victims that leave already. The matcher
        plans each victim that is chosen to end when its preemptor may start.
    lacks : Running workloads that need more slots. They grow at their places in the order of the
        walk.
    awaited : What is held for jobs with nodes on order, by UID: nodes that have come, and slots on
        present nodes (``provisioning.hold_nodes``). Limits count these jobs as if they ran.
    """

    preemptions: Preemptions = NO_PREEMPTIONS
    lacks: Sequence[Lack] = ()
    awaited: Mapping[str, Sequence[Placement]] = field(default_factory=dict)


NOTHING_ONGOING = Ongoing()
