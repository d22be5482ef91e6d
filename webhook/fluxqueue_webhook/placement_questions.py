"""Reviews of a new PlacementReview: a question when a job would start.

``admit`` asks these rules.
"""

from __future__ import annotations

from fluxqueue_webhook.review_rules import Facts, Request, Rule, Verdict


def only_questions(_: Facts, request: Request) -> Verdict | None:
    """Only the creation of a question counts."""
    return None if request.is_creation else Verdict("untouched", why="only creation counts")


def record_asker(_: Facts, request: Request) -> Verdict:
    """A question that cannot be read is refused. The user that asks is recorded."""
    # Questions are rare, and their reader loads that of jobspecs.
    from fluxqueue.workload.placement_review import with_asker

    levels = request.settings.levels
    return Verdict("taken", with_asker(request.present(), request.user_info, levels))


RULES: tuple[Rule, ...] = (only_questions, record_asker)
