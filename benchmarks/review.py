"""``make bench-review``: what an answer to a PlacementReview costs the worker, as a table.

Processor time of ``explain.review.answer`` and of rendering its status, the longest of a few. The
cluster is full and the queue is long. The requests are newcomers at its end and at its head, one
that waits in the middle, one that needs racks, and one that never fits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.cycle import CORES, RACKS, cluster, request
from benchmarks.line import Line
from benchmarks.under_way import under_way
from fluxqueue.errors import InsufficientResources
from fluxqueue.explain.answer import Answer
from fluxqueue.explain.question import NEWCOMER, Question, QueueSnapshot
from fluxqueue.explain.review import answer
from fluxqueue.explain.review_status import render_answer
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Queues
from fluxqueue.scheduler.forecast import Effort, forecast
from fluxqueue.scheduler.pending_job import PendingJob

NODES, WAITING, PLANNED = 4000, 999, 60
REPEATED = 3
GOAL_S = 1.0


def full_cluster() -> Matcher:
    """All nodes as full as jobs of several sizes make them. They end one after the other."""
    matcher = cluster(NODES)
    number = 0
    while True:
        try:
            found = matcher.match_now(request(8000 + 1000 * (number % 7), count=1 + number % 4), 0)
        except InsufficientResources:
            return matcher
        matcher.allocate(f"run-{number}", replace(found, until=1000 + 37 * number % 50_003))
        number += 1


def scene(policy: str) -> QueueSnapshot:
    """After a cycle and a forecast."""
    matcher = full_cluster()
    queue = [
        PendingJob(
            f"w{n}",
            n,
            0,
            request(2000 + 500 * (n % 20), count=20 + n % 50, duration_s=600 + n % 100),
        )
        for n in range(WAITING)
    ]
    decisions = run_cycle(matcher, queue, POLICIES[policy], 0)
    told = forecast(matcher, queue, decisions, POLICIES[policy], 0, effort=Effort(PLANNED))
    return QueueSnapshot(
        matcher,
        queue,
        decisions,
        POLICIES[policy],
        Queues(),
        0,
        {uid: one.placement for uid, one in told.items() if one.placement is not None},
        {job.uid: placement for job, placement in decisions.reserved},
    )


def questions(made: QueueSnapshot) -> Iterator[tuple[str, PendingJob]]:
    """What is asked."""
    yield "a newcomer of 60 slots", PendingJob("new", NEWCOMER, 0, request(2000, count=60))
    wide = request(CORES - 4000, count=3000)
    yield "one of 3,000 slots before all others", PendingJob("new", NEWCOMER, 9, wide)
    yield "the 500th in the queue", made.queue[500]
    yield "nodes of two racks", PendingJob("new", NEWCOMER, 0, RACKS)
    yield "what never fits", PendingJob("new", NEWCOMER, 0, request(CORES + 1000, count=2))


def cost_s(made: QueueSnapshot, job: PendingJob) -> float:
    """Processor seconds of the slowest of a few answers."""

    def once() -> Answer:
        found = answer(made, Question(job))
        render_answer(found, {}, 0)
        return found

    worst = 0.0
    for _ in range(REPEATED):
        began = time.process_time()
        once()
        worst = max(worst, time.process_time() - began)
    return worst


def main() -> None:
    """Print the table."""
    print(f"{NODES:,} nodes, {WAITING:,} waiting; processor time of one answer, of {REPEATED}")
    for policy in ("easy", "hybrid"):
        made = scene(policy)
        for what, job in questions(made):
            took = cost_s(made, job)
            line = Line(f"{policy}: {what}", took, "s", GOAL_S, is_more_better=False)
            print(line.render(3), flush=True)


if __name__ == "__main__":
    with under_way("review"):
        main()
