"""How simulated pods run, fail, restart and end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from localcluster.nodes.pod_simulation import (
    PREFIX,
    Run,
    Script,
    Step,
    failure_key,
    finished_status,
    next_step,
    parse_duration_s,
    recovered_run,
    running_status,
    script_of,
)
from tests.support.builders import NOW, Obj, at


def _pod(policy: str = "Never", phase: str = "Running", **metadata: Any) -> Obj:
    notes = {f"{PREFIX}{k}": v for k, v in metadata.pop("notes", {}).items()}
    return {
        "metadata": {"name": "p", "uid": "u", "annotations": notes, **metadata},
        "spec": {"restartPolicy": policy, "containers": [{"name": "main", "image": "i"}]},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2.5s", 2.5), ("200ms", 0.2), ("1h30m", 5400), ("7", 7), ("0s", 0), ("", None), ("x", None)],
)
def test_durations(text: str, seconds: float | None) -> None:
    """Go's spelling and bare seconds. Nonsense counts as absent."""
    assert parse_duration_s(text) == seconds


def test_scripts() -> None:
    """Annotations, and the defaults: a second for what ends, no end for restartPolicy Always."""
    notes = {"duration": "3s", "exit-code": "9", "fail-times": "2", "termination": "1s"}
    assert script_of(_pod(notes=notes)) == Script(3, 9, 2, 1)
    assert script_of(_pod()).duration_s == 1
    assert script_of(_pod("Always")).duration_s is None
    assert script_of(_pod(notes={"never-ends": "true", "duration": "1s"})).duration_s is None


@pytest.mark.parametrize(
    ("container", "seconds"),
    [
        ({"command": ["sleep", "60"]}, 60),
        ({"command": ["/bin/sleep"], "args": ["1.5m", "3"]}, 93),
        ({"args": ["sleep", "2h"]}, 7200),
        ({"command": ["sleep", "infinity"]}, None),
        ({"command": ["sh", "-c", "echo a; sleep 4 && sleep 2s # sleep well"]}, 6),
        ({"command": ["bash", "-ec", "for i in 1 2; do\n  sleep 5\ndone"]}, 5),
        ({"command": ["sh", "-c", "nosleep 9; ./sleep_well 8"]}, 1),
        ({"command": ["sleep", "soon"]}, 1),
        ({"command": ["sleep"]}, 1),
        ({"command": ["python", "-c", "sleep 9"]}, 1),
        ({"command": ["sh", "-c", "sleep 1e9999 .; sleep " + "9" * 4000]}, 1),
    ],
)
def test_a_command_says_how_long(container: Obj, seconds: float | None) -> None:
    """``sleep`` by itself and in a shell. An annotation wins."""
    pod = _pod()
    pod["spec"]["containers"] = [{"name": "other", "image": "i"}, {"name": "main", **container}]
    assert script_of(pod).duration_s == seconds
    pod["metadata"]["annotations"][f"{PREFIX}duration"] = "7s"
    assert script_of(pod).duration_s == 7


def test_exit_codes() -> None:
    """The first fail-times runs fail, the next succeeds, whatever exit-code says."""
    script = Script(1, 9, 2)
    assert [Run(script, NOW, attempt=n).exit_code() for n in range(3)] == [9, 9, 0]
    assert Run(Script(1, 9, 0), NOW).exit_code() == 9
    assert Run(Script(1, 0, 1), NOW).exit_code() == 1


def test_life_of_a_pod() -> None:
    """Start at once, end when its time is over, then nothing."""
    assert next_step(_pod(phase="Pending"), None, NOW) == (Step.START, 0)
    run = Run(Script(5), NOW - timedelta(seconds=2))
    assert next_step(_pod(), run, NOW) == (Step.FINISH, 3)
    assert next_step(_pod(phase="Succeeded"), run, NOW)[0] is Step.NOTHING
    assert next_step(_pod(), Run(Script(None), NOW), NOW)[0] is Step.NOTHING


