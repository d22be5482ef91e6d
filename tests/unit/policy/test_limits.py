"""What a queue refuses, and which limit makes a job wait: each names field, value and way out."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.fluxjob.request import CPU
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.shape import fewest_nodes, total
from fluxqueue.policy.limits import Amounts, LimitUse, why_refused
from fluxqueue.policy.queue_rules import Limits, QueueRules
from tests.support.asked import Slots
from tests.support.asked import asked as make
from tests.support.pool_model import request


def _refused(rules: QueueRules | None, asked: Jobspec | None = None, **more: Any) -> str:
    reason = why_refused(
        "gpu",
        rules,
        namespace=more.get("namespace", "default"),
        request=asked or request(cpu=1),
        is_new=more.get("is_new", True),
    )
    return reason or ""


def test_an_unknown_queue_is_named() -> None:
    """With the label that chose it, and how to see the others."""
    reason = _refused(None)
    assert reason.startswith("fluxqueue/queue: there is no FluxQueue 'gpu'")
    assert "kubectl get fluxqueues" in reason


def test_a_namespace_that_is_not_allowed() -> None:
    """Only the namespaces listed. An empty list allows none."""
    rules = QueueRules("gpu", namespaces=frozenset({"a"}))
    assert "spec.allowedNamespaces does not have namespace 'default'" in _refused(rules)
    assert _refused(rules, namespace="a") == ""
    assert _refused(QueueRules("gpu", namespaces=frozenset())) != ""


def test_a_queue_that_is_not_enabled_keeps_what_it_has() -> None:
    """Submissions are refused. What was taken in before stays."""
    rules = QueueRules("gpu", is_enabled=False)
    assert "spec.enabled is false" in _refused(rules)
    assert _refused(rules, is_new=False) == ""


@pytest.mark.parametrize(
    ("limits", "asked", "reason"),
    [
        (Limits(cpu_m=2000), request(2, cpu=1001), "perJob.cpu is 2 cpu, the job asks for 2.002"),
        (Limits(cpu_m=2000), request(2, cpu=1000), ""),
        (Limits(nodes=2), request(3, is_spread=True, cpu=1), "perJob.nodes is 2, the job needs 3"),
        (Limits(nodes=2), request(3, cpu=1), ""),
        (
            Limits(duration_s=60),
            request(cpu=1, duration_s=61),
            "perJob.durationSeconds is 60, the job asks for 61",
        ),
        (Limits(duration_s=60), request(cpu=1, duration_s=60), ""),
        (Limits(duration_s=60), request(cpu=1), "the job has no duration; give it"),
    ],
)
def test_limits_of_one_job(limits: Limits, asked: Jobspec, reason: str) -> None:
    """Exactly the limit is allowed."""
    found = _refused(QueueRules("gpu", per_job=limits), asked)
    assert reason in found if reason else found == ""


def test_what_a_request_asks_for() -> None:
    """All slots of all groups. Nodes it cannot do without."""
    slots = (Slots(2, ((CPU, 1500),)), Slots(1, (("memory", 5),)))
    assert total(make(slots), CPU) == 3000
    assert fewest_nodes(make(slots)) == 1
    assert fewest_nodes(make(slots, is_spread=True)) == 3
    assert fewest_nodes(request(0, cpu=1)) == 0


USED = {
    ("q", "alice"): Amounts(jobs=2, nodes=3, cpu_m=4000),
    ("q", "bob"): Amounts(jobs=1, nodes=1, cpu_m=1000),
    ("other", "alice"): Amounts(jobs=50, nodes=50, cpu_m=50_000),
}


@pytest.mark.parametrize(
    ("rules", "user", "reason"),
    [
        (QueueRules("q", per_user=Limits(jobs=2)), "alice", "perUser.jobs is 2, user alice has 2"),
        (QueueRules("q", per_user=Limits(jobs=2)), "bob", ""),
        (QueueRules("q", per_user=Limits(nodes=4)), "alice", "perUser.nodes is 4, user alice has"),
        (QueueRules("q", per_user=Limits(nodes=5)), "alice", ""),
        (QueueRules("q", per_user=Limits(cpu_m=4999)), "alice", "perUser.cpu is 4.999 cpu, user"),
        (QueueRules("q", total=Limits(jobs=3)), "carol", "total.jobs is 3, queue q has 3"),
        (QueueRules("q", total=Limits(jobs=4)), "carol", ""),
        (QueueRules("q", total=Limits(cpu_m=5000)), "carol", "total.cpu is 5 cpu, queue q has 5"),
        (QueueRules("q", per_job=Limits(nodes=1)), "carol", "it would touch 2"),
        (QueueRules("other", per_user=Limits(jobs=50)), "alice", "user alice has 50"),
        (QueueRules("q", per_user=Limits(jobs=0)), "", "users without a name has 0"),
    ],
)
def test_limits_on_what_runs(rules: QueueRules, user: str, reason: str) -> None:
    """Queue by queue and user by user. The reason has the value of the limit and the use."""
    found = LimitUse.of(USED).why_over(rules, user, Amounts(1, 2, 1000))
    assert reason in (found or "") if reason else found is None


def test_what_adds_nothing_passes_a_limit_that_was_lowered() -> None:
    """A job without cpu is not kept back by a limit on cpu."""
    rules = QueueRules("q", per_user=Limits(nodes=1, cpu_m=10))
    assert LimitUse.of(USED).why_over(rules, "alice", Amounts(jobs=1)) is None


def test_use_grows() -> None:
    """What is decided in a walk counts for those behind."""
    use, rules = LimitUse(), QueueRules("q", total=Limits(jobs=1))
    assert use.why_over(rules, "a", Amounts(1)) is None
    use.add("q", "a", Amounts(1))
    assert use.why_over(rules, "b", Amounts(1)) is not None
