"""Reviews of a changed FluxJob: what a user may change there, with the user's name.

``admit`` asks these rules. Only fluxqueue's own components change the rest.
"""

from __future__ import annotations

from fluxqueue.workload.steered import with_steerer
from fluxqueue_webhook.review_rules import Facts, Request, Rule, Verdict


def only_changes(_: Facts, request: Request) -> Verdict | None:
    """Creation, deletion and the status are left as they are."""
    return None if request.is_edit else Verdict("untouched", why="nothing is steered")


def own_component(_: Facts, request: Request) -> Verdict | None:
    """A component of fluxqueue may change every field."""
    # Before the check for changes: our components also write the fields that a user must not.
    return Verdict("untouched", why="it is our own") if request.is_ours else None


def steer(_: Facts, request: Request) -> Verdict:
    """A user may change what can be steered. The user's name is recorded beside each change."""
    return Verdict("taken", with_steerer(request.old, request.present(), request.user))


RULES: tuple[Rule, ...] = (only_changes, own_component, steer)
