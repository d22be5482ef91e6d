"""What every container of the chart may not do, and what no object shows."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest

from fluxqueue import __version__
from tests.chart.rendering import (
    EVERYTHING,
    EXTERNAL,
    container,
    containers,
    environment,
    find,
    ha_values,
    id_of,
    merged,
    pod_specs,
    render,
)

VALUE_SETS: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": merged(ha_values(), EVERYTHING),
    "external": EXTERNAL,
    "openshift": {"openshift": "yes"},
}
every_set = pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)


@every_set
def test_no_container_can_become_more_than_it_is(values: dict[str, Any]) -> None:
    """The profile `restricted` of the Pod Security Standards, and a root file system to read."""
    seen = 0
    for owner, one in containers(render(values)):
        context = one["securityContext"]
        assert context == {
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }, owner
        seen += 1
    assert seen >= 8


@every_set
def test_no_pod_is_root_or_shares_the_node(values: dict[str, Any]) -> None:
    for owner, spec in pod_specs(render(values)):
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True, owner
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, owner
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), owner
        assert spec["enableServiceLinks"] is False, owner
        assert not [one for one in spec.get("volumes", ()) if "hostPath" in one], owner
        is_open = values.get("openshift") == "yes"
        identity = {"runAsUser", "runAsGroup", "fsGroup"} & set(context)
        assert identity == (set() if is_open else {"runAsUser", "runAsGroup", "fsGroup"}), owner
        assert is_open or context["runAsUser"] >= 70, owner
        # Also where the cluster adds a group: each start would walk over the whole volume.
        assert context["fsGroupChangePolicy"] == "OnRootMismatch", owner


@every_set
def test_every_container_has_requests_and_limits(values: dict[str, Any]) -> None:
    for owner, one in containers(render(values)):
        for kind in ("requests", "limits"):
            assert set(one["resources"][kind]) >= {"cpu", "memory"}, (owner, kind)


@every_set
def test_every_lasting_container_has_its_three_probes(values: dict[str, Any]) -> None:
    for document in render(values):
        if document["kind"] not in {"Deployment", "StatefulSet"}:
            continue
        for one in document["spec"]["template"]["spec"]["containers"]:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert probe in one, (id_of(document), probe)


@every_set
def test_what_writes_has_a_volume_for_it(values: dict[str, Any]) -> None:
    """The root file system cannot be written to: there is always /tmp, bounded."""
    for owner, spec in pod_specs(render(values)):
        volumes = {one["name"]: one for one in spec["volumes"]}
        assert "sizeLimit" in volumes["tmp"]["emptyDir"], owner
        for one in spec["containers"]:
            assert "/tmp" in {mount["mountPath"] for mount in one["volumeMounts"]}, owner


@every_set
def test_every_image_is_pinned(values: dict[str, Any]) -> None:
    for owner, one in containers(render(values)):
        assert re.search(r":\d[\w.-]*$|@sha256:[0-9a-f]{64}$", one["image"]), (owner, one["image"])
        assert not one["image"].endswith(":latest"), owner


def test_an_image_can_be_pinned_by_digest() -> None:
    digest = "sha256:" + "0" * 64
    values = {
        "image": {"digest": digest},
        "webhook": {"image": {"digest": digest}},
        "postgres": {"image": {"digest": digest}},
    }
    assert {one["image"].partition("@")[2] for _, one in containers(render(values))} == {digest}


def test_images_come_from_where_the_air_gap_says() -> None:
    values = {
        "image": {"registry": "mirror.example.org"},
        "postgres": {"image": {"registry": "mirror.example.org"}},
    }
    images = {one["image"] for _, one in containers(render(values))}
    assert images == {
        f"mirror.example.org/converged-computing/fluxqueue:{__version__}",
        f"mirror.example.org/converged-computing/fluxqueue-webhook:{__version__}",
        "mirror.example.org/library/postgres:18.1",
    }


def test_only_what_talks_to_the_api_server_has_a_token() -> None:
    """By the pod's own word. The accounts themselves give none to a pod that does not ask."""
    documents = render(EVERYTHING)
    with_token = {
        owner[1] for owner, spec in pod_specs(documents) if spec["automountServiceAccountToken"]
    }
    assert with_token == {
        "fluxqueue-controller",
        "fluxqueue-worker",
        "fluxqueue-view",
        "fluxqueue-crds",
        "fluxqueue-uninstall",
        "fluxqueue-test",
    }
    accounts = [one for one in documents if one["kind"] == "ServiceAccount"]
    assert {one["automountServiceAccountToken"] for one in accounts} == {False}
    assert {spec["serviceAccountName"] for _, spec in pod_specs(documents)} == {
        one["metadata"]["name"] for one in accounts
    }


