"""What holds a job: the values of ``held_by``, ``author_hold``, ``blocked_by``, ``vacate_by``.

All writers of rows use it, and so do the reasons that users read. Sentences for users are here as
well, but no decision depends on them.
"""

AUTHOR = "author"
"""``held_by`` of a job that its author holds: by suspending it, or by ``fluxqueue/hold``."""

ANNOTATION = "annotation"
"""``author_hold`` of a job with ``fluxqueue/hold`` on its workload."""

SUSPENDED = "suspended"
"""``author_hold`` of a job: its author suspended the BatchJob after its adoption."""

PAUSED = "paused"
"""``author_hold`` and ``vacate_by`` of a job: its author set the parallelism of the BatchJob to 0.

The job runs no pods then, and it has not ended.
"""

BY_QUEUE = "queue"
"""``held_by`` of a job that its named queue does not accept."""

BY_DEPENDENCY = "dependency"
"""``held_by`` and ``blocked_by`` of a job that waits for others, or that they rule out."""

BY_COMPLEXITY = "too-complex"
"""``held_by`` of a job with a request that costs more work than one request may."""

BY_QUARANTINE = "quarantine"
"""``held_by`` of a job that could not be read or decided: a defect, or a damaged row."""

BY_START = "start"
"""``held_by`` of a job with pods that did not start in any of several tries."""

SET_ASIDE = frozenset({BY_COMPLEXITY, BY_QUARANTINE})
"""``held_by`` of jobs that the cycle has set aside, so that all others continue."""

RELEASABLE = SET_ASIDE | {BY_START}
"""``held_by`` of jobs that fluxqueue holds, and that a user may release."""

BY_BEGIN_TIME = "begin-time"
"""``blocked_by`` of a job that must not start before its begin time."""

LOST_NODE = "lost-node"
"""``vacate_by`` of a job: its template names a node that takes no pods any more."""


BY_RETRY = "start-retry"
"""``blocked_by`` of a job with pods that did not start: it is tried again after a pause."""

NOT_STARTED = "not-started"
"""``vacate_by`` of a job with pods that do not start where they were sent."""

RESTARTED = "restarted"
"""``vacate_by`` of a job that its author suspended and resumed: its limit begins anew."""

RESTARTED_REASON = "resumed, so its time limit begins anew and it waits for its turn"
"""Reason of such a job."""

OVERRAN = "overrun"
"""``vacate_by`` of a job that ran past its limit, in a queue that requeues such jobs."""

CHANGED = "changed"
"""``vacate_by`` of a job that asks for something else than its nodes were given for.

Its author has suspended, edited and resumed the workload.
"""

CHANGED_REASON = "the request of its pods has changed, so it is placed again"
"""Reason of such a job."""

FOR_JOB = "job "
"""Prefix of ``vacate_by`` if it names a preemptor, followed by its jobid."""

_AUTHOR_REASONS = {
    ANNOTATION: "held by its annotation fluxqueue/hold",
    PAUSED: "paused by its author: it waits until spec.parallelism is above 0",
}


def author_reason(hold: str) -> str:
    """Return the reason of a job that its author holds in the way ``hold``."""
    return _AUTHOR_REASONS.get(hold, "suspended by its author")


def by_preemptor(jobid: int) -> str:
    """Return the ``vacate_by`` of a job that is preempted by ``jobid``."""
    return f"{FOR_JOB}{jobid}"


def is_preemptor(by: str | None) -> bool:
    """Return whether ``vacate_by`` names a preemptor. No actor has such a name."""
    return by is not None and by.startswith(FOR_JOB)


LOST = "lost: "
"""Prefix of the reason of a running job that has a node which is down or gone."""

UNSEEN = "deleted while no controller watched: its result is unknown"
"""Reason of a job if its workload vanished between two observations.

Nothing is left that tells how the workload ended.
"""

SOME_WAIT = "some of its pods wait for a slot"
"""Prefix of the reason of a running job that could use further slots."""
