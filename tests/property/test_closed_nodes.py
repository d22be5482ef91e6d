"""Random queues beside random maintenances: no job that a limit bounds is there when one begins."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.policy.calendar.recurrence import Recurrence
from fluxqueue.policy.calendar.reservation import ReservationRule
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.policy.queue_rules import DEFAULT_QUEUE, QueueRules
from fluxqueue.simulation.learning import DurationSource
from fluxqueue.simulation.simulated_jobs import SimulatedJob, cores_request, uniform_cluster
from fluxqueue.simulation.simulator import Engine, SimulatedSite
from tests.support.rooms import check_rooms

NODES, CORES = 4, 2
NAMES = [fact.name for fact in uniform_cluster(NODES, CORES)]


@st.composite
def reservations(draw: st.DrawFn) -> ReservationRule:
    """One to three occurrences, of some nodes, in the first ten minutes of virtual time."""
    duration_s = draw(st.integers(1, 60))
    start = datetime.fromtimestamp(draw(st.integers(0, 200)), UTC).replace(tzinfo=None)
    times = draw(st.integers(1, 3))
    rule = f"FREQ=HOURLY;COUNT={times}" if times > 1 else ""
    nodes = frozenset(draw(st.sets(st.sampled_from(NAMES), min_size=1)))
    name = f"r{draw(st.integers(0, 99))}"
    return ReservationRule(name, nodes, Recurrence(start, "UTC", duration_s, rule))


@st.composite
def jobs(draw: st.DrawFn) -> list[SimulatedJob]:
    """A dozen jobs with limits, of all sizes. Most end before their limit."""
    found = []
    for number in range(1, draw(st.integers(1, 14)) + 1):
        asked_s = draw(st.integers(1, 90))
        found.append(
            SimulatedJob(
                number=number,
                submit_s=draw(st.integers(0, 200)),
                request=cores_request(
                    draw(st.integers(1, NODES * CORES)), asked_s, cores_per_node=CORES
                ),
                runs_s=draw(st.integers(1, asked_s)),
                priority=draw(st.sampled_from((0, 0, 5))),
                user=draw(st.sampled_from(("a", "b"))),
            )
        )
    return found


@settings(max_examples=150, deadline=None)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    work=jobs(),
    calendar=st.lists(reservations(), max_size=4, unique_by=lambda one: one.name),
    source=st.sampled_from((DurationSource.DECLARED, DurationSource.LEARNED)),
)
def test_nothing_reaches_into_a_maintenance_and_all_is_done_in_the_end(
    policy: str,
    work: list[SimulatedJob],
    calendar: list[ReservationRule],
    source: DurationSource,
) -> None:
    """Nothing is overbooked, each job ends once, and promises are kept or excused."""
    engine = Engine(
        uniform_cluster(NODES, CORES),
        work,
        POLICIES[policy],
        site=SimulatedSite(calendar=calendar, durations=source),
        queues={DEFAULT_QUEUE: QueueRules(DEFAULT_QUEUE)},
    )
    while engine.step():
        check_rooms(engine, CORES)
    assert not engine.pending
    closures = [
        (rule, *one) for rule in calendar for one in rule.times.occurrences(0) if one[0] < 10_000
    ]
    for record in engine.records:
        limit_s = record.job.request.held_s
        for start, _, placement in record.spans:
            for rule, starts_at, ends_at in closures:
                meets = {*placement.nodes} & {*rule.nodes}  # type: ignore[misc]
                is_apart = start + limit_s <= starts_at or start >= ends_at
                assert is_apart or not meets, (record.job.number, rule.name, start)
        assert record.ended_s is not None
        assert record.is_promise_kept or (record.promise and record.promise.excuse)
