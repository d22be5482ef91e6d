"""Reviews of a new pod of a released Job with a placement: it gets the node of its index.

``admit.place`` asks these rules. The API server asks for nothing else there (``configuration``).
Such a pod is never refused, because it can come gated. The types of a Pod were checked by the API
server.
"""

from __future__ import annotations

from fluxqueue.workload.kinds.admitted import POD
from fluxqueue_webhook.review_rules import Facts, Request, Rule, Verdict


def only_new_pods(_: Facts, request: Request) -> Verdict | None:
    """Pods are placed when they are created."""
    if request.is_creation and request.kind is POD and request.obj is not None:
        return None
    return Verdict("untouched", why="only pods are placed, when they are created")


def placed(facts: Facts, request: Request) -> Verdict:
    """A pod with a proven placement is released to its node. Any other one comes gated."""
    # Clusters without placements never load it.
    from fluxqueue.workload.index_placement import placed_by_proof

    settings = request.settings
    wanted = placed_by_proof(
        facts.wanted,
        requester=request.user,
        controllers=settings.submitters.controllers,
        key=settings.placement_key,
        now_s=request.now_s,
    )
    if wanted is None:
        return Verdict("untouched", why="its placement does not hold")
    return Verdict("placed", wanted)


RULES: tuple[Rule, ...] = (only_new_pods, placed)
