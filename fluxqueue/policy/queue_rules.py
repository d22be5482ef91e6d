"""The rules of one named queue, read from the spec of a FluxQueue.

``db.store.queues`` makes them from rows for the cycle. The controller makes them to check a spec
before it is stored. Pure. docs/admin/queues.md explains the fields to administrators. The spec must
fit the definition in ``chart/crds/fluxqueues.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.limit import OverrunAction, OverrunRules
from fluxqueue.fluxjob.request import CPU
from fluxqueue.policy.provision_rules import NO_RULES, ProvisionRules, read_provision_rules
from fluxqueue.policy.queue_policy import POLICIES, QueuePolicy, queue_policy
from fluxqueue.policy.spec_fields import as_mapping, as_texts, as_whole
from fluxqueue.workload.annotations import MAX_INT32, parse_duration
from fluxqueue.workload.quantity import to_base_units

DEFAULT_QUEUE = "default"

PLANNED_S = 3600
"""How long a job is planned to run if neither it, nor its queue, nor the site says so."""

SHORTEST, IN_ORDER = "shortest", "inOrder"
"""The values of ``spec.jumpers``: which job jumps ahead of a blocked one first."""


class Learn(StrEnum):
    """``spec.durations.learn``: which jobs of a queue are planned by ended runs."""

    OFF = "off"
    ON = "on"
    DECLARED_ONLY = "declaredOnly"

    def covers(self, *, is_declared: bool) -> bool:
        """Return whether a job is planned by ended runs. ``is_declared``: it states a duration."""
        return self is Learn.ON or (self is Learn.DECLARED_ONLY and is_declared)


HALF_LIFE_S = 7 * 86_400
"""Slurm's default ``PriorityDecayHalfLife``: a week."""

FAIR_SHARE_WEIGHT = 1000
"""Most points that fair share adds to a priority, if the administrator sets no other."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds. None means no limit. ``cpu_m`` is in millicores, times are in seconds."""

    jobs: int | None = None
    nodes: int | None = None
    cpu_m: int | None = None
    duration_s: int | None = None
    grace_s: int | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is limited."""
        return self == NO_LIMITS


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class FairShare:
    """Half-life of past use in seconds, and the most points that it is worth."""

    half_life_s: int = HALF_LIFE_S
    points: int = FAIR_SHARE_WEIGHT


ALLOWED = "allowed"
"""The default of ``spec.gatedJobs``. The other value is ``forbidden``."""

LOWER_PRIORITY = "lowerPriority"
"""The only value of ``spec.preemption.within``: victims must have a lower priority."""


@dataclass(frozen=True, slots=True)
class PreemptionRules:
    """Which jobs the head of a queue may preempt, so that it can start.

    ``queues`` are the queues with possible victims, including its own. Jobs that have run for less
    than ``min_runtime_s`` (seconds) are not preempted. Victims are warned ``grace_s`` (seconds)
    before.
    """

    queues: frozenset[str]
    min_runtime_s: int = 0
    grace_s: int = 0


@dataclass(frozen=True, slots=True)
class QueueRules:
    """The rules of one queue for the cycle.

    ``policy_name`` and the depths are None if the administrator left them to the settings of the
    worker. ``namespaces`` are the allowed ones, None for all. ``weight`` is the queue's share among
    the queues. ``priority`` is added to each of its FluxJobs. ``start_timeout_s`` is the most
    seconds that a start may take. ``takes_gated``: it takes Jobs that wait with gated pods.
    ``planned_s`` is planned for jobs without a duration: ``default_duration_s``, or the site's.
    ``max_delay_s`` is how far jobs that jump by their plan may delay a blocked one. ``jumpers`` is
    ``shortest`` or ``inOrder``: which of these jobs is the first. ``learn`` says which jobs are
    planned by ended runs.
    ``provision`` says when nodes of pools are asked for. ``overrun`` says what follows if a job
    runs past its limit.
    """

    name: str
    policy_name: str | None = None
    reservation_depth: int | None = None
    queue_depth: int | None = None
    is_enabled: bool = True
    is_started: bool = True
    priority: int = 0
    min_priority: int | None = None
    max_priority: int | None = None
    weight: int = 1
    per_job: Limits = NO_LIMITS
    per_user: Limits = NO_LIMITS
    total: Limits = NO_LIMITS
    default_duration_s: int | None = None
    planned_s: int = PLANNED_S
    max_delay_s: int | None = None
    jumpers: str = SHORTEST
    learn: Learn = Learn.OFF
    start_timeout_s: int | None = None
    takes_gated: bool = True
    namespaces: frozenset[str] | None = field(default=None)
    fair_share: FairShare | None = None
    preemption: PreemptionRules | None = None
    provision: ProvisionRules = NO_RULES
    overrun: OverrunRules = field(default_factory=OverrunRules)

    @property
    def has_use_limits(self) -> bool:
        """Return whether running work must be counted before more may start."""
        return not (self.per_user.is_empty and self.total.is_empty)

    def slack_s(self, own_s: int | None = None) -> int:
        """Return how far jobs that jump by their plan may delay a blocked one, in seconds.

        ``own_s`` is how long the blocked one may run: by default it is delayed by that, once.
        """
        default_s = self.planned_s if own_s is None else own_s
        return default_s if self.max_delay_s is None else self.max_delay_s

    def policy(self, default: QueuePolicy) -> QueuePolicy:
        """Return the queue's policy. What the queue leaves open is as in ``default``."""
        name = default.name if self.policy_name is None else self.policy_name
        depth = self.reservation_depth
        if depth is None and name == default.name:
            depth = default.reservation_depth or None
        return queue_policy(
            name,
            reservation_depth=depth,
            queue_depth=default.queue_depth if self.queue_depth is None else self.queue_depth,
        )


