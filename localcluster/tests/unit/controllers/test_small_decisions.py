"""Node health, TTL, namespaces, and the work queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from localcluster.controllers.namespaces import deletion_conditions, with_times
from localcluster.controllers.node_health import (
    evicted_at,
    missing_marks,
    taint_steps,
    unknown_conditions,
)
from localcluster.controllers.ttl import expires_at
from localcluster.errors import ApiUnavailable
from localcluster.loops.workqueue import WorkQueue
from tests.support.builders import NOW, Obj, at, job


def _node(ready: str = "True", *taints: Obj, cordoned: bool = False) -> Obj:
    return {
        "metadata": {"name": "n"},
        "spec": {"taints": list(taints), "unschedulable": cordoned},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def _taint(name: str, effect: str, **more: Any) -> Obj:
    return {"key": f"node.kubernetes.io/{name}", "effect": effect, **more}


def test_admission_taint_goes_when_the_node_is_ready() -> None:
    """The taint added at registration. Foreign taints stay."""
    foreign = {"key": "dedicated", "effect": "NoSchedule"}
    node = _node("True", _taint("not-ready", "NoSchedule"), foreign)
    assert taint_steps(node, NOW, "NoSchedule") == [[foreign]]
    assert taint_steps(node, NOW, "NoExecute") == []
    assert taint_steps(_node("True", foreign), NOW, "NoSchedule") == []


@pytest.mark.parametrize(("ready", "name"), [("False", "not-ready"), ("Unknown", "unreachable")])
def test_taints_of_an_unready_node(ready: str, name: str) -> None:
    """NoSchedule first, NoExecute in a pass of its own, each with the time."""
    first = _taint(name, "NoSchedule", timeAdded=at(0))
    assert taint_steps(_node(ready), NOW, "NoSchedule") == [[first]]
    both = [first, _taint(name, "NoExecute", timeAdded=at(0))]
    assert taint_steps(_node(ready, first), NOW, "NoExecute") == [both]


def test_additions_come_before_removals() -> None:
    """A node is never without a taint that it keeps deserving under another name."""
    steps = taint_steps(_node("Unknown", _taint("not-ready", "NoSchedule")), NOW, "NoSchedule")
    assert [[t["key"].partition("/")[2] for t in taints] for taints in steps] == [
        ["not-ready", "unreachable"],
        ["unreachable"],
    ]


def test_cordon_and_its_end() -> None:
    """spec.unschedulable has a taint of its own."""
    taint = _taint("unschedulable", "NoSchedule")
    cordoned = _node(cordoned=True)
    assert taint_steps(cordoned, NOW, "NoSchedule") == [[{**taint, "timeAdded": at(0)}]]
    assert taint_steps(_node("True", taint), NOW, "NoSchedule") == [[]]


def test_marks_of_the_control_plane() -> None:
    """The TTL annotation and the old label names, once."""
    node: Obj = {"metadata": {"name": "n", "labels": {"kubernetes.io/os": "linux"}}}
    first, second = missing_marks(node)
    assert first == {"annotations": {"node.alpha.kubernetes.io/ttl": "0"}}
    assert second == {"labels": {"beta.kubernetes.io/os": "linux"}}
    node["metadata"]["labels"] |= second["labels"]
    node["metadata"] |= first
    assert missing_marks(node) == []


def test_silent_node() -> None:
    """All conditions Unknown, with the kubelet's reason."""
    (condition,) = unknown_conditions(_node(), NOW)
    assert (condition["status"], condition["reason"]) == ("Unknown", "NodeStatusUnknown")


@pytest.mark.parametrize(
    ("tolerations", "expected_s"),
    [
        ([], 0),
        ([{"operator": "Exists"}], None),
        ([{"operator": "Exists", "tolerationSeconds": 300}], 300),
        (
            [
                {"operator": "Exists", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists"},
                {"operator": "Exists", "tolerationSeconds": 3},
            ],
            3,
        ),
    ],
)
def test_eviction(tolerations: list[Obj], expected_s: int | None) -> None:
    """Untolerated: at once. For a time: the shortest. For ever: never."""
    node = _node("Unknown", _taint("unreachable", "NoExecute", timeAdded=at(0)))
    due = evicted_at({"spec": {"tolerations": tolerations}}, node)
    assert (None if due is None else (due - NOW).total_seconds()) == expected_s


def test_ttl() -> None:
    """Counted from the terminal condition. Nothing without one."""
    done = {"conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": at(-5)}]}
    due = expires_at(job(ttlSecondsAfterFinished=20, status=done))
    assert due is not None
    assert (due - NOW).total_seconds() == 15
    assert expires_at(job(ttlSecondsAfterFinished=20)) is None
    assert expires_at(job(status=done)) is None


def test_namespace_conditions() -> None:
    """Five of them. What remains is counted. Unchanged ones keep their time."""
    conditions = deletion_conditions({"configmaps.": 1}, {"example.com/hold": 1})
    texts = {c["type"]: (c["status"], c["message"]) for c in conditions}
    assert texts["NamespaceContentRemaining"] == (
        "True",
        "Some resources are remaining: configmaps. has 1 resource instances",
    )
    assert texts["NamespaceFinalizersRemaining"] == (
        "True",
        (
            "Some content in the namespace has finalizers remaining: "
            "example.com/hold in 1 resource instances"
        ),
    )
    timed = with_times(conditions, [], NOW)
    later = with_times(deletion_conditions({}, {}), timed, NOW.replace(hour=13))
    changed = {c["type"] for c in later if c["lastTransitionTime"] != at(0)}
    assert changed == {"NamespaceContentRemaining", "NamespaceFinalizersRemaining"}


async def test_queue_works_once_per_key_and_again_if_asked_meanwhile() -> None:
    """No key runs twice at a time. An addition during the work is not lost."""
    runs: list[str] = []
    running = asyncio.Event()
    go_on = asyncio.Event()

    async def work(key: str) -> None:
        runs.append(key)
        running.set()
        await go_on.wait()

    queue: WorkQueue[str] = WorkQueue("t", work, workers=4)
    queue.start()
    for _ in range(3):
        queue.add("a")
    await running.wait()
    queue.add("a")
    queue.add("a")
    assert runs == ["a"]
    go_on.set()
    async with asyncio.timeout(60):
        while len(runs) < 2:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    await queue.stop()
    assert runs == ["a", "a"]


async def test_queue_retries_failures() -> None:
    """Errors of ours and of others come back. Success forgets them."""
    attempts: list[int] = []
    done = asyncio.Event()

    async def work(key: int) -> None:
        attempts.append(key)
        if len(attempts) == 1:
            raise ApiUnavailable("down")
        if len(attempts) == 2:
            raise ValueError("a bug")
        done.set()

    queue: WorkQueue[int] = WorkQueue("t", work)
    queue.start()
    queue.add(7)
    await asyncio.wait_for(done.wait(), 60)
    await queue.stop()
    assert attempts == [7, 7, 7]


async def test_earliest_appointment_counts() -> None:
    """A later appointment does not put off an earlier one. An earlier one replaces it."""
    ran = asyncio.Event()

    async def work(_key: str) -> None:
        ran.set()

    queue: WorkQueue[str] = WorkQueue("t", work)
    queue.start()
    queue.add_after("a", 3600)
    queue.add_after("a", 0.01)
    queue.add_after("a", 3600)
    await asyncio.wait_for(ran.wait(), 60)
    await queue.stop()
