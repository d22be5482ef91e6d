"""What a named queue accepts, and how much of it may run at the same time.

The worker calls ``why_refused`` when it examines a FluxJob. The cycle calls ``LimitUse`` while it
walks the queue. Pure. The two outcomes are different: *refused* jobs are held until a user or
administrator changes something. Jobs *over a limit* wait, block no others, and start when enough
has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fluxqueue.fluxjob.request import CPU, describe_amount
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.shape import fewest_nodes, total
from fluxqueue.policy.queue_rules import Limits, QueueRules


@dataclass(frozen=True, slots=True)
class Amounts:
    """What FluxJobs use or ask for: their number, nodes touched, millicores."""

    jobs: int = 0
    nodes: int = 0
    cpu_m: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(self.jobs + other.jobs, self.nodes + other.nodes, self.cpu_m + other.cpu_m)


NOTHING = Amounts()


def why_refused(
    queue: str,
    rules: QueueRules | None,
    *,
    namespace: str,
    request: Jobspec,
    is_new: bool,
    waits_gated: bool = False,
) -> str | None:
    """Return why ``queue`` does not accept a FluxJob, or None if it does.

    Parameters
    ----------
    rules : of that queue. None means that there is no such queue.
    request : with the queue's default duration filled in.
    is_new : not accepted by this queue before. A queue that is not enabled keeps its jobs.
    waits_gated : its pods exist while it waits.
    """
    if rules is None:
        return (
            f"fluxqueue/queue: there is no FluxQueue {queue!r}; create it, or move the job to "
            "another (kubectl get fluxqueues)"
        )
    if rules.namespaces is not None and namespace not in rules.namespaces:
        return (
            f"queue {queue}: spec.allowedNamespaces does not have namespace {namespace!r}; "
            "submit elsewhere, choose another queue, or have the namespace allowed"
        )
    if is_new and not rules.is_enabled:
        return (
            f"queue {queue}: spec.enabled is false, it takes no submissions; "
            "wait until it is enabled or choose another queue"
        )
    if waits_gated and not rules.takes_gated:
        return (
            f"queue {queue}: spec.gatedJobs is forbidden, and the Job has fluxqueue/wait: gated; "
            "remove the annotation or choose another queue"
        )
    return _over_per_job(queue, rules.per_job, request)


def why_too_large(rules: QueueRules, has: Amounts, more: Amounts) -> str | None:
    """Return the limit of one job that ``more`` would exceed, on top of what that job ``has``."""
    return _over(rules, "perJob", replace(rules.per_job, jobs=None), has, more, "it")


def _over_per_job(queue: str, limits: Limits, request: Jobspec) -> str | None:
    path = f"queue {queue}: spec.limits.perJob"
    way_out = "ask for less or choose another queue"
    if limits.duration_s is not None:
        if not request.duration_s:
            return (
                f"{path}.durationSeconds is {limits.duration_s}, the job has no duration; "
                "give it activeDeadlineSeconds or fluxqueue/duration"
            )
        if request.duration_s > limits.duration_s:
            return (
                f"{path}.durationSeconds is {limits.duration_s}, the job asks for "
                f"{request.duration_s:g}; {way_out}"
            )
    if limits.grace_s is not None and request.grace_s > limits.grace_s:
        return (
            f"{path}.graceSeconds is {limits.grace_s}, terminationGracePeriodSeconds of the job is "
            f"{request.grace_s}; {way_out}"
        )
    cpu_m, nodes = total(request, CPU), fewest_nodes(request)
    if limits.cpu_m is not None and cpu_m > limits.cpu_m:
        return (
            f"{path}.cpu is {describe_amount(CPU, limits.cpu_m)}, the job asks for "
            f"{describe_amount(CPU, cpu_m)}; {way_out}"
        )
    if limits.nodes is not None and nodes > limits.nodes:
        return f"{path}.nodes is {limits.nodes}, the job needs {nodes}; {way_out}"
    return None


@dataclass(slots=True)
class LimitUse:
    """What holds resources now, by queue and by (queue, user). It grows while a cycle decides.

    A FluxJob with a reservation counts too. Otherwise a job that starts before it could use up the
    limit that it was promised.
    """

    by_queue: dict[str, Amounts] = field(default_factory=dict)
    by_user: dict[tuple[str, str], Amounts] = field(default_factory=dict)

    @classmethod
    def of(cls, by_user: Mapping[tuple[str, str], Amounts]) -> LimitUse:
        """Sum up amounts that were counted by (queue, user)."""
        found = cls()
        for (queue, user), amounts in by_user.items():
            found.add(queue, user, amounts)
        return found

    def add(self, queue: str, user: str, more: Amounts) -> None:
        """Count ``more`` as used."""
        self.by_queue[queue] = self.by_queue.get(queue, NOTHING) + more
        self.by_user[queue, user] = self.by_user.get((queue, user), NOTHING) + more

    def why_over(self, rules: QueueRules, user: str, more: Amounts) -> str | None:
        """Return the limit that ``more`` would exceed, its value and what is used, or None."""
        mine = self.by_user.get((rules.name, user), NOTHING)
        whose = f"user {user}" if user else "users without a name"
        return (
            _over_nodes_per_job(rules, more)
            or _over(rules, "perUser", rules.per_user, mine, more, whose)
            or _over(
                rules,
                "total",
                rules.total,
                self.by_queue.get(rules.name, NOTHING),
                more,
                f"queue {rules.name}",
            )
        )


def _over_nodes_per_job(rules: QueueRules, more: Amounts) -> str | None:
    limit = rules.per_job.nodes
    if limit is None or more.nodes <= limit:
        return None
    return (
        f"queue {rules.name}: spec.limits.perJob.nodes is {limit}; "
        f"as nodes are free now it would touch {more.nodes}"
    )


def _over(
    rules: QueueRules, group: str, limits: Limits, used: Amounts, more: Amounts, whose: str
) -> str | None:
    path = f"queue {rules.name}: spec.limits.{group}"
    for name, limit, now, then in (
        ("jobs", limits.jobs, used.jobs, more.jobs),
        ("nodes", limits.nodes, used.nodes, more.nodes),
    ):
        # A job that adds nothing exceeds no limit, even if it was lowered below what runs.
        if limit is not None and then > 0 and now + then > limit:
            return f"{path}.{name} is {limit}, {whose} has {now} and this job needs {then} more"
    if limits.cpu_m is not None and more.cpu_m > 0 and used.cpu_m + more.cpu_m > limits.cpu_m:
        return (
            f"{path}.cpu is {describe_amount(CPU, limits.cpu_m)}, {whose} has "
            f"{describe_amount(CPU, used.cpu_m)} and this job needs "
            f"{describe_amount(CPU, more.cpu_m)} more"
        )
    return None
