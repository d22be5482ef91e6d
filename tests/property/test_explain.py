"""Reviews on random clusters: their numbers against brute force, their promises against what then
happens, and nothing is changed by asking."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.explain.answer import Certainty, PlacementVerdict
from fluxqueue.explain.counting import CONSTRAINT, READY, RESOURCE, SHARED, TAINTS, WHOLE
from fluxqueue.explain.decide import turn
from fluxqueue.explain.question import NEWCOMER, Question, QueueSnapshot
from fluxqueue.explain.review import answer
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import CPU, MEMORY, NodeRequirement, Operator, Taint, Toleration
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Constraint, Count, Jobspec, NodeDemand, Resource
from fluxqueue.jobspec.constraint import MATCH_EXPRESSIONS
from fluxqueue.jobspec.shape import equal_slots
from fluxqueue.policy.limits import Amounts
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.policy.queue_rules import Limits, QueueRules
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Decisions, Queues
from fluxqueue.scheduler.forecast import forecast
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.simulation.simulated_jobs import SimulatedJob, cores_request, uniform_cluster
from fluxqueue.simulation.simulator import Engine

GPU = "example.com/gpu"
TAINT = Taint("dedicated", "gpu")
NOW = 1000


@st.composite
def facts(draw: st.DrawFn) -> list[NodeFact]:
    """Up to eight nodes, in pools and racks, some tainted, cordoned or down."""
    found = []
    for number in range(draw(st.integers(1, 8))):
        capacity = {CPU: draw(st.integers(1, 8)) * 1000, MEMORY: draw(st.integers(1, 8))}
        if draw(st.booleans()):
            capacity[GPU] = draw(st.integers(1, 4))
        found.append(
            NodeFact(
                f"n{number}",
                f"uid-{number}",
                capacity,
                {
                    "pool": draw(st.sampled_from("ab")),
                    "topology.kubernetes.io/zone": draw(st.sampled_from("xy")),
                },
                taints=draw(st.sampled_from(((), (TAINT,)))),
                is_up=draw(st.sampled_from((True, True, True, False))),
                is_schedulable=draw(st.sampled_from((True, True, True, False))),
            )
        )
    return found


@st.composite
def requests(draw: st.DrawFn) -> Jobspec:
    """Slots that may share nodes, have one each, or take it whole. Below a level or anywhere."""
    needs = {CPU: draw(st.integers(1, 6)) * 1000, MEMORY: draw(st.integers(0, 4))}
    if draw(st.booleans()):
        needs[GPU] = draw(st.integers(1, 3))
    asked = equal_slots(
        draw(st.integers(1, 6)), needs, duration_s=draw(st.sampled_from((None, 50, 300, 900)))
    )
    if draw(st.booleans()):
        (slot,) = asked.resources
        one = replace(slot, count=Count(1, 1))
        whole = draw(st.sampled_from((None, True)))
        asked = replace(asked, resources=(Resource("node", slot.count, (one,), whole),))
    if draw(st.booleans()):
        asked = replace(asked, resources=(Resource("zone", Count(1, 1), asked.resources),))
    pools = [NodeRequirement("pool", Operator.IN, ("a",)), NodeRequirement("zone", Operator.EXISTS)]
    chosen = tuple(one for one in pools[:1] if draw(st.booleans()))
    constraint = Constraint(MATCH_EXPRESSIONS, requirements=chosen) if chosen else None
    tolerations = draw(st.sampled_from(((), (Toleration("dedicated", "Exists"),))))
    return replace(asked, where=NodeDemand(constraint, tolerations))


@st.composite
def scenes(draw: st.DrawFn) -> tuple[QueueSnapshot, dict[str, dict[str, int]]]:
    """A cluster with work that runs, others' pods and a queue, after a cycle. What others use."""
    matcher = Matcher(ShareLedger(), draw(st.sampled_from(("lonode", "first", "pack"))))
    used = {}
    for fact in draw(facts()):
        others = {CPU: draw(st.sampled_from((0, 0, 500, 1000)))}
        used[fact.name] = others
        matcher.set_node(fact, others)
    jobs = [
        PendingJob(
            f"w{number}",
            number,
            draw(st.sampled_from((0, 0, 5))),
            asked,
            draw(st.sampled_from(("default", "default", "other"))),
            draw(st.sampled_from(("ada", "bob"))),
        )
        for number, asked in enumerate(draw(st.lists(requests(), max_size=9)))
    ]
    jobs = sorted((one for one in jobs if matcher.is_satisfiable(one.request)), key=turn)
    rules = {
        "default": QueueRules("default", policy_name=draw(st.sampled_from(sorted(POLICIES)))),
        "other": QueueRules(
            "other",
            policy_name=draw(st.sampled_from(sorted(POLICIES))),
            priority=draw(st.sampled_from((0, 3))),
            per_user=Limits(jobs=draw(st.sampled_from((None, 1)))),
            is_started=draw(st.sampled_from((True, True, False))),
        ),
    }
    queues, policy = Queues(rules), POLICIES["easy"]
    first = run_cycle(matcher, jobs, policy, NOW - 100, queues)
    started = {one.uid for one, _ in first.allocated}
    for one, where in first.allocated:
        queues.count(one.queue, one.user, Amounts(1, len(set(where.nodes)), 0))
    queue = [one for one in jobs if one.uid not in started]
    decisions = run_cycle(matcher, queue, policy, NOW, queues)
    told = forecast(matcher, queue, decisions, policy, NOW, queues=queues)
    planned = {uid: one.placement for uid, one in told.items() if one.placement is not None}
    promised = {one.uid: where for one, where in decisions.reserved}
    left = [one for one in queue if one.uid not in {job.uid for job, _ in decisions.allocated}]
    for one, where in decisions.allocated:
        queues.count(one.queue, one.user, Amounts(1, len(set(where.nodes)), 0))
    decisions.allocated.clear()
    return QueueSnapshot(matcher, left, decisions, policy, queues, NOW, planned, promised), used


