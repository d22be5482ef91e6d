"""Rules read from a FluxQueue's spec: what each field becomes, what is refused with its path."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.policy.queue_policy import POLICIES, queue_policy
from fluxqueue.policy.queue_rules import (
    IN_ORDER,
    FairShare,
    Limits,
    PreemptionRules,
    QueueRules,
    read_rules,
    rules_or_none,
)

EASY = queue_policy("easy", queue_depth=500)


def test_an_empty_spec_is_a_queue_without_limits() -> None:
    """It obeys the settings of the worker."""
    rules = read_rules("q", {})
    assert rules == QueueRules("q")
    assert rules.policy(EASY) == EASY
    assert not rules.has_use_limits


def test_every_field_is_read() -> None:
    """Cpu as millicores, durations as seconds."""
    rules = read_rules(
        "q",
        {
            "policy": "hybrid",
            "reservationDepth": 3,
            "queueDepth": 7,
            "priority": -5,
            "weight": 4,
            "minPriority": -1,
            "maxPriority": 9,
            "enabled": False,
            "started": False,
            "defaultDuration": "2h",
            "maxDelayByPlan": "30m",
            "jumpers": "inOrder",
            "limits": {
                "perJob": {"nodes": 4, "cpu": 64, "durationSeconds": 7200},
                "perUser": {"jobs": 2, "cpu": "1500m"},
                "total": {"nodes": 100},
            },
            "fairShare": {"enabled": True, "halfLife": "1d", "weight": 50},
        },
        frozenset({"a"}),
    )
    assert rules == QueueRules(
        "q",
        policy_name="hybrid",
        reservation_depth=3,
        queue_depth=7,
        is_enabled=False,
        is_started=False,
        priority=-5,
        min_priority=-1,
        max_priority=9,
        weight=4,
        per_job=Limits(nodes=4, cpu_m=64_000, duration_s=7200),
        per_user=Limits(jobs=2, cpu_m=1500),
        total=Limits(nodes=100),
        default_duration_s=7200,
        planned_s=7200,
        max_delay_s=1800,
        jumpers=IN_ORDER,
        namespaces=frozenset({"a"}),
        fair_share=FairShare(86_400, 50),
    )
    assert rules.has_use_limits
    policy = rules.policy(EASY)
    assert (policy.name, policy.reservation_depth, policy.queue_depth) == ("hybrid", 3, 7)


def test_fair_share_is_off_by_default() -> None:
    """A half-life alone does not switch it on."""
    assert read_rules("q", {"fairShare": {"halfLife": "1d"}}).fair_share is None
    on = read_rules("q", {"fairShare": {"enabled": True}}).fair_share
    assert on == FairShare(7 * 86_400, 1000)


def test_preemption_is_off_by_default() -> None:
    """What is given is read. A queue's own jobs may always be preempted."""
    assert read_rules("q", {}).preemption is None
    assert read_rules("q", {"preemption": {"within": "lowerPriority"}}).preemption == (
        PreemptionRules(frozenset({"q"}))
    )
    given = {"within": "lowerPriority", "queues": ["s"], "minRuntime": "10m", "grace": "30s"}
    assert read_rules("q", {"preemption": given}).preemption == PreemptionRules(
        frozenset({"q", "s"}), min_runtime_s=600, grace_s=30
    )


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_each_policy_keeps_its_own_depth(name: str) -> None:
    """A worker set to hybrid does not lend its depth to a queue with another policy."""
    worker = queue_policy("hybrid", reservation_depth=5)
    policy = read_rules("q", {"policy": name}).policy(worker)
    expected = 5 if name == "hybrid" else POLICIES[name].reservation_depth
    assert (policy.name, policy.reservation_depth) == (name, expected)


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"policy": "lifo"}, "spec.policy"),
        ({"queueDepth": 0}, "spec.queueDepth"),
        ({"priority": "high"}, "spec.priority"),
        ({"weight": 0}, "spec.weight"),
        ({"minPriority": 3, "maxPriority": 2}, "spec.minPriority"),
        ({"defaultDuration": "soon"}, "spec.defaultDuration"),
        ({"limits": {"perUser": {"cpu": "many"}}}, "spec.limits.perUser.cpu"),
        ({"limits": {"total": {"jobs": True}}}, "spec.limits.total.jobs"),
        ({"fairShare": {"enabled": True, "halfLife": "0"}}, "spec.fairShare.halfLife"),
        ({"preemption": {}}, "spec.preemption.within"),
        ({"preemption": {"within": "anybody"}}, "spec.preemption.within"),
        ({"preemption": {"within": "lowerPriority", "grace": "0s"}}, "spec.preemption.grace"),
        (
            {"preemption": {"within": "lowerPriority", "minRuntime": "long"}},
            "spec.preemption.minRuntime",
        ),
        ({"preemption": {"within": "lowerPriority", "queues": "s"}}, "spec.preemption.queues"),
        (
            {"defaultDuration": "2h", "limits": {"perJob": {"durationSeconds": 60}}},
            "spec.defaultDuration",
        ),
    ],
)
def test_what_cannot_be_used_is_named(spec: dict[str, Any], where: str) -> None:
    """Also what the API server has let pass."""
    with pytest.raises(InvalidInput) as refused:
        read_rules("q", spec)
    assert refused.value.where == where
    assert rules_or_none("q", spec, None) is None
