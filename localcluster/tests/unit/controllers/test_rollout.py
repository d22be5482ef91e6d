"""Deployments: sizes during a rollout, revisions, conditions."""

from __future__ import annotations

from typing import Any

import pytest

from localcluster.controllers import rollout
from tests.support.builders import NOW, Obj, at


def _deployment(replicas: int = 3, **spec: Any) -> Obj:
    status = spec.pop("status", {})
    template = {"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [{"image": "2"}]}}
    return {
        "metadata": {"name": "w", "namespace": "n", "uid": "d", "generation": 4},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "w"}},
            "template": template,
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"},
            },
            "progressDeadlineSeconds": 600,
            **spec,
        },
        "status": status,
    }


def _set(name: str, size: int, available: int, image: str = "1", **status: Any) -> Obj:
    labels = {"app": "w", rollout.HASH_LABEL: name}
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "creationTimestamp": at(-10 if image == "2" else -99),
            "annotations": {rollout.REVISION: "1"},
        },
        "spec": {
            "replicas": size,
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"image": image}]},
            },
        },
        "status": {
            "replicas": size,
            "readyReplicas": available,
            "availableReplicas": available,
            **status,
        },
    }


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "expected"),
    [
        (3, "25%", "25%", (1, 0)),
        (10, "25%", "25%", (3, 2)),
        (2, 0, "25%", (0, 1)),
        (4, 2, 1, (2, 1)),
    ],
)
def test_limits(
    replicas: int, surge: int | str, unavailable: int | str, expected: tuple[int, int]
) -> None:
    """Surge rounds up, unavailable down, and both are never 0."""
    deployment = _deployment(replicas)
    deployment["spec"]["strategy"]["rollingUpdate"] = {
        "maxSurge": surge,
        "maxUnavailable": unavailable,
    }
    assert rollout.limits(deployment) == expected


def test_new_set_is_found_by_template() -> None:
    """The hash label does not count."""
    old, new = _set("old", 3, 3), _set("new", 1, 0, "2")
    assert rollout.new_replica_set(_deployment(), [old, new]) is new
    assert rollout.new_replica_set(_deployment(), [old]) is None


def test_rollout_pod_by_pod() -> None:
    """The recorded rollout of two: one more, one less, one more, one less."""
    deployment = _deployment(2)
    old = _set("old", 2, 2)
    assert rollout.new_set_size(deployment, None, [old]) == 1
    new = _set("new", 1, 0, "2")
    assert rollout.old_set_sizes(deployment, new, [old]) == {}
    new = _set("new", 1, 1, "2")
    assert rollout.new_set_size(deployment, new, [old]) == 1
    assert rollout.old_set_sizes(deployment, new, [old]) == {"old": 1}
    old = _set("old", 1, 1)
    assert rollout.new_set_size(deployment, new, [old]) == 2
    assert rollout.old_set_sizes(deployment, _set("new", 2, 1, "2"), [old]) == {}
    assert rollout.old_set_sizes(deployment, _set("new", 2, 2, "2"), [old]) == {"old": 0}


def test_unhealthy_old_pods_go_first() -> None:
    """They cost no availability, so nothing waits for them."""
    deployment = _deployment(4)
    broken, fine = _set("broken", 2, 0), _set("fine", 2, 2)
    fine["metadata"]["creationTimestamp"] = at(-200)
    sizes = rollout.old_set_sizes(deployment, _set("new", 1, 1, "2"), [broken, fine])
    assert sizes == {"broken": 0}


def test_recreate() -> None:
    """All old pods go, also the terminating ones, before a new one comes."""
    deployment = _deployment(2, strategy={"type": "Recreate"})
    old = _set("old", 2, 2)
    assert rollout.new_set_size(deployment, None, [old]) == 0
    assert rollout.old_set_sizes(deployment, _set("new", 0, 0, "2"), [old]) == {"old": 0}
    leaving = _set("old", 0, 0, terminatingReplicas=1)
    assert rollout.new_set_size(deployment, None, [leaving]) == 0
    assert rollout.new_set_size(deployment, None, [_set("old", 0, 0)]) == 2


def test_new_set() -> None:
    """Name, hash in labels and selector, annotations, owner."""
    made = rollout.make_replica_set(_deployment(), 1, 2)
    digest = made["metadata"]["labels"][rollout.HASH_LABEL]
    assert made["metadata"]["name"] == f"w-{digest}"
    assert made["spec"]["selector"]["matchLabels"] == {"app": "w", rollout.HASH_LABEL: digest}
    assert made["spec"]["template"]["metadata"]["labels"][rollout.HASH_LABEL] == digest
    assert made["metadata"]["annotations"] == {
        rollout.REVISION: "2",
        rollout.DESIRED: "3",
        rollout.MAXIMUM: "4",
    }
    again = rollout.make_replica_set(_deployment(status={"collisionCount": 1}), 1, 2)
    assert again["metadata"]["name"] != made["metadata"]["name"]


def test_history_is_bounded() -> None:
    """Empty sets beyond revisionHistoryLimit go, lowest revision first."""
    sets = [_set(f"s{n}", 0, 0) for n in range(4)]
    for number, rs in enumerate(sets):
        rs["metadata"]["annotations"][rollout.REVISION] = str(number)
    sets.append(_set("busy", 1, 1))
    surplus = rollout.surplus_sets(_deployment(revisionHistoryLimit=3), sets)
    assert [rs["metadata"]["name"] for rs in surplus] == ["s0"]


def test_status_and_conditions() -> None:
    """From nothing over progress to complete, with the recorded reasons."""
    deployment = _deployment(2)
    created = {**deployment, "status": rollout.created_status(deployment, "w-1", NOW)}
    first = rollout.deployment_status(created, _set("w-1", 0, 0, "2"), [], NOW)
    assert [c["reason"] for c in first["conditions"]] == [
        "NewReplicaSetCreated",
        "MinimumReplicasUnavailable",
    ]
    assert first["unavailableReplicas"] == 2
    new = _set("w-1", 2, 1, "2")
    moving = rollout.deployment_status({**deployment, "status": first}, new, [new], NOW)
    assert moving["conditions"][1]["reason"] == "ReplicaSetUpdated"
    done_set = _set("w-1", 2, 2, "2")
    done = rollout.deployment_status({**deployment, "status": moving}, done_set, [done_set], NOW)
    assert [(c["status"], c["reason"]) for c in done["conditions"]] == [
        ("True", "MinimumReplicasAvailable"),
        ("True", "NewReplicaSetAvailable"),
    ]
    assert "unavailableReplicas" not in done
    assert rollout.deadline_left_s({**deployment, "status": done}, NOW) is None


def test_progress_deadline() -> None:
    """No change for longer than the deadline turns Progressing False."""
    new = _set("w-1", 2, 0, "2")
    before = rollout.deployment_status(_deployment(2), new, [new], NOW)
    for condition in before["conditions"]:
        condition["lastUpdateTime"] = at(-601)
    late = rollout.deployment_status(_deployment(2, status=before), new, [new], NOW)
    assert late["conditions"][1]["reason"] == "ProgressDeadlineExceeded"
    assert late["conditions"][1]["status"] == "False"
