"""What DELETE does to an object: finalizers, grace, propagation."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from localcluster.kinds.builtin import build_registry
from localcluster.kinds.registry import ResourceInfo
from localcluster.obj import Obj
from localcluster.server.deletion import (
    DeleteOptions,
    Plan,
    gc_finalizers,
    is_finished_by_update,
    options_from_object,
    plan,
)
from localcluster.server.store import Entry
from localcluster.types.refusals import StatusError

REGISTRY = build_registry()
NOW_S = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def info(group: str, plural: str) -> ResourceInfo:
    """A built-in resource."""
    found = REGISTRY.lookup(group, "v1", plural)
    assert found is not None
    return found


PODS, JOBS, MAPS = info("", "pods"), info("batch", "jobs"), info("", "configmaps")


def entry(kind: str, *, meta: Obj | None = None, **parts: Any) -> Entry:
    """A stored object."""
    obj = {"kind": kind, "apiVersion": "v1", "metadata": {"name": "x", "namespace": "n"}, **parts}
    obj["metadata"].update(meta or {})
    return Entry("n/x", 1, obj, orjson.dumps(obj))


def pod(meta: Obj | None = None, node: str = "node-1", phase: str = "Running") -> Entry:
    """A pod, bound unless ``node`` is empty."""
    spec: Obj = {"terminationGracePeriodSeconds": 30, "containers": []}
    if node:
        spec["nodeName"] = node
    return entry("Pod", meta=meta, spec=spec, status={"phase": phase})


def run(resource: ResourceInfo, obj: Entry, **options: Any) -> Plan:
    """The plan for one object."""
    return plan(resource, obj, DeleteOptions(**options), NOW_S)


def test_a_bound_pod_waits_for_its_kubelet() -> None:
    """deletionTimestamp lies the grace period ahead, the generation rises."""
    made = run(PODS, pod({"generation": 1}))
    assert made.updated is not None
    assert not made.is_removed
    meta = made.updated["metadata"]
    assert meta["deletionTimestamp"] == "2026-01-01T00:00:30Z"
    assert (meta["deletionGracePeriodSeconds"], meta["generation"]) == (30, 2)


@pytest.mark.parametrize(("node", "phase"), [("", "Pending"), ("n", "Succeeded"), ("n", "Failed")])
def test_unbound_and_finished_pods_go_at_once(node: str, phase: str) -> None:
    """Grace period 0: one MODIFIED, then DELETED."""
    made = run(PODS, pod(node=node, phase=phase))
    assert made.is_removed
    assert made.updated is not None
    assert made.updated["metadata"]["deletionGracePeriodSeconds"] == 0


def deleting(grace_s: int, **more: Any) -> Obj:
    """Metadata of a pod that is being deleted since NOW_S."""
    return {
        "deletionTimestamp": f"2026-01-01T00:00:{grace_s:02d}Z",
        "deletionGracePeriodSeconds": grace_s,
        **more,
    }


def test_grace_can_be_shortened_but_not_lengthened() -> None:
    """A second DELETE changes nothing unless it asks for less time."""
    assert run(PODS, pod(deleting(30))) == Plan(None, False)
    assert run(PODS, pod(deleting(5)), grace_s=60) == Plan(None, False)
    shorter = run(PODS, pod(deleting(30)), grace_s=5)
    assert shorter.updated is not None
    assert shorter.updated["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:05Z"
    assert not shorter.is_removed
    assert run(PODS, pod(deleting(30)), grace_s=0).is_removed


def test_finalizers_hold_an_object() -> None:
    """It is marked with grace 0 and stays. Deleting it again changes nothing."""
    held = entry("ConfigMap", meta={"finalizers": ["example.com/x"], "generation": 3})
    made = run(MAPS, held)
    assert made.updated is not None
    assert not made.is_removed
    assert made.updated["metadata"]["deletionGracePeriodSeconds"] == 0
    assert made.updated["metadata"]["generation"] == 4
    again = entry("ConfigMap", meta=made.updated["metadata"])
    assert run(MAPS, again) == Plan(None, False)


def test_a_plain_object_is_removed_without_an_update() -> None:
    """No MODIFIED event comes before its DELETED."""
    assert run(MAPS, entry("ConfigMap")) == Plan(None, True)


@pytest.mark.parametrize(
    ("options", "default", "expected"),
    [
        ({}, "Background", []),
        ({}, "Orphan", ["orphan"]),
        ({"policy": "Background"}, "Orphan", []),
        ({"policy": "Foreground"}, "Orphan", ["foregroundDeletion"]),
        ({"policy": "Orphan"}, "Background", ["orphan"]),
        ({"orphan_dependents": True}, "Background", ["orphan"]),
        ({"orphan_dependents": False}, "Orphan", []),
    ],
)
def test_propagation(options: dict[str, Any], default: str, expected: list[str]) -> None:
    """The policy asked for, else the kind's own."""
    assert gc_finalizers([], DeleteOptions(**options), default) == expected


def test_a_finalizer_that_is_there_overrides_the_default_but_not_the_policy() -> None:
    """``foregroundDeletion`` set beforehand counts as a wish."""
    there = ["foregroundDeletion", "example.com/x"]
    assert gc_finalizers(there, DeleteOptions(), "Orphan") == [
        "example.com/x",
        "foregroundDeletion",
    ]
    assert gc_finalizers(there, DeleteOptions(policy="Background"), "Orphan") == ["example.com/x"]


def test_a_job_orphans_by_default() -> None:
    """As recorded: DELETE of a Job without a policy keeps its pods."""
    made = run(JOBS, entry("Job", meta={"generation": 1}))
    assert made.updated is not None
    assert made.updated["metadata"]["finalizers"] == ["orphan"]


def test_the_last_finalizer_ends_a_deletion() -> None:
    """Only of an object that is being deleted, and of a pod only when its grace is over."""
    old = {"metadata": deleting(0, finalizers=["x"])}
    assert is_finished_by_update(old, {"metadata": deleting(0)})
    assert not is_finished_by_update(old, {"metadata": deleting(0, finalizers=["x"])})
    waiting = {"metadata": deleting(30, finalizers=["x"])}
    assert not is_finished_by_update(waiting, {"metadata": deleting(30)})
    assert not is_finished_by_update({"metadata": {}}, {"metadata": {}})


def test_a_namespace_waits_for_its_spec_finalizer() -> None:
    """DELETE only marks it Terminating. It goes when its controller is done."""
    space = Entry("n", 1, obj := {
        "kind": "Namespace", "metadata": {"name": "n"}, "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }, orjson.dumps(obj))  # fmt: skip
    made = run(info("", "namespaces"), space)
    assert made.updated is not None
    assert not made.is_removed
    assert made.updated["status"]["phase"] == "Terminating"
    assert "deletionGracePeriodSeconds" not in made.updated["metadata"]
    done = {**made.updated, "spec": {}}
    assert is_finished_by_update(made.updated, done)


@pytest.mark.parametrize(
    "options",
    [
        {"propagationPolicy": "Sideways"},
        {"propagationPolicy": "Orphan", "orphanDependents": True},
        {"dryRun": ["Some"]},
    ],
)
def test_wrong_options_are_422(options: Obj) -> None:
    """As recorded in ``pod-delete`` and ``dry-run``."""
    with pytest.raises(StatusError) as caught:
        options_from_object(options)
    assert caught.value.code == 422
