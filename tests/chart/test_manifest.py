"""The manifest without Helm: what it has, and that unlabelled namespaces do not notice it."""

from __future__ import annotations

import runpy
from typing import Any

import pytest
import yaml

from fluxqueue.errors import ApiError, ApiUnavailable
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import JOBS, NAMESPACES, ApiResource
from tests.chart.rendering import CHART, NAMESPACE, by_id, render
from tests.support.chart_places import NOT_EMBEDDED, Place, place
from tests.support.waiting import eventually

__all__ = ["place"]

MANIFEST: Any = runpy.run_path(str(CHART / "manifest.py"))
CLUSTER_WIDE = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "Namespace",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
Document = dict[str, Any]


def documents(values: dict[str, Any] | None = None) -> list[Document]:
    """The objects of the manifest, in its order."""
    return list(yaml.safe_load_all(MANIFEST["manifest"](values)))


def _resource(document: Document) -> ApiResource:
    group, _, version = document["apiVersion"].rpartition("/")
    kind = document["kind"]
    plural = f"{kind.lower()[:-1]}ies" if kind.endswith("Policy") else f"{kind.lower()}s"
    return ApiResource(group, version, plural, kind, kind not in CLUSTER_WIDE)


def test_it_is_the_chart_without_what_only_helm_runs() -> None:
    """Namespace and definitions come first. There is no hook, and no password."""
    made = documents()
    assert [one["kind"] for one in made[:2]] == ["Namespace", "CustomResourceDefinition"]
    assert not [one for one in made if one["kind"] in {"Secret", "Job", "Pod"}]
    others = by_id(
        [one for one in made if one["kind"] not in {"Namespace", "CustomResourceDefinition"}]
    )
    hooks = "helm.sh/hook"
    charts = {
        (one["kind"], one["metadata"]["name"])
        for one in render(
            {
                "postgres": {"existingSecret": MANIFEST["SECRET"]},
                "placementKey": {"existingSecret": MANIFEST["KEY"]},
            }
        )
        if hooks not in (one["metadata"].get("annotations") or {})
    }
    assert set(others) == charts
    for one in made:
        name = one["metadata"]["name"]
        # The Role reads the status of cluster-autoscaler where that writes it.
        own = "kube-system" if name.endswith("-autoscaler-status") else NAMESPACE
        expected = None if one["kind"] in CLUSTER_WIDE else own
        assert one["metadata"].get("namespace") == expected, name


def test_values_are_merged_and_refused_as_by_helm(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    (tmp_path / "mine.yaml").write_text("worker: {replicas: 5}\npostgres: {storage: {size: 7Gi}}\n")
    assert MANIFEST["main"](["-f", str(tmp_path / "mine.yaml")]) == 0
    made = by_id(list(yaml.safe_load_all(capsys.readouterr().out)))
    assert made["Deployment", "fluxqueue-worker"]["spec"]["replicas"] == 5
    (claim,) = made["StatefulSet", "fluxqueue-postgres"]["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "7Gi"
    (tmp_path / "bad.yaml").write_text("worker: {replica: 5}\n")
    assert MANIFEST["main"](["-f", str(tmp_path / "bad.yaml")]) == 1
    assert "replica" in capsys.readouterr().err


@pytest.mark.long("starts processes of its own, for seconds of processor time")
async def test_only_labelled_namespaces_notice_it(place: Place) -> None:
    """Applied twice. No webhook runs: a labelled namespace refuses, and no other one notices."""
    values = NOT_EMBEDDED if place.kind == "embedded" else {}
    for _ in range(2):
        for one in documents(values):
            meta = one["metadata"]
            await place.client.patch(
                _resource(one),
                meta.get("namespace"),
                meta["name"],
                one,
                kind=PatchKind.APPLY,
                field_manager="kubectl",
            )
    for name, labels in (("plain", {}), ("asked", {"fluxqueue/managed": "true"})):
        made = {"metadata": {"name": f"manifest-{name}", "labels": labels}}
        await place.client.create(NAMESPACES, None, made)
    try:
        await _create_job(place, "manifest-plain")

        async def is_refused() -> bool:
            try:
                await _create_job(place, "manifest-asked")
            except (ApiError, ApiUnavailable) as error:
                return "webhook" in str(error)
            return False

        await eventually(is_refused, "the labelled namespace asks the webhook")
    finally:
        for one in reversed(documents(values)):
            if one["kind"] not in {"Namespace", "CustomResourceDefinition"}:
                meta = one["metadata"]
                await place.client.delete(_resource(one), meta.get("namespace"), meta["name"])
        for name in ("plain", "asked"):
            await place.client.delete(NAMESPACES, None, f"manifest-{name}")


async def _create_job(place: Place, namespace: str) -> None:
    container = {"name": "main", "image": "busybox", "command": ["true"]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    meta = {"generateName": "job-"}
    made = await place.client.create(
        JOBS, namespace, {"metadata": meta, "spec": {"template": template}}
    )
    assert not made["spec"].get("suspend")