def test_restarts_in_place() -> None:
    """OnFailure restarts failures only, Always everything. Between runs there is a pause."""
    failing, fine = Run(Script(1, 1), NOW), Run(Script(1, 0), NOW)
    assert next_step(_pod("OnFailure"), failing, NOW) == (Step.PAUSE, 1)
    assert next_step(_pod("OnFailure"), fine, NOW) == (Step.FINISH, 1)
    assert next_step(_pod("Always"), fine, NOW) == (Step.PAUSE, 1)
    waiting = Run(Script(1, 1), NOW, restarts=1, is_waiting=True, since=NOW)
    step, due_s = next_step(_pod("OnFailure"), waiting, NOW)
    assert step is Step.RESTART
    assert due_s == pytest.approx(0.4)


def test_deletion() -> None:
    """Killed, after its termination time but within the grace. Then removed by its node."""
    deleted = {"deletionTimestamp": at(30), "deletionGracePeriodSeconds": 30}
    assert next_step(_pod(**deleted), Run(Script(9), NOW), NOW) == (Step.KILL, 0)
    slow = Run(Script(9, termination_s=4), NOW)
    assert next_step(_pod(**deleted), slow, NOW) == (Step.KILL, 4)
    stubborn = Run(Script(9, termination_s=400), NOW)
    assert next_step(_pod(**deleted), stubborn, NOW) == (Step.KILL, 30)
    assert next_step(_pod(phase="Failed", **deleted), None, NOW)[0] is Step.REMOVE


def test_finished_pod_held_by_a_finalizer_is_not_the_nodes_business() -> None:
    """Grace 0: the API server waits for a finalizer."""
    held = _pod(
        phase="Succeeded", deletionTimestamp=at(0), deletionGracePeriodSeconds=0, finalizers=["x"]
    )
    assert next_step(held, None, NOW)[0] is Step.NOTHING


def test_statuses_keep_other_peoples_conditions() -> None:
    """PodScheduled and DisruptionTarget stay. An unchanged condition keeps its time."""
    pod = _pod(phase="Pending")
    pod["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Initialized", "status": "True", "lastTransitionTime": at(-50)},
    ]
    status = running_status(pod, Run(Script(), NOW), NOW, host_ip="h", pod_ip="p")
    kinds = [c["type"] for c in status["conditions"]]
    assert kinds == ["Initialized", "Ready", "ContainersReady", "PodScheduled"]
    assert status["conditions"][0]["lastTransitionTime"] == at(-50)
    assert status["containerStatuses"][0]["state"] == {"running": {"startedAt": at(0)}}
    ended = finished_status(pod, Run(Script(), NOW), 3, NOW)
    assert ended["phase"] == "Failed"
    terminated = ended["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (3, "Error")


def test_failures_are_counted_per_job_and_index() -> None:
    """Two pods of one index share a key, other indexes and bare pods have their own."""
    owner = {"uid": "job", "controller": True, "kind": "Job", "name": "j"}
    label = "batch.kubernetes.io/job-completion-index"
    first = _pod(ownerReferences=[owner], labels={label: "1"}, uid="a")
    second = _pod(ownerReferences=[owner], labels={label: "1"}, uid="b")
    other = _pod(ownerReferences=[owner], labels={label: "2"})
    assert failure_key(first) == failure_key(second) == ("job", "1")
    assert failure_key(other) == ("job", "2")
    assert failure_key(_pod()) == ("u", "")


def test_recovery_after_a_restart_of_the_cluster() -> None:
    """A running pod goes on from its recorded start. A pending one has not begun."""
    pod = _pod(notes={"duration": "60s"})
    pod["status"]["startTime"] = at(-20)
    run = recovered_run(pod)
    assert run is not None
    assert next_step(pod, run, NOW) == (Step.FINISH, 40)
    assert recovered_run(_pod(phase="Pending")) is None
