"""A job that others' load makes too costly to place waits, and starts once the load is gone."""

from __future__ import annotations

from contextlib import suppress

import pytest

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.bounds import Work
from fluxqueue.jobspec.demand import ANYWHERE
from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.scheduler import allowances
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Failed
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.scheduler.satisfiable import split_unsatisfiable
from fluxqueue.scheduler.walk import TOO_COSTLY
from fluxqueue.worker.costly_jobs import PAUSE_MAX_S, PAUSE_MIN_S, CostlyJobs
from tests.support.asked import Slots, asked
from tests.support.pool_model import node, placement, request

NODES, LOAD = 4, 36


def _group() -> Jobspec:
    """Twelve kinds of slots, as a group of unequal pods has."""
    kinds = (Slots(1, ((CPU, 10 + kind),), ANYWHERE) for kind in range(12))
    return asked(tuple(kinds), 100, False, False, None)


def _matcher(load: int) -> Matcher:
    matcher = Matcher(ShareLedger(()), "pack")
    for number in range(NODES):
        matcher.set_node(node(f"n{number}", cpu=100), {})
    for number in range(load):
        where = placement((f"n{number % NODES}", {CPU: 6}), until=1000 + 7 * number)
        matcher.allocate(f"r{number}", where)
    return matcher


def _steps(matcher: Matcher) -> int:
    """The work of finding out whether the group can start."""
    work = Work(10**9, "counting")
    with matcher.working(work), suppress(InsufficientResources):
        matcher.match_now(_group(), 0)
    return 10**9 - work.left


def test_the_load_of_others_is_no_fault_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    group = PendingJob("group", 1, 0, _group(), user="alice")
    plain = PendingJob("plain", 2, 0, request(cpu=1), user="bob")
    monkeypatch.setattr(allowances, "FREE_STEPS", 0)
    alone, beside = _steps(_matcher(0)), _steps(_matcher(LOAD))
    assert beside > 9 * alone
    monkeypatch.setattr(allowances, "MATCH_STEPS", (alone + beside) // 2)
    full, failed = _matcher(LOAD), list[Failed]()
    answers: dict[Jobspec, str | None] = {}
    possible, never = split_unsatisfiable(full, [group, plain], answers, failed)
    assert (never, failed) == ([], [])
    decisions = run_cycle(full, possible, queue_policy("easy"), 0)
    assert (decisions.costly, decisions.quarantined) == ([group], [])
    assert (group, TOO_COSTLY) in decisions.waiting
    assert [job for job, _ in decisions.allocated] == [plain]
    decisions = run_cycle(_matcher(0), [group], queue_policy("easy"), 0)
    assert [job for job, _ in decisions.allocated] == [group]


def test_each_user_has_one_try_at_a_time_with_growing_pauses() -> None:
    """Others are tried in each cycle, and a user without such jobs is forgotten."""
    costly, now = CostlyJobs(), 1000
    many = [PendingJob(f"m{n}", n, 0, request(cpu=1), user="mallory") for n in range(9)]
    other = PendingJob("a", 99, 0, request(cpu=1), user="alice")
    costly.note(many, many, now)
    assert not costly.is_due(now)
    assert costly.split([*many, other], now) == ([other], many)
    pauses = []
    for _ in range(8):
        begun = now
        while not costly.is_due(now):
            now += 1
        pauses.append(now - begun)
        tried, later = costly.split([*many, other], now)
        assert len(tried) == 2
        assert len(later) == 8
        costly.note(tried, [one for one in tried if one.user == "mallory"], now)
    assert pauses == [5, 10, 20, 40, 80, PAUSE_MAX_S, PAUSE_MAX_S, PAUSE_MAX_S]
    assert pauses[0] == PAUSE_MIN_S
    assert costly.split([other], now) == ([other], [])
    assert not costly.is_due(now + 10**6)
    costly.note(many, many[:1], now)
    costly.note(many, [], now + 5)
    assert costly.split(many, now + 5) == (many, [])
