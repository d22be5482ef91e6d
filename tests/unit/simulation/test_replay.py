"""The time machine: a replay without changes is the record, and changes have their effect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.simulation.comparison import LeftOut, render_table, to_json
from fluxqueue.simulation.learning import DurationSource
from fluxqueue.simulation.recorded_day import RecordedDay, parse_day
from fluxqueue.simulation.replay import ALL, Replay, as_recorded, recorded_runs, replay
from fluxqueue.simulation.simulated_jobs import SimulatedJob, cores_request
from fluxqueue.simulation.swf import from_day, parse, render, to_jobs
from fluxqueue.simulation.what_changes import NONE, parse_changes
from tests.support.recorded_days import EPOCH_S, HOUR_S, history_of, simulated_history

POLICIES = ("fcfs", "easy", "hybrid", "conservative")


def again(
    day: RecordedDay, policy: str = "easy", nodes: tuple[str, ...] = (), **more: Any
) -> Replay:
    """Replay with a policy of the settings, and more nodes."""
    return replay(day, queue_policy(policy), parse_changes("", nodes, ()), **more)


@pytest.mark.cases_long("the other queue policies")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", [3, 8])
def test_a_replay_without_changes_is_the_record(policy: str, seed: int) -> None:
    """Every job starts when it did, on the same number of nodes."""
    day = parse_day(simulated_history(seed, jobs=50, policy=policy), "x")
    for one in again(day, policy).jobs:
        assert (one.started_s, one.ended_s) == (one.job.started_s, one.job.ended_s)
    told = as_recorded(day)
    assert again(day, policy).outcome.waits == told.waits
    assert again(day, policy).outcome.utilisation == pytest.approx(told.utilisation)


@pytest.mark.parametrize("policy", ["fcfs", "easy"])
def test_a_time_in_the_middle(policy: str) -> None:
    """Work that ran at its begin keeps its nodes, and work that waited then keeps its turn."""
    data = simulated_history(5, jobs=80, policy=policy, since_s=9 * HOUR_S, until_s=25 * HOUR_S)
    day = parse_day(data, "x")
    running = [one for one in day.jobs if (one.started_s or 0) < day.since_s]
    waiting = [one for one in day.jobs if one.submitted_s < day.since_s <= (one.started_s or 0)]
    assert running
    assert waiting
    moved = [
        abs((one.started_s or 0) - (one.job.started_s or 0)) for one in again(day, policy).jobs
    ]
    assert sum(gap == 0 for gap in moved) > 0.9 * len(moved)


def test_order_of_a_recorded_day() -> None:
    """With other durations than those that were asked for, the order stays the same."""
    day = parse_day(simulated_history(11, jobs=60, policy="fcfs"), "x")
    found = sorted(again(day, "fcfs").jobs, key=lambda one: (one.started_s, one.job.jobid))
    was = sorted(day.jobs, key=lambda one: (one.started_s, one.jobid))
    assert [one.job.jobid for one in found] == [one.jobid for one in was]


@pytest.mark.cases_long("another day")
@pytest.mark.parametrize("seed", range(2))
def test_more_nodes_never_raise_the_mean_wait(seed: int) -> None:
    """Of equal jobs in one queue, whatever the policy."""
    work = [
        SimulatedJob(n, 60 * n, cores_request(4, 3600, cores_per_node=4), 1800 + 60 * (n % 7))
        for n in range(1, 24 + seed)
    ]
    for policy in POLICIES:
        day = parse_day(history_of(work, 4, 4, policy), "x")
        waits = [again(day, policy).outcome.waits[ALL].mean_s]
        waits += [
            again(day, policy, (more,)).outcome.waits[ALL].mean_s
            for more in ("1:n0", "3:n1", "8:cpu=4")
        ]
        assert waits == sorted(waits, reverse=True)
        assert waits[-1] < waits[0]


def test_a_policy_is_changed_in_every_queue() -> None:
    """A queue with a policy of its own, too."""
    data = simulated_history(4, jobs=60, policy="fcfs")
    data["queues"] = [{"name": "default", "spec": {"policy": "fcfs"}}]
    day = parse_day(data, "x")
    same = replay(day, queue_policy("easy"))
    changed = replay(day, queue_policy("easy"), parse_changes("easy", (), ()))
    assert same.outcome.waits == as_recorded(day).waits
    assert changed.outcome.waits[ALL].mean_s < same.outcome.waits[ALL].mean_s


def test_a_heavier_queue_waits_less() -> None:
    """The weight of a queue is its part of the fair share."""
    work = [
        SimulatedJob(
            n, 30, cores_request(4, 900, cores_per_node=4), 900, user=f"user{n % 2}",
            queue=("left", "right")[n % 2],
        )
        for n in range(1, 65)
    ]  # fmt: skip
    data = history_of([replace(one, queue="default") for one in work], 4, 4, "easy")
    for one in data["jobs"]:
        one["queue"] = work[one["jobid"] - 1].queue
    shared = {"fairShare": {"enabled": True, "halfLife": "1h"}}
    data["queues"] = [{"name": name, "spec": dict(shared)} for name in ("left", "right")]
    day = parse_day(data, "x")

    def mean_s(found: Replay) -> float:
        waits = [
            (one.started_s or 0) - one.job.submitted_s
            for one in found.jobs
            if one.job.queue == "right"
        ]
        return sum(waits) / len(waits)

    plain = replay(day, queue_policy("easy"))
    heavy = replay(day, queue_policy("easy"), parse_changes("", (), ("right=x9",)))
    assert mean_s(heavy) < mean_s(plain)


def test_work_that_runs_still_and_work_that_waits_still() -> None:
    """The one ends at its limit, and the other runs for what it asks."""
    data = simulated_history(2, jobs=6, nodes=2, load=3.0)
    first, *_, last = data["jobs"]
    first |= {"ended": None, "until": data["read"] + 50}
    last |= {"started": None, "ended": None, "until": None, "nodes": {}}
    day = parse_day(data, "x")
    by_id = {one.job.jobid: one for one in again(day).jobs}
    assert by_id[first["jobid"]].ended_s == data["read"] + 50
    waited = by_id[last["jobid"]]
    assert waited.started_s is not None
    assert waited.ended_s == waited.started_s + int(waited.job.request.duration_s)
    assert as_recorded(day).waits[ALL].jobs == len(data["jobs"]) - 1


def test_jobs_and_nodes_that_were_deleted() -> None:
    """Their use stands in for the request. Lost nodes are reported."""
    data = simulated_history(6, jobs=40)
    for one in data["jobs"][:10]:
        cpu_s = sum(amounts["cpu"] for amounts in one["nodes"].values()) / 1000
        cpu_s *= one["ended"] - one["started"]
        one |= {"request": None, "nodes": {}, "slots": 2, "nodeCount": 2, "cpuSeconds": cpu_s}
    data["nodes"] = data["nodes"][1:]
    day = parse_day(data, "x")
    assert [one.cpu_m for one in day.jobs[:1]] == [
        round(data["jobs"][0]["cpuSeconds"] / (day.jobs[0].ended_s - day.jobs[0].started_s) * 500)
        * 2  # type: ignore[operator]
    ]
    told = LeftOut.of(day).tell()
    assert any(line.startswith("1 nodes had work and are gone") for line in told)
    assert any(line.startswith("10 jobs have no stored request") for line in told)
    assert again(day).outcome.waits[ALL].jobs > 30
    assert recorded_runs(day)


def test_what_is_told() -> None:
    """The table has a row for each size and for the use. The JSON has both charts."""
    day = parse_day(simulated_history(7, jobs=60), "x")
    one = again(day, "easy", ("2:n3",), name="2 more")
    text = render_table(day, as_recorded(day), [one.outcome])
    assert text.splitlines()[0].startswith("2030-03-17 17:46 UTC to ")
    assert [line.split()[0] for line in text.splitlines()[4:]] == ["1", "2", "5", "all", "use"]
    assert max(map(len, text.splitlines())) <= 80
    told = to_json(day, as_recorded(day), one, (), "2 more")
    assert (len(told["nodes"]), told["added"]) == (10, 2)
    assert len(told["jobs"]) == len(day.jobs)
    _, _, _, _, _, submitted, started, ended, places, again_at, _, there = told["jobs"][0]
    assert EPOCH_S <= submitted <= started < ended
    assert again_at <= started
    assert sum(amount for _, amount in places) == sum(amount for _, amount in there)


def test_swf_out_and_in() -> None:
    """A recorded day is a log with waits. What is read of it is simulated again."""
    day = parse_day(simulated_history(9, jobs=30, policy="fcfs"), "x")
    text = render(from_day(day))
    log = parse(text)
    assert len(log.jobs) == 30
    assert [one.wait_s for one in log.jobs] == [
        (one.started_s or 0) - one.submitted_s
        for one in sorted(day.jobs, key=lambda job: (job.submitted_s, job.jobid))
    ]
    assert log.header["UnixStartTime"] == str(EPOCH_S)
    jobs, skipped = to_jobs(log, cores_per_node=8, queues=("default",))
    assert (len(jobs), skipped) == (30, 0)
    assert {one.queue for one in jobs} == {"default"}
    assert render(parse(text)) == text


def test_changes_in_words() -> None:
    """As the page and the table show them."""
    found = parse_changes("fcfs", ("1:n0", "8:cpu=64,memory=256Gi"), ("a=2", "b=x3"))
    assert found.describe() == (
        "policy fcfs, 1 more node like n0, 8 more nodes of 64 cpu, 256Gi memory, weight of a 2,"
        " weight of b times 3"
    )
    assert NONE.describe() == "no change"


def test_a_replay_can_plan_by_the_runs_that_have_ended_in_it() -> None:
    """What if the queues had learned: of the jobs that may jump, the shortest comes first."""
    known = (0, 1, 50, 5, "ann"), (0, 1, 50, 40, "bob"), (50, 3, 60, 60, "cid")
    jumpers = (51, 4, 9, 9, "cid"), (52, 1, 50, 40, "bob"), (52, 1, 50, 5, "ann")
    work = [
        SimulatedJob(n, at, cores_request(cores, limit_s, cores_per_node=1), runs_s, user=user)
        for n, (at, cores, limit_s, runs_s, user) in enumerate((*known, *jumpers), 1)
    ]
    day = parse_day(history_of(work, 4, 1, "easy"), "x")
    asked = parse_changes("", (), (), DurationSource.LEARNED)
    assert asked.describe() == "learned durations"
    plain, learned = (replay(day, queue_policy("easy"), one) for one in (NONE, asked))
    assert learned.outcome.waits[ALL].mean_s < plain.outcome.waits[ALL].mean_s


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "nodes", "weights", "message"),
    [
        ("magic", (), (), "policy: 'magic' is no queue policy. Fix: one of fcfs"),
        ("", ("many:n0",), (), "add-nodes: 'many:n0' adds no nodes. Fix: COUNT:NODE"),
        ("", ("0:n0",), (), "adds no nodes"),
        ("", ("٣:n0",), (), "adds no nodes"),
        ("", ("8",), (), "adds no nodes"),
        ("", ("999999999:n0",), (), "adds no nodes"),
        ("", ("1500:n0", "1500:n0"), (), "add-nodes: are too many. Fix: add at most 2000"),
        ("", ("1:cpu=a lot",), (), "add-nodes, cpu"),
        ("", ("1:=4",), (), "is no resource. Fix: COUNT:NODE"),
        ("", (), ("batch",), "queue-weight: 'batch' is no weight. Fix: QUEUE=NUMBER"),
        ("", (), ("batch=x0",), "is no weight"),
        ("", (), ("batch=-2",), "is no weight"),
        ("", (), ("=2",), "is no weight"),
    ],
)
def test_changes_that_cannot_be_read(
    policy: str, nodes: tuple[str, ...], weights: tuple[str, ...], message: str
) -> None:
    """Field, value and way out."""
    with pytest.raises(InvalidInput) as caught:
        parse_changes(policy, nodes, weights)
    assert message in str(caught.value)
    assert ". Fix: " in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "weights", "message"),
    [
        (
            ("1:n99",),
            (),
            "add-nodes: there is no node 'n99'. Fix: name one of the nodes, such as n0",
        ),
        ((), ("gold=2",), "queue-weight: there is no queue 'gold'. Fix: one of default"),
    ],
)
def test_changes_of_what_is_not_there(
    nodes: tuple[str, ...], weights: tuple[str, ...], message: str
) -> None:
    day = parse_day(simulated_history(1, jobs=3), "x")
    with pytest.raises(InvalidInput) as caught:
        replay(day, queue_policy("easy"), parse_changes("", nodes, weights))
    assert message in str(caught.value)


def _broken(**changes: Any) -> Any:
    data = simulated_history(1, jobs=3)
    job = changes.pop("job", {})
    data["jobs"][1] |= job
    return {**data, **changes}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "day.json: is no JSON object"),
        (_broken(form="swf"), "day.json, form = 'swf': is not fluxqueue-history/1"),
        (_broken(until=0), "until: is not after `from`"),
        (_broken(until=2**41), "until: is more than 31 days after `from`"),
        (_broken(since="now"), "day.json, since = 'now': is no whole number"),
        (_broken(since=True), "day.json, since = True: is no whole number"),
        (_broken(since=-5), "day.json, since = -5: is no whole number"),
        (_broken(jobs={}), None),
        (_broken(jobs=7), "day.json, jobs = 7: is no list"),
        (_broken(nodes=[{}]), "day.json, nodes[0]: is no node: KeyError('name')"),
        (_broken(queues=[{"name": "a", "spec": {"policy": 3}}]), "spec.policy"),
        (_broken(job={"started": 10**30}), "day.json, jobs[1], started"),
        (
            _broken(job={"started": 5, "ended": 4}),
            "day.json, jobs[1], ended = 4: is before its start",
        ),
        (_broken(job={"started": None}), "is before its start"),
        (_broken(job={"request": {"a": 1}}), "day.json, jobs[1]: has no usable request"),
        (_broken(job={"nodes": {"n0": 3}}), "day.json, jobs[1], nodes.n0: is no JSON object"),
        (_broken(job={"nodes": {"n0": {"cpu": -3}}}), "jobs[1], nodes.n0, cpu = -3"),
        (_broken(job={"user": 7}), "day.json, jobs[1], user = 7: is no text"),
        (_broken(job={"held": "n0"}), "day.json, jobs[1], held = 'n0': is no list of names"),
        (_broken(job={"request": None, "cpuSeconds": float("nan")}), "cpuSeconds"),
    ],
)
def test_files_that_are_no_history(data: Any, message: str | None) -> None:
    """Each error names the field and the way out."""
    if message is None:
        assert parse_day(data, "day.json").jobs == ()
        return
    with pytest.raises(InvalidInput) as caught:
        parse_day(data, "day.json")
    assert message in str(caught.value)
    assert ". Fix: " in str(caught.value)


def test_a_day_without_jobs() -> None:
    """There is nothing to compare, and nothing fails."""
    data = simulated_history(1, jobs=3)
    data["jobs"] = []
    day = parse_day(data, "x")
    assert replay(day, queue_policy("easy"), NONE).outcome.waits[ALL].jobs == 0
    assert render_table(day, as_recorded(day), [again(day).outcome])
