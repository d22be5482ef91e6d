"""Named queues in a simulation: limits, order, fair share, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fluxqueue.cli.main import app
from fluxqueue.errors import InvalidInput
from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.simulation.named_queues import read_queues
from fluxqueue.simulation.simulated_jobs import SimulatedJob, cores_request, uniform_cluster
from fluxqueue.simulation.simulator import RunRecord, simulate

CORES = 4


def queue(name: str, **spec: object) -> dict[str, object]:
    return {"kind": "FluxQueue", "metadata": {"name": name}, "spec": spec}


def rules(*documents: dict[str, object]) -> dict[str, QueueRules]:
    return read_queues(documents, "queues.yaml")


def job(number: int, user: str = "a", queue: str = "default", submit_s: int = 0, cores: int = CORES,
        runs_s: int = 100, duration_s: int | None = 100) -> SimulatedJob:  # fmt: skip
    request = cores_request(cores, duration_s, cores_per_node=CORES)
    return SimulatedJob(number, submit_s, request, runs_s, user=user, queue=queue)


def run(nodes: int, jobs: list[SimulatedJob], named: dict[str, QueueRules]) -> list[RunRecord]:
    cluster = uniform_cluster(nodes, CORES)
    return simulate(cluster, jobs, queue_policy("easy"), queues=named)


def starts(records: list[RunRecord]) -> list[int | None]:
    return [one.started_s for one in records]


def test_a_limit_of_each_user_lets_others_pass() -> None:
    """Nodes stay free beside a user at its limit, and another user starts."""
    named = rules(queue("default", limits={"perUser": {"jobs": 1}}))
    jobs = [job(1), job(2), job(3, user="b")]
    assert starts(run(3, jobs, named)) == [0, 100, 0]
    assert starts(run(3, jobs, rules())) == [0, 0, 0]


def test_a_limit_of_a_queue_counts_its_own_jobs() -> None:
    named = rules(queue("small", limits={"total": {"nodes": 1}}))
    jobs = [job(1, queue="small"), job(2, queue="small"), job(3)]
    assert starts(run(3, jobs, named)) == [0, 100, 0]


def test_a_queue_of_a_higher_priority_goes_first() -> None:
    named = rules(queue("urgent", priority=100))
    jobs = [job(1), job(2, submit_s=1), job(3, queue="urgent", submit_s=1)]
    assert starts(run(1, jobs, named)) == [0, 200, 100]


def test_fair_share_lets_users_without_use_pass() -> None:
    """The user that has used the machine goes behind the newcomer."""
    named = rules(queue("default", fairShare={"enabled": True, "halfLife": "1h", "weight": 1000}))
    first = job(1, runs_s=600, duration_s=600)
    jobs = [first, job(2, submit_s=300), job(3, user="b", submit_s=300)]
    assert starts(run(1, jobs, named)) == [0, 700, 600]
    assert starts(run(1, jobs, rules())) == [0, 600, 700]


def test_what_a_queue_does_not_take_is_told() -> None:
    """It is not lost, and it is not started."""
    named = rules(
        queue("short", limits={"perJob": {"durationSeconds": 50}}), queue("off", enabled=False)
    )
    found = run(
        1, [job(1, queue="short"), job(2, queue="off"), job(3, queue="none"), job(4)], named
    )
    assert starts(found) == [None, None, None, 0]
    assert "perJob.durationSeconds is 50" in found[0].refusal
    assert "spec.enabled is false" in found[1].refusal
    assert "there is no FluxQueue 'none'" in found[2].refusal


def test_a_default_duration_lets_backfill_plan() -> None:
    named = rules(queue("default", defaultDuration="60s"))
    long = SimulatedJob(1, 0, cores_request(CORES, None, cores_per_node=CORES), 60)
    wide = SimulatedJob(2, 1, cores_request(2 * CORES, 100, cores_per_node=CORES), 100)
    records = run(2, [long, wide, job(3, submit_s=2, runs_s=30, duration_s=30)], named)
    assert starts(records) == [0, 60, 2]
    # Behind a duration that no limit enforces, a start is expected and not promised.
    assert records[1].promise is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind: Job\nmetadata: {name: x}\n", "other than FluxQueues"),
        ("- 1", "other than FluxQueues"),
        ("kind: FluxQueue\nmetadata: {name: x}\nspec: {policy: magic}\n", "x: spec.policy"),
    ],
)
def test_a_wrong_file_says_where(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        read_queues(yaml.safe_load_all(text), "queues.yaml")


def test_the_command_reads_queues_and_a_log(tmp_path: Path) -> None:
    """A List, as kubectl writes it. Refusals are counted."""
    file = tmp_path / "queues.yaml"
    short = queue("short", limits={"perJob": {"durationSeconds": 50}})
    file.write_text(yaml.safe_dump({"kind": "List", "items": [queue("batch"), short]}))
    log = tmp_path / "log.swf"
    log.write_text(
        "; Queue: 1 batch\n; Queue: 2 short\n"
        "1 0 0 100 4 -1 -1 4 200 -1 1 3 1 -1 1 -1 -1 -1\n"
        "2 0 0 100 4 -1 -1 4 200 -1 1 3 1 -1 2 -1 -1 -1\n"
    )
    told = CliRunner().invoke(
        app, ["sim", "--swf", str(log), "--queues", str(file), "--policy", "easy", "--nodes", "2"]
    )
    assert told.exit_code == 0, told.output
    assert "1 jobs are refused by their queue: queue short: spec.limits.perJob" in told.output
    told = CliRunner().invoke(app, ["sim", "--queues", str(file), "--preemption"])
    assert "its own spec.preemption" in str(told.exception)


def test_progress_is_told_as_jobs_end() -> None:
    told: list[int] = []
    jobs = [job(number) for number in range(1, 301)]
    simulate(uniform_cluster(4, CORES), jobs, queue_policy("fcfs"), tell=told.append)
    assert told == sorted(set(told))
    assert told[-1] > 290
