"""StatefulSets: one ordinal after the other."""

from __future__ import annotations

from typing import Any

from localcluster.controllers import stateful
from tests.support.builders import NOW, Obj, at


def _set(replicas: int, **spec: Any) -> Obj:
    return {
        "metadata": {"name": "db", "namespace": "n", "uid": "s", "generation": 1},
        "spec": {
            "replicas": replicas,
            "serviceName": "svc",
            "selector": {"matchLabels": {"app": "db"}},
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": []}},
            **spec,
        },
    }


def _pod(ordinal: int, *, ready: bool = True, revision: str = "r1", deleted: bool = False) -> Obj:
    metadata: Obj = {
        "name": f"db-{ordinal}",
        "namespace": "n",
        "uid": str(ordinal),
        "labels": {stateful.REVISION_LABEL: revision},
    }
    if deleted:
        metadata["deletionTimestamp"] = at(30)
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": at(-10)}
    return {
        "metadata": metadata,
        "spec": {},
        "status": {"phase": "Running", "conditions": [condition]},
    }


def _plan(subject: Obj, pods: list[Obj], *, update: str = "r1") -> tuple[list[str], list[str]]:
    plan = stateful.plan_stateful(
        subject, pods, current="r1", update=update, old_template=None, now=NOW
    )
    return (
        [pod["metadata"]["name"] for pod in plan.create],
        [pod["metadata"]["name"] for pod in plan.delete],
    )


def test_ordered_start() -> None:
    """The next pod comes when the last one is ready."""
    assert _plan(_set(3), []) == (["db-0"], [])
    assert _plan(_set(3), [_pod(0, ready=False)]) == ([], [])
    assert _plan(_set(3), [_pod(0)]) == (["db-1"], [])


def test_parallel_start() -> None:
    """Parallel waits for no other pod."""
    subject = _set(3, podManagementPolicy="Parallel")
    assert _plan(subject, [_pod(0, ready=False)]) == (["db-1", "db-2"], [])


def test_scale_down_in_reverse() -> None:
    """The highest goes first, the next when it is gone."""
    pods = [_pod(0), _pod(1), _pod(2)]
    assert _plan(_set(1), pods) == ([], ["db-2"])
    assert _plan(_set(1), [_pod(0), _pod(1), _pod(2, deleted=True)]) == ([], [])


def test_rolling_update_from_the_top() -> None:
    """One at a time, each after the one above is ready again. The partition stays."""
    pods = [_pod(0), _pod(1)]
    assert _plan(_set(2), pods, update="r2") == ([], ["db-1"])
    assert _plan(_set(2), [_pod(0), _pod(1, revision="r2")], update="r2") == ([], ["db-0"])
    held = _set(2, updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": 2}})
    assert _plan(held, pods, update="r2") == ([], [])
    manual = _set(2, updateStrategy={"type": "OnDelete"})
    assert _plan(manual, pods, update="r2") == ([], [])


def test_pod() -> None:
    """Fixed name, host name, service, the three labels."""
    pod = stateful.make_pod(_set(1), 0, "r1")
    assert pod["metadata"]["name"] == pod["spec"]["hostname"] == "db-0"
    assert pod["spec"]["subdomain"] == "svc"
    assert pod["metadata"]["labels"] == {
        "app": "db",
        "apps.kubernetes.io/pod-index": "0",
        "controller-revision-hash": "r1",
        "statefulset.kubernetes.io/pod-name": "db-0",
    }


def test_status() -> None:
    """Revisions move when every pod is of the new one."""
    pods = [_pod(0, revision="r2"), _pod(1, ready=False, revision="r2")]
    moving = stateful.stateful_status(_set(2), pods, "r1", "r2", NOW)
    assert (moving["currentRevision"], moving["updatedReplicas"]) == ("r1", 2)
    assert (moving["readyReplicas"], moving["availableReplicas"]) == (1, 1)
    done = stateful.stateful_status(
        _set(2), [_pod(0, revision="r2"), _pod(1, revision="r2")], "r1", "r2", NOW
    )
    assert done["currentRevision"] == "r2"