def next_cycle(scene: QueueSnapshot, job: PendingJob) -> Decisions:
    """What the next cycle really decides with ``job`` in its turn."""
    queue = [one for one in scene.queue if one.uid != job.uid]
    queue.insert(bisect_left(queue, turn(job), key=turn), job)
    with scene.matcher.trying():
        decisions = run_cycle(
            scene.matcher, queue, scene.policy, scene.now, scene.queues, scene.promised
        )
        for one, _ in decisions.allocated:
            scene.matcher.cancel(one.uid)
    return decisions


def starts(scene: QueueSnapshot, job: PendingJob) -> tuple[str, ...] | None:
    """The nodes on which the next cycle starts it."""
    for one, where in next_cycle(scene, job).allocated:
        if one.uid == job.uid:
            return where.nodes
    return None


@settings(max_examples=250, deadline=None)
@given(made=scenes(), asked=requests(), priority=st.sampled_from((0, 5, 9)), data=st.data())
def test_the_next_cycle_does_what_the_verdict_says(
    made: tuple[QueueSnapshot, dict[str, dict[str, int]]],
    asked: Jobspec,
    priority: int,
    data: st.DataObject,
) -> None:
    """Now is now, on these nodes. Later is not now. Never does not fit the empty cluster. Each
    variant that starts now does. Asking leaves bookings and plan as they were."""
    scene, _ = made
    queue = data.draw(st.sampled_from(("default", "other")))
    job = PendingJob("new", NEWCOMER, priority, asked, queue, "ada")
    if scene.queue and data.draw(st.booleans()):
        job = data.draw(st.sampled_from(list(scene.queue)))
    ledger = scene.matcher.ledger
    booked, plan, live = ledger.booked.copy(), ledger.plan.copy(), set(ledger.live)
    priorities = {"default": job.priority, "other": job.priority + 3}
    found = answer(scene, Question(job, priorities=priorities))
    assert (ledger.booked[:, : booked.shape[1]] == booked).all()
    assert set(ledger.live) == live
    assert ledger.plan.placements == plan.placements
    for name in ("rows", "starts", "untils"):
        assert np.array_equal(getattr(ledger.plan, name), getattr(plan, name))
    if found.outcome.verdict is PlacementVerdict.NEVER:
        assert not scene.matcher.is_satisfiable(job.request)
    else:
        ran = starts(scene, job)
        assert (found.outcome.verdict is PlacementVerdict.NOW) == (ran is not None), found
    for variant in found.variants:
        if variant.outcome.verdict is PlacementVerdict.NOW:
            assert variant.job != job
            assert starts(scene, variant.job) is not None, variant


