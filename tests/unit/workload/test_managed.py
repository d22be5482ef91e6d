"""Which objects are taken in, and which never."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.fluxjob.node import Destination
from fluxqueue.workload import labels, managed
from fluxqueue.workload.holding import why_untouched
from fluxqueue.workload.kinds.bare_pod import BARE_POD
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.kinds.table import kind_of
from fluxqueue.workload.labels import HOSTNAME
from fluxqueue.workload.release_patches import pin_patch
from tests.support.workloads import bare_pod, batch_job, owner

GATED = {"schedulingGates": [{"name": "fluxqueue"}]}
GOING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
OPTED_OUT = {"labels": {"fluxqueue/managed": "false"}}


@pytest.mark.parametrize(
    "workload",
    [
        batch_job(),
        bare_pod(),
        batch_job(suspend=True),
        batch_job(meta={"labels": {"fluxqueue/managed": "true"}}),
        batch_job(meta={"ownerReferences": [owner("CronJob")]}),
        batch_job(managedBy="kubernetes.io/job-controller"),
        bare_pod(schedulingGates=[{"name": "other"}]),
    ],
)
def test_takes_in(workload: dict[str, Any]) -> None:
    assert why_untouched(kind_of(workload), workload, namespace="default") is None


@pytest.mark.parametrize(
    ("workload", "why"),
    [
        (batch_job(meta=GOING), "deleted"),
        (bare_pod(meta=GOING), "deleted"),
        (batch_job(meta=OPTED_OUT), '"false"'),
        (bare_pod(meta=OPTED_OUT), '"false"'),
        (batch_job(template_meta=OPTED_OUT), "pod template"),
        (batch_job(managedBy="kueue.x-k8s.io/multikueue"), "managedBy"),
        (batch_job(pod={"nodeName": "n1"}), "names its node"),
        (bare_pod(nodeName="n1"), "bound to n1"),
        (bare_pod(meta={"annotations": {"kubernetes.io/config.mirror": "x"}}), "mirror"),
        *(
            (bare_pod(meta={"ownerReferences": [owner(kind)]}), kind)
            for kind in ("DaemonSet", "Job", "ReplicaSet", "StatefulSet", "Node")
        ),
    ],
)
def test_leaves_untouched_and_says_why(workload: dict[str, Any], why: str) -> None:
    assert why in (why_untouched(kind_of(workload), workload, namespace="default") or "")


@pytest.mark.parametrize(
    "namespace", ["kube-system", "kube-public", "kube-node-lease", "fluxqueue-system"]
)
@pytest.mark.parametrize("workload", [batch_job(), bare_pod()])
def test_never_touches_system_and_own_namespaces(namespace: str, workload: dict[str, Any]) -> None:
    assert why_untouched(kind_of(workload), workload, namespace=namespace)


def test_own_namespace_can_be_another() -> None:
    for namespace in ("queue", "fluxqueue-system"):
        why = why_untouched(BARE_POD, bare_pod(), namespace=namespace, never_managed={"queue"})
        assert bool(why) is (namespace == "queue")


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (batch_job(pod=GATED), True),
        (batch_job(), False),
        (batch_job(pod=GATED, meta=GOING), False),
        (bare_pod(**GATED), True),
        (bare_pod(), False),
        (bare_pod(**GATED, meta={"ownerReferences": [owner("Job")]}), False),
    ],
)
def test_a_stored_object_is_managed_by_its_gate(workload: dict[str, Any], expected: bool) -> None:
    assert managed.is_managed(workload) is expected
    unnamed = {key: value for key, value in workload.items() if key != "kind"}
    assert managed.is_managed(unnamed) is expected


BY_LABEL = Destination("n1", "n1", is_labelled_index=True)


def _released(to: Destination = BY_LABEL, **more: Any) -> dict[str, Any]:
    """As the API server has it after the release in its template."""
    patch = pin_patch("u", to=to, jobid=7, nodes="n1")
    template = patch["spec"]["template"]
    spec = {name: value for name, value in template["spec"].items() if name != "schedulingGates"}
    return batch_job(pod=spec, template_meta=template["metadata"], **more)


def test_the_node_of_a_release_stands_in_the_template() -> None:
    for to in (BY_LABEL, Destination("n1", "host-1"), Destination("n1", None)):
        assert BATCH_JOB.pinned_node(_released(to)) == "n1"
        as_written = BATCH_JOB.as_written(_released(to))["spec"]["template"]["spec"]
        assert not as_written.get("nodeSelector")
        assert not any(as_written.get("affinity", {}).values())
    assert BATCH_JOB.pinned_node(batch_job(pod={"nodeSelector": {HOSTNAME: "n1"}})) is None


def test_what_was_released_in_its_template_shows_it() -> None:
    """Our gate is not there any more: with FluxJob and row lost it was unmanaged."""
    assert not managed.is_managed(_released())
    assert managed.is_taken_in(_released())
    assert managed.is_taken_in(_released(meta={"labels": {}}))
    assert not managed.is_taken_in(_released(meta=GOING))
    assert managed.is_taken_in(batch_job(pod=GATED))
    assert not managed.is_taken_in(batch_job(pod={"nodeSelector": {HOSTNAME: "n1"}}))
    without_number = _released()
    del without_number["spec"]["template"]["metadata"]["labels"]
    assert not managed.is_taken_in(without_number)


def test_removing_our_label_does_not_strand_a_gated_object() -> None:
    assert managed.is_managed(batch_job(pod=GATED, meta={"labels": {}}))


def test_author_suspension_holds_until_the_author_lifts_it() -> None:
    meta = {"annotations": {"fluxqueue/author-suspended": "true"}}
    assert BATCH_JOB.is_author_suspended(batch_job(meta=meta, suspend=True))
    assert not BATCH_JOB.is_author_suspended(batch_job(meta=meta, suspend=False))
    assert not BATCH_JOB.is_author_suspended(batch_job(suspend=True))


@pytest.mark.parametrize(
    ("workload", "why"),
    [
        (batch_job(pod=GATED, meta={"labels": {labels.MANAGED: "false"}}), '"false"'),
        (batch_job(pod=GATED, managedBy="example.com/mine"), "spec.managedBy"),
        (
            batch_job(pod=GATED, template_meta={"labels": {labels.MANAGED: "false"}}),
            "of the pod template",
        ),
        (_released(meta={"labels": {labels.MANAGED: "false"}}), '"false"'),
        (_released(managedBy="example.com/mine"), "spec.managedBy"),
        (bare_pod(**GATED, meta={"labels": {labels.MANAGED: "false"}}), '"false"'),
        (
            bare_pod(**GATED, meta={"labels": {labels.OF_A_BATCH_JOB: "uid-of-a-job"}}),
            labels.OF_A_BATCH_JOB,
        ),
    ],
)
def test_what_admission_leaves_alone_is_not_adopted(workload: dict[str, Any], why: str) -> None:
    """The author of the gate wrote the user there, too."""
    assert managed.has_our_marks(workload)
    assert why in (managed.why_not_vouched(workload) or "")
    assert not managed.is_taken_in(workload)
