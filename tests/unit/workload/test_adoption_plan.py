"""What a namespace would become here: what asks, what runs on, what has to be created again."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.workload.adoption_plan import plan_change
from fluxqueue.workload.aliases import Aliases
from fluxqueue.workload.owner_kinds import OwnerKinds

K = "kueue.x-k8s.io/"
ENDED = {"conditions": [{"type": "Complete", "status": "True"}]}


def _obj(kind: str, version: str = "batch/v1", *, spec: Any = None, **more: Any) -> dict[str, Any]:
    meta = {"name": "a", "labels": more.pop("marks", {}), **more.pop("meta", {})}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec or {}, **more}


GATED = {"schedulingGates": [{"name": f"{K}admission"}]}
SET = "jobset.x-k8s.io/v1alpha2"


@pytest.mark.parametrize(
    ("obj", "now", "queue", "note"),
    [
        (_obj("Job"), "runs", "default", "runs on"),
        (_obj("Job", spec={"suspend": True}, marks={f"{K}queue-name": "gold"}), "waits", "gold",
         "create it again"),
        (_obj("Pod", "v1", spec=GATED, marks={f"{K}queue-name": "gold"}), "waits", "gold",
         "create it again"),
        (_obj("Job", marks={f"{K}queue-name": "lost"}), "runs", "lost", "FluxQueue lost is"),
        (_obj("Job", marks={f"{K}max-exec-time-seconds": "x"}), "runs", "",
         f"[{K}max-exec-time-seconds]"),
        (_obj("Job", marks={"fluxqueue/managed": "false"}), "runs", "", "stays outside"),
        (_obj("Job", marks={"fluxqueue/managed": "true"}), "runs", "default", "already"),
        (_obj("JobSet", SET, spec={"suspend": True}, marks={f"{K}queue-name": "gold"}), "waits",
         "gold", "create it again"),
        (_obj("Job", meta={"annotations": {f"{K}job-min-parallelism": "2"}}), "runs", "default",
         f"without a meaning here: {K}job-min-parallelism"),
    ],
)  # fmt: skip
def test_each_object(obj: dict[str, Any], now: str, queue: str, note: str) -> None:
    found = plan_change(obj, "team", Aliases(), OwnerKinds(), {"default", "gold"})
    assert found is not None
    assert (found.now, found.queue) == (now, queue)
    assert note in found.note
    assert found.is_problem is (note.startswith(("FluxQueue", "[")))


@pytest.mark.parametrize(
    "obj",
    [
        _obj("Job", status=ENDED),
        _obj("Pod", "v1", status={"phase": "Failed"}),
        _obj("JobSet", SET),
        _obj("Deployment", "apps/v1"),
        _obj("Pod", "v1", meta={"ownerReferences": [
            {"controller": True, "kind": "Job", "name": "j", "uid": "u", "apiVersion": "batch/v1"}
        ]}),
    ],
)  # fmt: skip
def test_nothing_changes_for(obj: dict[str, Any]) -> None:
    assert plan_change(obj, "team", Aliases(), OwnerKinds(), {"default"}) is None
