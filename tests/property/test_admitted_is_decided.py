"""What admission takes can be built, stored, read back and decided within a budget of steps."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import orjson
from hypothesis import given, settings

from fluxqueue.errors import InvalidInput, TooComplex
from fluxqueue.fluxjob.levels import DEFAULT_LEVELS
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec.bounds import WRITTEN
from fluxqueue.jobspec.parse import read_stored
from fluxqueue.jobspec.render import render
from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.scheduler.satisfiable import split_unsatisfiable
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from tests.support.hostile_jobspecs import above, series, slot
from tests.support.workloads import batch_job, container

MOST = WRITTEN.resources // 2
edges = st.sampled_from([1, 2, MOST // 3, MOST - 1, MOST, MOST + 1])
counts = st.one_of(
    st.integers(1, 4),
    st.builds(series, st.integers(1, 3), st.integers(3, 1 << 20), st.just("+"), st.integers(1, 5)),
    st.builds(series, st.integers(2, 3), st.integers(3, 1 << 20), st.just("*"), st.integers(2, 5)),
)


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    kinds = draw(edges)
    count, is_on_nodes = draw(counts), draw(st.booleans())
    parts = [slot(count if i % 50 == 0 else 1, f"p{i}") for i in range(kinds)]
    if is_on_nodes:
        parts = [above("node", 1, *parts[i : i + 3]) for i in range(0, kinds, 3)]
    pods = draw(st.sampled_from([kinds, kinds + 1, kinds + 7, 2 * kinds, 5000]))
    text = orjson.dumps(parts).decode()
    return batch_job(
        meta={"annotations": {"fluxqueue/jobspec": text}},
        parallelism=pods,
        completions=pods,
        pod={"containers": [container(requests={"cpu": "100m"})]},
    )


def _matcher() -> Matcher:
    matcher = Matcher(ShareLedger(DEFAULT_LEVELS), "first")
    for i in range(6):
        fact = NodeFact(name=f"n{i}", uid=f"u{i}", capacity={"cpu": 64_000, "pods": 110})
        matcher.set_node(fact, {})
    return matcher


@settings(max_examples=40, deadline=None)
@given(jobs())
def test_what_is_taken_is_read_and_decided_and_holds_up_nobody(job: dict[str, Any]) -> None:
    try:
        request = BATCH_JOB.to_request(job)
    except InvalidInput:
        return  # in words: ``tests/unit/webhook/test_bounds.py``
    read = read_stored(orjson.loads(orjson.dumps(render(request))))
    assert read == request
    matcher = _matcher()
    plain = BATCH_JOB.to_request(batch_job(parallelism=1, completions=1))
    queue = [PendingJob("first", 1, 0, read), PendingJob("behind", 2, 0, plain, user="another")]
    failed: list[Any] = []
    possible, never = split_unsatisfiable(matcher, queue, {}, failed)
    decisions = run_cycle(matcher, possible, queue_policy("easy"), now=0)
    aside = [*failed, *decisions.quarantined]
    assert all(isinstance(error, TooComplex) for _, error in aside)
    assert "behind" in {one.uid for one, _ in decisions.allocated}
    told = (*never, *aside, *decisions.allocated, *decisions.reserved, *decisions.waiting)
    assert {"first", "behind"} <= {one.uid for one, _ in told}
