"""Who holds a FluxJob: the values of ``held_by``, ``author_hold``, ``blocked_by``, ``vacate_by``.

Used wherever rows are written, and for what users read. Sentences for users stand here, too, but
nothing is decided by them.
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

BY_COMPLEXITY = "too-complex"
"""``held_by`` of a FluxJob whose request costs more work than one request may."""

BY_QUARANTINE = "quarantine"
"""``held_by`` of a FluxJob that could not be read or decided: a defect, or a damaged row."""

SET_ASIDE = frozenset({BY_COMPLEXITY, BY_QUARANTINE})
"""``held_by`` of what the cycle has set aside, so that all others go on."""

BY_BEGIN_TIME = "begin-time"
"""``blocked_by`` of what is not to start yet."""

LOST_NODE = "lost-node"
"""``vacate_by`` of a FluxJob whose template names a node that takes no pods any more."""


CHANGED = "changed"
"""``vacate_by`` of a FluxJob whose workload came to ask for something else after it had been given
its nodes: suspended, edited and resumed by its author."""

CHANGED_REASON = "what its pods ask for was changed; it is placed anew"
"""Reason of such a FluxJob."""

FOR_JOB = "job "
"""How ``vacate_by`` begins where it names, by its jobid, for whom a FluxJob makes way."""


def author_reason(hold: str) -> str:
    """Return the reason of a FluxJob that its author holds in the way ``hold``."""
    is_annotated = hold == ANNOTATION
    return "held by its annotation fluxqueue/hold" if is_annotated else "suspended by its author"


def by_preemptor(jobid: int) -> str:
    """``vacate_by`` of a FluxJob that makes way for another."""
    return f"{FOR_JOB}{jobid}"


def is_preemptor(by: str | None) -> bool:
    """Whether ``vacate_by`` names a FluxJob for which another makes way; no actor is called so."""
    return by is not None and by.startswith(FOR_JOB)


LOST = "lost: "
"""How the reason of a FluxJob begins that runs, and a node of which is down or gone."""

UNSEEN = "deleted while nothing watched it: whether its work was done is not known"
"""Reason of a FluxJob whose workload vanished between two looks, and left nothing that tells how it
ended."""
