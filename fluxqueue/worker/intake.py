"""The part of a cycle before its walk: which queue accepts which job, and how far to look.

Called by ``worker.schedule`` within the cycle's transaction, on FluxJobs that it has locked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from fluxqueue.db.database import Transaction
from fluxqueue.db.store.moves import recompute_priorities
from fluxqueue.db.store.queue_snapshot import (
    Applicant,
    Locked,
    QueueHead,
    QueueUser,
    Unreadable,
    hold,
    in_queues,
    let_go,
    mark_examined,
    queue_head,
    unexamined,
)
from fluxqueue.fluxjob.request import CPU
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.shape import fewest_nodes, total
from fluxqueue.policy.limits import Amounts, LimitUse, why_refused
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.scheduler.allowances import Allowances
from fluxqueue.scheduler.cycle_decisions import Failed, Queues
from fluxqueue.scheduler.pending_job import PendingJob, as_stated
from fluxqueue.scheduler.satisfiable import split_unsatisfiable

ROUNDS_MAX = 10
"""The most times that the heads of the queues are read to look past users at a limit."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Hold the result of an intake.

    ``looked_at``: the number of all examined jobs.
    ``possible``: the jobs that now wait in their queues.
    """

    looked_at: int = 0
    possible: list[PendingJob] = field(default_factory=list)
    impossible: list[tuple[PendingJob, str]] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)


async def take_in(
    tx: Transaction,
    matcher: Matcher,
    rules: Mapping[str, QueueRules],
    answers: dict[Jobspec, str | None],
    unreadable: Unreadable,
    locked: Locked,
    *,
    limit: int,
    allowances: Allowances,
) -> Taken:
    """Examine new jobs: each is held by its queue, impossible on this cluster, or waits.

    A job of a user without ``allowances`` waits, too. A later cycle examines it.
    """
    applicants = await unexamined(tx, rules, unreadable, locked, limit=limit)
    if not applicants:
        return Taken()
    failed: list[Failed] = []
    refused, accepted = _part(applicants, rules)
    await hold(tx, refused)
    await let_go(tx, [one.job.uid for one in accepted if one.state == FluxJobState.HELD])
    deferred: list[PendingJob] = []
    possible, impossible = split_unsatisfiable(
        matcher, [one.job for one in accepted], answers, failed, allowances, deferred
    )
    possible += deferred
    await mark_examined(tx, possible, impossible)
    return Taken(len(applicants), possible, impossible, failed)


def _part(
    applicants: Collection[Applicant], rules: Mapping[str, QueueRules]
) -> tuple[list[tuple[Applicant, str]], list[Applicant]]:
    refused: list[tuple[Applicant, str]] = []
    accepted: list[Applicant] = []
    for one in applicants:
        reason = why_refused(
            one.job.queue,
            rules.get(one.job.queue),
            namespace=one.namespace,
            request=as_stated(one.job, rules.get(one.job.queue)),
            is_new=one.is_new,
            waits_gated=one.waits_gated,
        )
        if reason is None:
            accepted.append(one)
        else:
            refused.append((one, reason))
    return refused, accepted


async def reconsider_queues(
    tx: Transaction,
    rules: Mapping[str, QueueRules],
    changed: Collection[str],
    unreadable: Unreadable,
) -> None:
    """Apply changed rules: hold refused jobs, release accepted ones, appraise the rest."""
    refused, accepted = _part(await in_queues(tx, rules, changed, unreadable), rules)
    await hold(tx, [(one, reason) for one, reason in refused if one.reason != reason])
    await let_go(tx, [one.job.uid for one in accepted if one.state == FluxJobState.HELD])
    await recompute_priorities(tx, sorted(changed))


async def past_full_users(
    tx: Transaction, view: QueueHead, rules: Mapping[str, QueueRules], queues: Queues
) -> QueueHead:
    """Look past users without a job that can start, so that their jobs do not hide others.

    There may be thousands of such jobs. The decision uses what runs before the cycle, which only
    grows during it.
    """
    bounded = {name for name, one in rules.items() if not one.per_user.is_empty}
    use = LimitUse.of(queues.use)
    for _ in range(ROUNDS_MAX if bounded else 0):
        # An unreadable job is quarantined later, when it is locked.
        head = await queue_head(tx, view, rules, Unreadable())
        found = _full_users(
            [job for job in head if job.queue in bounded], rules, use, default_depth=view.depth
        )
        if not found:
            break
        view = replace(view, full=view.full | found)
    return view


def _full_users(
    head: Collection[PendingJob],
    rules: Mapping[str, QueueRules],
    use: LimitUse,
    *,
    default_depth: int,
) -> set[QueueUser]:
    seen: dict[str, int] = {}
    for job in head:
        seen[job.queue] = seen.get(job.queue, 0) + 1
    crowded = {
        name
        for name, number in seen.items()
        if number >= (rules[name].queue_depth or default_depth)
    }
    full = {(job.queue, job.user) for job in head if job.queue in crowded}
    return full - {
        (job.queue, job.user)
        for job in head
        if (job.queue, job.user) in full and why_full(job, rules, use) is None
    }


def why_full(job: PendingJob, rules: Mapping[str, QueueRules], use: LimitUse) -> str | None:
    """Return which limit prevents ``job`` from starting whatever is free, or None."""
    amounts = Amounts(1, fewest_nodes(job.request), total(job.request, CPU))
    return use.why_over(rules[job.queue], job.user, amounts) if job.queue in rules else None