@settings(max_examples=250, deadline=None)
@given(made=scenes(), asked=requests())
def test_numbers_are_those_of_brute_force(
    made: tuple[QueueSnapshot, dict[str, dict[str, int]]], asked: Jobspec
) -> None:
    """How many nodes pass each check alone, and all together, counted node by node."""
    scene, used = made
    found = answer(scene, Question(PendingJob("new", NEWCOMER, 0, asked, "default")))
    model = Model(scene, used)
    for kind in found.kinds:
        needs = {name: amount for name, amount in kind.needs.items() if amount}
        is_whole = any(check.kind == WHOLE for check in kind.checks)
        resources = [check for check in kind.checks if check.kind == RESOURCE]
        assert len(resources) == len(needs)
        for check, (name, need) in zip(resources, sorted(needs.items()), strict=True):
            assert (check.nodes, check.free) == model.with_amount(name, need)
        by_kind = {check.kind: (check.nodes, check.free) for check in kind.checks}
        everyone = len(model.nodes)
        assert by_kind[READY] == (everyone, sum(model.is_usable(one) for one in model.nodes))
        tolerant = sum(model.tolerates(asked, one) for one in model.nodes)
        assert by_kind[TAINTS] == (tolerant, tolerant)
        if asked.where.constraint is not None:
            inside = sum(one.labels["pool"] == "a" for one in model.nodes)
            assert by_kind[CONSTRAINT] == (inside, inside)
        shared = sum(not model.is_taken_whole(one) for one in model.nodes)
        untouched = sum(not model.on(one) for one in model.nodes)
        assert by_kind[WHOLE if is_whole else SHARED] == (
            everyone,
            untouched if is_whole else shared,
        )
        allowed = [one for one in model.nodes if model.admits(asked, one)]
        empty = [model.fits(needs, one.capacity) for one in allowed]
        free = [
            model.fits(needs, model.free(one))
            for one in allowed
            if model.is_usable(one)
            and not (model.on(one) if is_whole else model.is_taken_whole(one))
        ]
        together = kind.together
        assert together.nodes == sum(map(bool, empty))
        assert together.free_nodes == sum(map(bool, free))
        if kind.is_distinct:
            empty, free = [min(1, n) for n in empty], [min(1, n) for n in free]
        if not is_whole:
            assert together.units == sum(empty)
            assert together.free_units == sum(free)
        assert together.open_units <= together.free_units


