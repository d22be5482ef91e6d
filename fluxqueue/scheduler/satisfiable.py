"""Which jobs can never run on this cluster. The worker asks before a cycle. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from fluxqueue.fluxjob.provision import Provision
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.tell.never import why_never
from fluxqueue.jobspec import Jobspec
from fluxqueue.scheduler.allowances import Allowances, NotThisTime
from fluxqueue.scheduler.cycle_decisions import Failed
from fluxqueue.scheduler.pending_job import PendingJob


def split_unsatisfiable(
    matcher: Matcher,
    jobs: Iterable[PendingJob],
    answers: dict[Jobspec, str | None] | None = None,
    failed: list[Failed] | None = None,
    allowances: Allowances | None = None,
    deferred: list[PendingJob] | None = None,
) -> tuple[list[PendingJob], list[tuple[PendingJob, str]]]:
    """Separate jobs that could run on the empty cluster from jobs that never can.

    Parameters
    ----------
    answers : The reason by request, None if the request is possible. It is filled here, and stays
        valid until nodes change.
    failed : Gets the jobs that could not be judged. Without it the first error is raised.
    allowances : Limits the work of each user.
    deferred : Gets the jobs that exceed the allowance of their user. A later cycle judges them.

    Returns
    -------
    The possible jobs, and the impossible ones with the reason of each.
    """
    possible: list[PendingJob] = []
    never: list[tuple[PendingJob, str]] = []
    allowances = allowances or Allowances()
    deferred = [] if deferred is None else deferred
    answers = {} if answers is None else answers
    for job in jobs:
        # The answer to a job that may get no new nodes may differ from that to equal requests.
        is_shared = matcher.further is None or job.provision is not Provision.NEVER
        reason = answers.get(job.request, "") if is_shared else ""
        if reason == "":
            try:
                with allowances.deciding(matcher, job.user, job.request):
                    reason = _why_never(matcher, job)
                    if is_shared:
                        answers[job.request] = reason
            except NotThisTime:
                deferred.append(job)
                continue
            except Exception as error:
                if failed is None:
                    raise
                failed.append((job, error))
                continue
        if reason is None:
            possible.append(job)
        else:
            never.append((job, reason))
    return possible, never


def _why_never(matcher: Matcher, job: PendingJob) -> str | None:
    """Return why ``job`` can never run on this cluster, or None if it can."""
    may_grow = job.provision is not Provision.NEVER
    able = matcher.is_satisfiable if may_grow else matcher.by_shares.is_satisfiable
    if able(job.request):
        return None
    return why_never(matcher.by_shares, job.request)
