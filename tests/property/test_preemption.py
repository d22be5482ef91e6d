"""Preemption on random clusters: the fewest, never for nothing, never in a circle, an end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.errors import InsufficientResources
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.match.shares.relief import Relief
from fluxqueue.jobspec import Jobspec
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.policy.queue_rules import DEFAULT_QUEUE, PreemptionRules
from fluxqueue.scheduler.preemption_plan import Head, PreemptionCandidate, make_way
from fluxqueue.scheduler.victims import SHRINK_MAX, TRIES_MAX, fewest
from fluxqueue.simulation.arrivals import node_faults
from fluxqueue.simulation.simulated_jobs import (
    NodeEvent,
    SimulatedJob,
    cores_request,
    uniform_cluster,
)
from fluxqueue.simulation.simulator import Engine, SimulatedSite
from tests.support.rooms import check_rooms

NODES, CORES = 4, 4
NOW = 1000
OWN = frozenset({DEFAULT_QUEUE})


# --- what is preempted -------------------------------------------------------------------------


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Matcher, list[PreemptionCandidate], Jobspec]:
    """A full or half-full cluster of jobs of all sizes, and a request."""
    matcher = Matcher(ShareLedger(), draw(st.sampled_from(("lonode", "first", "low"))))
    for fact in uniform_cluster(NODES, CORES, rack_size=2):
        matcher.set_node(fact, {})
    candidates = []
    for number in range(1, draw(st.integers(1, 8)) + 1):
        cores = draw(st.integers(1, 2 * CORES))
        is_exclusive = draw(st.booleans())
        asked = cores_request(
            cores,
            draw(st.sampled_from((None, 60))),
            cores_per_node=CORES,
            is_exclusive=is_exclusive,
        )
        started = NOW - draw(st.integers(0, 9))
        try:
            placed = matcher.match_now(asked, started)
        except InsufficientResources:
            continue
        matcher.allocate(str(number), placed)
        candidates.append(
            PreemptionCandidate(
                str(number), number, DEFAULT_QUEUE, draw(st.integers(0, 2)), started
            )
        )
    request = cores_request(
        draw(st.integers(1, NODES * CORES)),
        50,
        cores_per_node=CORES,
        is_exclusive=draw(st.booleans()),
    )
    return matcher, candidates, request


def _fits(matcher: Matcher, request: Jobspec, uids: tuple[str, ...]) -> bool:
    with matcher.ledger.without(uids):
        try:
            matcher.match_now(request, NOW)
        except InsufficientResources:
            return False
        return True


@settings(max_examples=300, deadline=None)
@given(scene=scenes(), standing=st.integers(0, 3), min_runtime_s=st.integers(0, 5))
def test_it_is_the_fewest_and_the_youngest(
    scene: tuple[Matcher, list[PreemptionCandidate], Jobspec], standing: int, min_runtime_s: int
) -> None:
    """As by trying out all sets: none where none is enough, and else the smallest, of the smallest
    the one with the youngest oldest job. The matcher is as it was."""
    matcher, candidates, request = scene
    may = [
        one
        for one in candidates
        if one.standing < standing and one.started_at + min_runtime_s <= NOW
    ]
    may.sort(key=lambda one: (-one.started_at, -one.jobid))
    free = matcher.ledger.now.free.copy()
    if _fits(matcher, request, ()):
        return
    rules = PreemptionRules(OWN, min_runtime_s=min_runtime_s)
    found = make_way(matcher, Head(request, standing, rules, None), candidates, NOW)
    assert (matcher.ledger.now.free == free).all()
    assert set(matcher.ledger.live) == {one.uid for one in candidates}
    numbers = range(len(may))
    for size in numbers:
        enough = [
            tuple(sorted(some, reverse=True))
            for some in combinations(numbers, size + 1)
            if _fits(matcher, request, tuple(may[n].uid for n in some))
        ]
        if enough:
            assert found is not None
            order = {one.uid: n for n, one in enumerate(may)}
            chosen = sorted((order[one.uid] for one in found[0].victims), reverse=True)
            assert tuple(chosen) == min(enough)
            return
    assert found is None


@settings(max_examples=200, deadline=None)
@given(
    needs=st.lists(st.integers(0, 9), min_size=1, max_size=7),
    lacking=st.integers(1, 30),
)
def test_a_search_that_is_cut_short_has_nobody_too_many(needs: list[int], lacking: int) -> None:
    """Without any idea of what each adds, and with one that is exact: enough, as small."""
    exact = [Relief(float(lacking), tuple(float(one) for one in needs))]
    vague = [Relief(1.0, tuple(float("inf") for _ in needs))]

    def enough(some: Sequence[int]) -> Sequence[int] | None:
        return some if sum(needs[n] for n in some) >= lacking else None

    one, other = fewest(len(needs), enough, exact), fewest(len(needs), enough, vague)
    assert one == other
    assert (one is None) == (sum(needs) < lacking)
    if one is not None:
        assert enough(one)
        assert not any(enough([n for n in one if n != left]) for left in one)


def test_many_equal_ones_are_not_tried_out() -> None:
    """Eight whole nodes of a thousand: how many each adds is known, so few sets are tried."""
    tried = []

    def enough(some: Sequence[int]) -> Sequence[int] | None:
        tried.append(some)
        return some[:8] if len(some) >= 8 else None

    assert fewest(1000, enough, [Relief(8.0, (1.0,) * 1000)]) == tuple(range(8))
    assert len(tried) < 20


def test_of_very_many_it_is_some_that_are_in_the_way() -> None:
    """What each adds is not known, and thousands are needed: an end is made of trying."""
    tried = []

    def enough(some: Sequence[int]) -> Sequence[int] | None:
        tried.append(some)
        return some if len(some) >= 2000 else None

    found = fewest(3000, enough, [Relief(1.0, (1.0,) * 3000)])
    assert found == tuple(range(2000))
    assert len(tried) < SHRINK_MAX + TRIES_MAX + 100


# --- over time ------------------------------------------------------------------------------------


@st.composite
def jobs(draw: st.DrawFn) -> list[SimulatedJob]:
    """A dozen jobs of all sizes and three priorities. Some overrun, some end early."""
    found = []
    for number in range(1, draw(st.integers(1, 14)) + 1):
        asked_s = draw(st.integers(1, 40))
        found.append(
            SimulatedJob(
                number=number,
                submit_s=draw(st.integers(0, 60)),
                request=cores_request(
                    draw(st.integers(1, NODES * CORES)),
                    draw(st.sampled_from((asked_s, None))),
                    cores_per_node=CORES,
                ),
                runs_s=draw(st.sampled_from((asked_s, max(1, asked_s // 3), asked_s * 3))),
                priority=draw(st.sampled_from((0, 0, 5, 9))),
            )
        )
    return found


@st.composite
def faults(draw: st.DrawFn) -> list[NodeEvent]:
    """Up to two losses, each repaired."""
    names = [fact.name for fact in uniform_cluster(NODES, CORES)]
    return node_faults(
        draw(st.integers(0, 1000)), names, count=draw(st.integers(0, 2)), until_s=90, repair_s=60
    )


RULES = st.builds(
    PreemptionRules,
    queues=st.just(OWN),
    min_runtime_s=st.sampled_from((0, 0, 7)),
    grace_s=st.sampled_from((0, 0, 3, 15)),
)


@settings(max_examples=150, deadline=None)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    work=jobs(),
    lost=faults(),
    rules=RULES,
    leaves_s=st.sampled_from((0, 2, 30)),
)
def test_it_comes_to_an_end_and_goes_in_no_circle(
    policy: str,
    work: list[SimulatedJob],
    lost: list[NodeEvent],
    rules: PreemptionRules,
    leaves_s: int,
) -> None:
    """Nothing is overbooked at any time, every job ends once. A victim was preempted for a job of a
    higher priority, never for one that was preempted for it. Promises are kept or excused."""
    engine = Engine(
        uniform_cluster(NODES, CORES),
        work,
        POLICIES[policy],
        site=SimulatedSite(faults=lost),
        preemption=rules,
        leaves_s=leaves_s,
    )
    while engine.step():
        check_rooms(engine, CORES)
        assert {job.uid for job in engine.queue()}.isdisjoint(engine.running)
    assert not engine.pending
    assert not engine.running
    assert not engine.matcher.ledger.booked.any()
    made_way = {one.job.uid: set(one.requeued_for) for one in engine.records}
    priorities = {one.job.uid: one.job.priority for one in engine.records}
    for record in engine.records:
        assert record.ended_s is not None
        assert all(priorities[by] > record.job.priority for by in record.requeued_for)
        assert all(record.job.uid not in made_way[by] for by in record.requeued_for)
        assert record.requeues <= len(record.requeued_for)
        assert record.is_promise_kept or (record.promise and record.promise.excuse)


@settings(max_examples=100, deadline=None)
@given(work=jobs(), rules=RULES, leaves_s=st.sampled_from((0, 5)))
def test_nobody_makes_way_for_nothing(
    work: list[SimulatedJob], rules: PreemptionRules, leaves_s: int
) -> None:
    """A preemptor starts as soon as its victims are gone, whatever comes meanwhile, and nothing
    is requeued for it a second time."""
    engine = Engine(
        uniform_cluster(NODES, CORES), work, POLICIES["easy"], preemption=rules, leaves_s=leaves_s
    )
    asked: list[str] = []
    while engine.step():
        for head, one in engine.making_way.items():
            # All that it waits for is a victim that has still to leave.
            assert set(one.leaving) & engine.running.keys(), head
        asked += [job.uid for job, _ in engine.decisions.preempted]
    starts = {one.job.uid: 1 + one.restarts for one in engine.records}
    for uid in set(asked):
        assert asked.count(uid) <= starts[uid]


@pytest.mark.parametrize("grace_s", [0, 20])
def test_it_is_off_unless_it_is_asked_for(grace_s: int) -> None:
    """The same two jobs with and without."""
    work = [
        SimulatedJob(1, 0, cores_request(16, None, cores_per_node=4), 1000),
        SimulatedJob(2, 10, cores_request(16, None, cores_per_node=4), 50, priority=1),
    ]
    cluster = uniform_cluster(NODES, CORES)
    for rules, starts in ((None, 1000), (PreemptionRules(OWN, grace_s=grace_s), 10 + grace_s)):
        engine = Engine(cluster, work, POLICIES["easy"], preemption=rules)
        while engine.step():
            pass
        first, second = engine.records
        assert second.started_s == starts
        assert first.requeues == (rules is not None)
        assert first.ended_s is not None
