"""The costly requests of one user hold up no other user, however many they are."""

from __future__ import annotations

import random
import time

import orjson
import pytest

from fluxqueue.errors import TooComplex
from fluxqueue.fluxjob.levels import DEFAULT_LEVELS
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec
from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.scheduler.allowances import Allowances
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Failed
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.scheduler.satisfiable import split_unsatisfiable
from fluxqueue.scheduler.walk import DEFERRED
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from tests.support.hostile_jobspecs import slot
from tests.support.workloads import batch_job, container

MANY = 12
CPU_MAX_S = 3.0
"""Without allowances it grows with ``MANY``."""


@pytest.fixture
def matcher() -> Matcher:
    """Six nodes of 64 cores."""
    made = Matcher(ShareLedger(DEFAULT_LEVELS), "first")
    for number in range(6):
        capacity = {"cpu": 64_000, "memory": 256 << 30, "pods": 110}
        made.set_node(NodeFact(name=f"n{number}", uid=f"u{number}", capacity=capacity), {})
    return made


def _puzzle(number: int) -> Jobspec:
    """Slots of nearly equal size, of which not quite all fit."""
    chance = random.Random(number)
    sizes = [chance.choice((5, 6, 7, 7, 9, 11)) for _ in range(60 + number)]
    slots = [slot(1, f"c{n}", {"type": "core", "count": cores}) for n, cores in enumerate(sizes)]
    notes = {"fluxqueue/jobspec": orjson.dumps(slots).decode()}
    pods = len(slots)
    return BATCH_JOB.to_request(
        batch_job(meta={"annotations": notes}, parallelism=pods, completions=pods)
    )


def _plain() -> Jobspec:
    pod = {"containers": [container(requests={"cpu": "100m"})]}
    return BATCH_JOB.to_request(batch_job(parallelism=1, completions=1, pod=pod))


def _queue() -> list[PendingJob]:
    puzzles = [PendingJob(f"m{n}", n, 0, _puzzle(n), user="mallory") for n in range(MANY)]
    return [*puzzles, PendingJob("probe", MANY, 0, _plain(), user="vera")]


@pytest.mark.long("many cases at once, for seconds of processor time")
def test_judging_ends_soon_and_comes_to_all(matcher: Matcher) -> None:
    """Others are judged at once. The costly ones in turn, a few in each cycle."""
    queue, failed = _queue(), list[Failed]()
    answers: dict[Jobspec, str | None] = {}
    judged: set[str] = set()
    for turn in range(MANY + 1):
        deferred: list[PendingJob] = []
        began = time.process_time()
        possible, never = split_unsatisfiable(
            matcher, queue, answers, failed, Allowances(), deferred
        )
        assert time.process_time() - began < CPU_MAX_S
        assert turn or "probe" in {job.uid for job in possible}
        judged |= {job.uid for job in possible} | {job.uid for job, _ in (*never, *failed)}
        assert len(deferred) < MANY
        queue = [job for job in deferred if job.uid not in judged]
        if not queue:
            break
    assert len(judged) == MANY + 1


def test_deciding_ends_soon_and_starts_the_others(matcher: Matcher) -> None:
    began = time.process_time()
    decisions = run_cycle(matcher, _queue(), queue_policy("easy"), now=0, allowances=Allowances())
    assert time.process_time() - began < CPU_MAX_S
    assert "probe" in {job.uid for job, _ in decisions.allocated}
    put_off = [job for job, reason in decisions.waiting if reason == DEFERRED]
    assert put_off
    assert {job.user for job in put_off} == {"mallory"}
    assert all(isinstance(error, TooComplex) for _, error in decisions.quarantined)


def test_plain_requests_are_never_put_off(matcher: Matcher) -> None:
    """Five thousand of one user cost as much as they do, and each is decided."""
    queue = [PendingJob(f"p{n}", n, 0, _plain(), user="vera") for n in range(5000)]
    decisions = run_cycle(matcher, queue, queue_policy("easy"), now=0, allowances=Allowances())
    told = len(decisions.allocated) + len(decisions.reserved) + len(decisions.waiting)
    assert told == 5000
    assert not [one for _, one in decisions.waiting if one == DEFERRED]