def read_rules(
    name: str,
    spec: Mapping[str, Any],
    namespaces: frozenset[str] | None = None,
    planned_s: int = PLANNED_S,
) -> QueueRules:
    """Read a FluxQueue's spec.

    The API server checks most of it (``chart/crds/fluxqueues.yaml``). The rest, such as quantities
    and durations, is checked here. ``planned_s`` is what the site plans for jobs without a duration
    in queues that set none.

    Raises
    ------
    InvalidInput
        A field is not valid. ``where`` is its path.
    """
    spec = as_mapping(spec, "spec")
    reader = _Reader(spec)
    policy = spec.get("policy")
    if policy is not None and (not isinstance(policy, str) or policy not in POLICIES):
        raise InvalidInput(
            f"{policy!r} is no queue policy",
            where="spec.policy",
            value=policy,
            hint=f"one of {', '.join(POLICIES)}",
        )
    low, high = reader.whole("minPriority", -MAX_INT32), reader.whole("maxPriority", -MAX_INT32)
    if low is not None and high is not None and low > high:
        raise InvalidInput(
            f"{low} is more than spec.maxPriority ({high})", where="spec.minPriority", value=low
        )
    default_s = reader.duration(spec, "defaultDuration", "spec")
    durations = as_mapping(spec.get("durations"), "spec.durations")
    rules = QueueRules(
        name=name,
        policy_name=policy,
        reservation_depth=reader.whole("reservationDepth", 1),
        queue_depth=reader.whole("queueDepth", 1),
        is_enabled=spec.get("enabled", True) is True,
        is_started=spec.get("started", True) is True,
        priority=reader.whole("priority", -MAX_INT32) or 0,
        min_priority=low,
        max_priority=high,
        weight=reader.whole("weight", 1) or 1,
        per_job=reader.limits("perJob"),
        per_user=reader.limits("perUser"),
        total=reader.limits("total"),
        default_duration_s=default_s,
        planned_s=default_s or planned_s,
        max_delay_s=reader.duration(spec, "maxDelayByPlan", "spec"),
        jumpers=reader.choice("jumpers", spec.get("jumpers"), (SHORTEST, IN_ORDER)),
        learn=Learn(reader.choice("durations.learn", durations.get("learn"), tuple(Learn))),
        start_timeout_s=reader.duration(spec, "startTimeout", "spec"),
        takes_gated=spec.get("gatedJobs", ALLOWED) == ALLOWED,
        namespaces=namespaces,
        fair_share=reader.fair_share(),
        preemption=reader.preemption(name),
        provision=read_provision_rules(spec.get("provision")),
        overrun=reader.overrun(),
    )
    _check_default_duration(rules)
    return rules


