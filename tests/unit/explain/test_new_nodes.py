"""The answer for present nodes, beside the answer for new ones."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from fluxqueue.explain.answer import Answer, Reason
from fluxqueue.explain.question import NEWCOMER, Question, QueueSnapshot
from fluxqueue.explain.review import answer
from fluxqueue.fluxjob.provision import Provision
from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.nodepools.plan.coming_nodes import NodeRequest, PoolState, Reach
from fluxqueue.nodepools.pool import NodePool
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Queues
from fluxqueue.scheduler.pending_job import PendingJob
from tests.support.pool_model import node, placement, request

POOL = NodePool("gpu", {CPU: 4}, {"pool": "gpu"}, 4, 540, "placeholder", price=Decimal("3.10"))
NOW = 17 * 3600
FREE_AT = 18 * 3600 + 1800


def _ask(job: PendingJob, requests: tuple[NodeRequest, ...] = ()) -> Answer:
    """One present node of four cores, in use until 18:30."""
    matcher = Matcher(ShareLedger(), "pack")
    matcher.set_node(node("n1"), {})
    matcher.allocate("0", placement(("n1", {CPU: 4}), until=FREE_AT))
    matcher.further = Reach(matcher.ledger, [POOL])
    decisions = run_cycle(matcher, [], POLICIES["easy"], NOW)
    scene = QueueSnapshot(
        matcher,
        [],
        decisions,
        POLICIES["easy"],
        Queues(),
        NOW,
        pools=[PoolState(POOL, 0, 540)],
        requests=requests,
    )
    return answer(scene, Question(job))


def test_both_are_shown() -> None:
    """When it starts on present nodes, and which new ones would start it earlier."""
    job = PendingJob("1", NEWCOMER, 0, request(1, cpu=4, duration_s=60))
    found = _ask(job).outcome
    assert found.starts_at == FREE_AT
    assert found.message.endswith("or from 17:09 UTC on 1 new node of pool gpu, for 3.10 an hour")
    assert "new node" not in _ask(replace(job, provision=Provision.NEVER)).outcome.message


def test_what_was_asked_for_is_the_expected_start() -> None:
    """Its nodes come before present ones are free."""
    job = PendingJob("1", 5, 0, request(4, cpu=4, duration_s=60))
    found = _ask(job, (NodeRequest(1, "gpu", "1", "default", 4, NOW, NOW + 540),)).outcome
    assert (found.reason, found.starts_at) == (Reason.PROVISIONING, NOW + 540)
    assert found.message.startswith(
        "4 nodes of pool gpu asked for at 17:00 UTC, expected 17:09 UTC; on present nodes: "
    )
