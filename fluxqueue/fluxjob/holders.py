"""Who holds a FluxJob: the words of ``held_by``, ``author_hold`` and ``blocked_by``.

Used wherever rows are written, and for the words that users are told. What a FluxJob that its
author holds says to its users stands in ``sql/transitions.sql`` (``fluxjob_author_reason``);
nothing is decided by those sentences.
"""

AUTHOR = "author"
"""``held_by`` of a FluxJob that its author holds: by suspending it, or by ``fluxqueue/hold``."""

ANNOTATION = "annotation"
"""``author_hold`` of a FluxJob whose workload carries ``fluxqueue/hold``."""

SUSPENDED = "suspended"
"""``author_hold`` of a FluxJob whose BatchJob its author suspended after we had taken it in."""

BY_QUEUE = "queue"
"""``held_by`` of a FluxJob that its named queue does not take in."""

BY_DEPENDENCY = "dependency"
"""``held_by`` and ``blocked_by`` of what waits for others, or could never run because of them."""

BY_BEGIN_TIME = "begin-time"
"""``blocked_by`` of what is not to start yet."""

LOST_NODE = "lost-node"
"""``vacate_by`` of a FluxJob whose template names a node that takes no pods any more."""


FOR_JOB = "job "
"""How ``vacate_by`` begins where it names, by its jobid, for whom a FluxJob makes way."""


def by_preemptor(jobid: int) -> str:
    """``vacate_by`` of a FluxJob that makes way for another."""
    return f"{FOR_JOB}{jobid}"


def is_preemptor(by: str | None) -> bool:
    """Whether ``vacate_by`` names a FluxJob for which another makes way; no actor is called so."""
    return by is not None and by.startswith(FOR_JOB)


LOST = "lost: "
"""How the reason of a FluxJob begins that runs, and a node of which is down or gone."""