def _check_default_duration(rules: QueueRules) -> None:
    bound, given = rules.per_job.duration_s, rules.default_duration_s
    if bound is not None and given is not None and given > bound:
        raise InvalidInput(
            f"{given} s is more than spec.limits.perJob.durationSeconds ({bound})",
            where="spec.defaultDuration",
            value=given,
        )


@dataclass(frozen=True, slots=True)
class _Reader:
    spec: Mapping[str, Any]

    def whole(self, key: str, low: int) -> int | None:
        return _whole(self.spec, key, "spec", low)

    @staticmethod
    def choice(key: str, value: Any, values: tuple[str, ...]) -> str:
        """Return a field that has one of some values. The first one is the default."""
        value = values[0] if value is None else value
        if value not in values:
            raise InvalidInput(
                f"{value!r} is not valid",
                where=f"spec.{key}",
                value=value,
                hint=f"one of {', '.join(values)}",
            )
        return str(value)

    def limits(self, key: str) -> Limits:
        path = f"spec.limits.{key}"
        found = as_mapping(as_mapping(self.spec.get("limits"), "spec.limits").get(key), path)
        cpu = found.get("cpu")
        return Limits(
            jobs=_whole(found, "jobs", path, 0),
            nodes=_whole(found, "nodes", path, 0),
            cpu_m=None if cpu is None else to_base_units(CPU, cpu, where=f"{path}.cpu"),
            duration_s=_whole(found, "durationSeconds", path, 1),
            grace_s=_whole(found, "graceSeconds", path, 0),
        )

    def duration(self, found: Mapping[str, Any], key: str, path: str) -> int | None:
        text = found.get(key)
        return None if text is None else parse_duration(str(text), f"{path}.{key}")

    def fair_share(self) -> FairShare | None:
        found = as_mapping(self.spec.get("fairShare"), "spec.fairShare")
        if found.get("enabled") is not True:
            return None
        half_life_s = self.duration(found, "halfLife", "spec.fairShare")
        points = _whole(found, "weight", "spec.fairShare", 0)
        return FairShare(
            half_life_s=HALF_LIFE_S if half_life_s is None else half_life_s,
            points=FAIR_SHARE_WEIGHT if points is None else points,
        )

    def overrun(self) -> OverrunRules:
        path, default = "spec.overrun", OverrunRules()
        found = as_mapping(self.spec.get("overrun"), path)
        action = found.get("action", default.action)
        if not isinstance(action, str) or action not in set(OverrunAction):
            raise InvalidInput(
                f"{action!r} is no action",
                where=f"{path}.action",
                value=action,
                hint=f"one of {', '.join(OverrunAction)}",
            )
        after_s = self.duration(found, "after", path)
        return OverrunRules(OverrunAction(action), default.after_s if after_s is None else after_s)

    def preemption(self, name: str) -> PreemptionRules | None:
        if self.spec.get("preemption") is None:
            return None
        path = "spec.preemption"
        found = as_mapping(self.spec["preemption"], path)
        if found.get("within") != LOWER_PRIORITY:
            raise InvalidInput(
                f"{found.get('within')!r} does not say which jobs are preempted",
                where=f"{path}.within",
                value=found.get("within"),
                hint=f"{LOWER_PRIORITY}; leave spec.preemption out for no preemption",
            )
        queues = as_texts(found.get("queues"), f"{path}.queues")
        return PreemptionRules(
            queues=frozenset({name, *queues}),
            min_runtime_s=self.duration(found, "minRuntime", path) or 0,
            grace_s=self.duration(found, "grace", path) or 0,
        )


def _whole(found: Mapping[str, Any], key: str, path: str, low: int) -> int | None:
    value = found.get(key)
    return None if value is None else as_whole(value, f"{path}.{key}", low)


def rules_or_none(
    name: str,
    spec: Mapping[str, Any],
    namespaces: frozenset[str] | None,
    planned_s: int = PLANNED_S,
) -> QueueRules | None:
    """Return a stored spec's rules, or None if this release cannot use it.

    Another release may have written it.
    """
    try:
        return read_rules(name, spec, namespaces, planned_s)
    except Exception:  # noqa: BLE001  one stored spec must not stop all queues
        return None