@every_set
def test_no_pod_of_ours_is_ever_gated(values: dict[str, Any]) -> None:
    for document in render(values):
        if document["kind"] in {"Deployment", "StatefulSet", "Job"}:
            labels = document["spec"]["template"]["metadata"]["labels"]
        elif document["kind"] == "Pod":
            labels = document["metadata"]["labels"]
        else:
            continue
        assert labels["fluxqueue/managed"] == "false", id_of(document)


@pytest.mark.parametrize(
    ("name", "item", "length"),
    [("fluxqueue-postgres", "password", 40), ("fluxqueue-placement-key", "key", 64)],
)
def test_a_secret_value_stands_in_its_secret_alone(name: str, item: str, length: int) -> None:
    """Random letters and digits, new at each rendering that finds none."""
    documents = render()
    secret = next(one for one in documents if one["metadata"]["name"] == name)
    value = base64.b64decode(secret["data"][item]).decode()
    assert re.fullmatch(rf"[A-Za-z0-9]{{{length}}}", value)
    others = json.dumps([one for one in documents if one is not secret])
    assert value not in others
    assert secret["data"][item] not in others
    again = find("Secret", name, {"commonLabels": {"a": "b"}})
    assert again["data"][item] != secret["data"][item]


def test_the_password_outlives_the_release() -> None:
    """The volume does, too, and is worth nothing without it."""
    meta = find("Secret", "fluxqueue-postgres")["metadata"]
    assert meta["annotations"]["helm.sh/resource-policy"] == "keep"


def test_only_worker_and_webhook_have_the_placement_key() -> None:
    """Each reads it at the path of its setting. A Secret of the administrator replaces it."""
    values = {"placementKey": {"existingSecret": "mine"}}
    documents = render(values)
    assert not [one for one in documents if one["metadata"]["name"].endswith("placement-key")]
    mounted = {
        one["metadata"]["name"]
        for one in documents
        for volume in (one.get("spec", {}).get("template", {}).get("spec") or {}).get("volumes", ())
        if volume.get("secret", {}).get("secretName") == "mine"
    }
    assert mounted == {"fluxqueue-worker", "fluxqueue-webhook"}
    worker, webhook = (
        container("Deployment", name, values) for name in sorted(mounted, reverse=True)
    )
    path = environment(worker)["FLUXQUEUE_PLACEMENT_KEY_FILE"]
    assert f"--placement-key-file={path}" in webhook["args"]
    for one in (worker, webhook):
        assert path.startswith(
            next(m["mountPath"] for m in one["volumeMounts"] if m["name"] == "placement-key")
        )


@pytest.mark.parametrize(
    "values",
    [{}, EXTERNAL, merged(EXTERNAL, {"externalDatabase": {"urlKey": "url"}})],
    ids=["bundled", "external", "whole-url"],
)
def test_no_variable_holds_a_password(values: dict[str, Any]) -> None:
    for owner, one in containers(render(values)):
        for name, value in environment(one).items():
            if "PASSWORD" in name and not name.endswith("_FILE"):
                assert "secretKeyRef" in value, (owner, name)
            if name == "DATABASE_URL" and isinstance(value, str):
                assert re.fullmatch(r"postgresql://[a-z]+@[\w.-]+:\d+/\w+", value), owner


def test_the_webhook_never_sees_the_key_of_the_ca() -> None:
    (_, spec), *_ = [
        one for one in pod_specs(render()) if one[0] == ("Deployment", "fluxqueue-webhook")
    ]
    (volume,) = [one for one in spec["volumes"] if one["name"] == "certificate"]
    assert {one["key"] for one in volume["secret"]["items"]} == {"tls.crt", "tls.key"}
