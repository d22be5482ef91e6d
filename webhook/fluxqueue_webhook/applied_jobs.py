"""Reviews of a changed Job: an apply of its manifest succeeds, and changes nothing.

``admit`` asks these rules. GitOps tools and Helm apply a manifest again and again. A refusal would
fail them, and a resumed Job would be suspended again at each sync.
"""

from __future__ import annotations

from fluxqueue.workload.gates import is_resumed, repinned
from fluxqueue_webhook.review_rules import Facts, Request, Rule, Verdict


def own_release(_: Facts, request: Request) -> Verdict | None:
    """A component of fluxqueue may resume and change a queued Job."""
    is_ours = request.is_ours or not request.old or request.obj is None
    return Verdict("untouched", why="only creation is looked at") if is_ours else None


def keep_suspended(_: Facts, request: Request) -> Verdict | None:
    """A Job that waits in the queue stays suspended. A warning says so."""
    applied = request.present()
    if not is_resumed(request.old, applied):
        return None
    text = f"Job {request.name} waits in the queue and stays suspended until it starts"
    spec = {**(applied.get("spec") or {}), "suspend": True}
    return Verdict("taken", {**applied, "spec": spec}, warnings=(text,))


def keep_node(_: Facts, request: Request) -> Verdict | None:
    """A released Job keeps its node."""
    wanted = repinned(request.old, request.present())
    return None if wanted is request.obj else Verdict("taken", wanted)


def other_changes(_: Facts, __: Request) -> Verdict:
    """Every other change is left as it is."""
    return Verdict("untouched", why="only creation is looked at")


RULES: tuple[Rule, ...] = (own_release, keep_suspended, keep_node, other_changes)
