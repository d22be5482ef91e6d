"""Named queues in a simulation: which one takes a job, its limits, and the fair share of users.

``Engine`` calls it. The rules are those of FluxQueues, and limits and points are computed by
production code. Times are virtual. ``read_queues`` reads the file of ``fluxqueue sim --queues``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.shape import total
from fluxqueue.policy.fair_share import decay, decayed_use, factors, to_points
from fluxqueue.policy.limits import Amounts, why_refused
from fluxqueue.policy.queue_policy import QueuePolicy
from fluxqueue.policy.queue_rules import DEFAULT_QUEUE, QueueRules, read_rules
from fluxqueue.simulation.simulated_jobs import SimulatedJob
from fluxqueue.workload.annotations import MAX_INT32

NAMESPACE = "default"
SHARE_INTERVAL_S = 60
"""Seconds between two computations of points, as ``FLUXQUEUE_FAIR_SHARE_INTERVAL_S``."""

Pair = tuple[str, str]
"""A queue and a user."""


@dataclass(slots=True)
class _HeldCpus:
    """The cores that a running job holds, and since when they are counted."""

    pair: Pair
    amounts: Amounts
    since: int


@dataclass(slots=True)
class SimulatedQueues:
    """The queues of one run, what each uses, and the points of each user."""

    rules: Mapping[str, QueueRules]
    _held: dict[str, _HeldCpus] = field(default_factory=dict)
    _used: dict[Pair, float] = field(default_factory=dict)
    _points: dict[Pair, int] = field(default_factory=dict)
    _users: set[Pair] = field(default_factory=set)
    _counted_at: int = 0
    _shared_at: int = -SHARE_INTERVAL_S

    @property
    def has_fair_share(self) -> bool:
        """Tell whether priorities change with use."""
        return any(one.fair_share is not None for one in self.rules.values())

    def why_refused(self, job: SimulatedJob) -> str | None:
        """Return why the queue does not take the job, or None."""
        rules = self.rules.get(job.queue)
        request = self.request(job)
        if rules is not None:
            self._users.add((job.queue, job.user))
        return why_refused(job.queue, rules, namespace=NAMESPACE, request=request, is_new=True)

    def request(self, job: SimulatedJob) -> Jobspec:
        """Return the request, with the queue's default duration if the job has none."""
        rules = self.rules.get(job.queue)
        if job.request.duration_s or rules is None or rules.default_duration_s is None:
            return job.request
        return replace(job.request, duration_s=float(rules.default_duration_s))

    def planned(self, job: SimulatedJob) -> Jobspec:
        """Return the request as it is planned. Each job has a planned duration."""
        duration_s = job.request.duration_s or float(self.planned_s(job))
        return replace(job.request, duration_s=duration_s)

    def planned_s(self, job: SimulatedJob) -> int:
        """Return how long its queue plans a job without a duration, in seconds."""
        return (self.rules.get(job.queue) or QueueRules(job.queue)).planned_s

    def priority(self, job: SimulatedJob) -> int:
        """Return the effective priority: within the bounds, plus the queue's, plus fair share."""
        rules = self.rules.get(job.queue)
        if rules is None:
            return job.priority
        low = -MAX_INT32 if rules.min_priority is None else rules.min_priority
        high = MAX_INT32 if rules.max_priority is None else rules.max_priority
        points = self._points.get((job.queue, job.user), to_points(1.0, rules))
        return min(high, max(low, job.priority)) + rules.priority + points

    def depth(self, queue: str, default: QueuePolicy) -> int:
        """Return how many jobs of a queue one cycle examines."""
        rules = self.rules.get(queue)
        return (default if rules is None else rules.policy(default)).queue_depth

    def use(self) -> dict[Pair, Amounts]:
        """Return what running jobs use, by queue and user, of the queues that limit it."""
        bounded = {name for name, rules in self.rules.items() if rules.has_use_limits}
        found: dict[Pair, Amounts] = defaultdict(Amounts)
        for one in self._held.values() if bounded else ():
            if one.pair[0] in bounded:
                found[one.pair] += one.amounts
        return dict(found)

    def remember(self, used: Mapping[Pair, float]) -> None:
        """Set the core-seconds that each user has used before time 0, decayed to that time."""
        self._used = dict(used)
        self._users |= set(used)

    def begin(self, job: SimulatedJob, placement: Placement, now: int) -> None:
        """Count a job that starts."""
        amounts = Amounts(1, len(set(placement.nodes)), total(job.request, CPU))
        self._held[job.uid] = _HeldCpus((job.queue, job.user), amounts, now)

    def end(self, uid: str) -> None:
        """Count a job that gave its resources back. Call ``advance`` for this time first."""
        self._held.pop(uid, None)

    def advance(self, now: int) -> bool:
        """Add the use until ``now``. Returns whether points were computed again."""
        if not self.has_fair_share:
            return False
        for pair in self._used:
            half_life_s = self._half_life(pair[0])
            self._used[pair] = decay(self._used[pair], now - self._counted_at, half_life_s)
        for one in self._held.values():
            since = max(one.since, self._counted_at)
            more = decayed_use(
                one.amounts.cpu_m / 1000, since, now, now, self._half_life(one.pair[0])
            )
            self._used[one.pair] = self._used.get(one.pair, 0.0) + more
        self._counted_at = now
        if now - self._shared_at < SHARE_INTERVAL_S:
            return False
        self._shared_at = now
        sharing = {name: one for name, one in self.rules.items() if one.fair_share is not None}
        found = factors(
            {pair: amount for pair, amount in self._used.items() if pair[0] in sharing},
            self._users,
            {name: one.weight for name, one in sharing.items()},
        )
        self._points = {
            pair: to_points(factor, self.rules[pair[0]]) for pair, factor in found.items()
        }
        return True

    def _half_life(self, queue: str) -> int:
        rules = self.rules.get(queue)
        return 1 if rules is None or rules.fair_share is None else rules.fair_share.half_life_s


def read_queues(documents: Iterable[Any], source: str) -> dict[str, QueueRules]:
    """Read FluxQueues, one by one or in a List. Without a queue ``default``, an open one is added.

    Raises
    ------
    InvalidInput
        One of them is no FluxQueue, or a field is not valid.
    """
    found: dict[str, QueueRules] = {}
    for one in _flattened(documents):
        name = ((one.get("metadata") or {}) if isinstance(one, dict) else {}).get("name")
        if not name or one.get("kind") != "FluxQueue":
            raise InvalidInput(
                "has something other than FluxQueues",
                where=source,
                hint="name a YAML file with FluxQueues, such as kubectl get fluxqueues -o yaml",
            )
        try:
            found[str(name)] = read_rules(str(name), one.get("spec") or {})
        except InvalidInput as error:
            raise InvalidInput(
                error.message, where=f"{source}, {name}: {error.where}", hint=error.hint
            ) from None
    found.setdefault(DEFAULT_QUEUE, QueueRules(DEFAULT_QUEUE))
    return found


def _flattened(documents: Iterable[Any]) -> Iterable[Any]:
    for one in documents:
        if isinstance(one, dict) and isinstance(one.get("items"), list):
            yield from one["items"]
        elif one is not None:
            yield one