class Model:
    """The same cluster without arrays: what runs where, node by node."""

    def __init__(self, scene: QueueSnapshot, used: dict[str, dict[str, int]]) -> None:
        ledger = scene.matcher.ledger
        self.nodes = [fact for fact in ledger.masks.facts if fact is not None]
        self._used = used
        self._booked: dict[str, dict[str, int]] = {one.name: {} for one in self.nodes}
        self._whole: set[str] = set()
        columns = {number: name for name, number in ledger.columns.items()}
        for live in ledger.live.values():
            for _, hold in live.holds:
                for row, takes in zip(hold.rows.tolist(), hold.takes.tolist(), strict=True):
                    there = self._booked[ledger.names[row]]
                    if takes[0] >= 1 << 30:
                        self._whole.add(ledger.names[row])
                    for number, amount in enumerate(takes):
                        name = columns[number]
                        there[name] = there.get(name, 0) + amount

    def on(self, fact: NodeFact) -> bool:
        return bool(self._booked[fact.name])

    def is_taken_whole(self, fact: NodeFact) -> bool:
        return fact.name in self._whole

    def is_usable(self, fact: NodeFact) -> bool:
        return fact.is_up and fact.is_schedulable

    def free(self, fact: NodeFact) -> dict[str, int]:
        booked, used = self._booked[fact.name], self._used[fact.name]
        return {n: a - booked.get(n, 0) - used.get(n, 0) for n, a in fact.capacity.items()}

    def with_amount(self, name: str, need: int) -> tuple[int, int]:
        return (
            sum(one.capacity.get(name, 0) >= need for one in self.nodes),
            sum(self.free(one).get(name, 0) >= need for one in self.nodes),
        )

    def tolerates(self, asked: Jobspec, fact: NodeFact) -> bool:
        return not fact.taints or bool(asked.where.tolerations)

    def admits(self, asked: Jobspec, fact: NodeFact) -> bool:
        is_inside = asked.where.constraint is None or fact.labels["pool"] == "a"
        return is_inside and self.tolerates(asked, fact)

    @staticmethod
    def fits(needs: dict[str, int], room: dict[str, int]) -> int:
        return max(0, min(room.get(name, 0) // need for name, need in needs.items()))


CORES = 4


@st.composite
def work(draw: st.DrawFn) -> Sequence[SimulatedJob]:
    """All there from the beginning, and of exactly the length they say."""
    return [
        SimulatedJob(
            number, 0, cores_request(draw(st.integers(1, 12)), length, cores_per_node=CORES), length
        )
        for number, length in enumerate(
            draw(st.lists(st.integers(100, 5000), min_size=1, max_size=8)), start=1
        )
    ]


@settings(max_examples=150, deadline=None)
@given(
    jobs=work(),
    policy=st.sampled_from(("fcfs", "easy", "conservative")),
    cores=st.integers(1, 14),
    length=st.integers(100, 3000),
)
def test_what_is_said_of_a_newcomer_is_what_happens(
    jobs: list[SimulatedJob], policy: str, cores: int, length: int
) -> None:
    """It is submitted the moment after: it starts when that was said, or earlier than promised.
    Under fcfs and conservative, where the plan is the future, exactly then."""
    asked = cores_request(cores, length, cores_per_node=CORES)
    engine = Engine(uniform_cluster(3, CORES), jobs, POLICIES[policy])
    assert engine.step()
    queue, decisions = engine.queue(), engine.decisions
    told = forecast(engine.matcher, queue, decisions, engine.policy, engine.now)
    planned = {uid: one.placement for uid, one in told.items() if one.placement is not None}
    scene = QueueSnapshot(
        engine.matcher,
        queue,
        replace(decisions, allocated=[]),
        engine.policy,
        Queues(),
        engine.now,
        planned,
        {one.uid: where for one, where in decisions.reserved},
    )
    number = len(jobs) + 1
    said = answer(scene, Question(PendingJob(str(number), number, 0, asked))).outcome
    late = SimulatedJob(number, 0, asked, length)
    run = Engine(uniform_cluster(3, CORES), [*jobs, late], POLICIES[policy])
    while run.step():
        pass
    record = run.by_uid[str(number)]
    if said.verdict is PlacementVerdict.NEVER:
        assert record.is_impossible
    elif said.verdict is PlacementVerdict.NOW:
        assert record.started_s == engine.now
    else:
        assert said.starts_at is not None
        assert record.started_s is not None
        assert record.started_s > engine.now
        if said.certainty is Certainty.PROMISED:
            assert record.started_s <= said.starts_at
        if policy != "easy":
            assert record.started_s == said.starts_at
