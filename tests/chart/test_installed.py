"""The chart installed, upgraded, tested, rolled back and removed by Helm itself.

On the embedded cluster, and on a real control plane with simulated kubelets: every document is
accepted, hooks run to their end, and what must outlive an upgrade or a removal does. What the pods
would do is simulated. The programs themselves run in ``test_parts.py``.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.discovery import find_served
from fluxqueue.kube.resources import (
    CRDS,
    DEPLOYMENTS,
    JOBS,
    MUTATING_POLICIES,
    MUTATING_POLICY_BINDINGS,
    MUTATING_WEBHOOKS,
    SECRETS,
    STATEFULSETS,
    ApiResource,
)
from tests.chart.rendering import ha_values
from tests.support.chart_places import RELEASE, Place, place
from tests.support.waiting import eventually

__all__ = ["place"]

FULLNAME = "blue-fluxqueue"

VALIDATING_BINDINGS = ApiResource(
    MUTATING_POLICIES.group,
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    False,
)


pytestmark = pytest.mark.timeout(900)


def _password(secret: dict[str, Any] | None) -> str:
    assert secret is not None
    return base64.b64decode(secret["data"]["password"]).decode()


async def test_everything_is_accepted_and_its_hooks_run(place: Place) -> None:
    """The whole life of a release, with the values of high availability."""
    released = await place.install(ha_values())
    assert released["status"] == "deployed"
    assert "kubectl" in released["notes"]
    for part, replicas in (("controller", 2), ("worker", 3), ("webhook", 3)):
        deployment = await place.find(DEPLOYMENTS, f"{FULLNAME}-{part}")
        assert deployment is not None
        assert deployment["spec"]["replicas"] == replicas
    for name in (
        "fluxjobs",
        "fluxnodepools",
        "fluxqueues",
        "fluxreservations",
        "placementreviews",
        "resourcesharingpolicies",
    ):
        assert await place.find(CRDS, f"{name}.jobs.converged-computing.org")
    is_served = MUTATING_POLICIES in await find_served(
        place.client, {(MUTATING_POLICIES.group, MUTATING_POLICIES.kind)}
    )
    if is_served:
        assert await place.find(MUTATING_POLICIES, f"{FULLNAME}-released-pods")
        assert await place.find(MUTATING_POLICY_BINDINGS, f"{FULLNAME}-released-pods")

    tested = await place.run(place.helm.test, RELEASE)
    assert tested["release"]["status"] == "deployed"

    before = await _identities(place)
    await place.client.delete(VALIDATING_BINDINGS, None, f"{FULLNAME}-queued-pods")
    upgraded = await place.upgrade({"settings": {"FLUXQUEUE_POD_MANAGED_FIELDS": "keep"}})
    assert (upgraded["revision"], upgraded["status"]) == (2, "deployed")
    assert await _identities(place) == before
    assert await place.find(VALIDATING_BINDINGS, f"{FULLNAME}-queued-pods"), "it is restored"
    if is_served:
        assert await place.find(MUTATING_POLICIES, f"{FULLNAME}-released-pods") is None
    worker = await place.find(DEPLOYMENTS, f"{FULLNAME}-worker")
    assert worker is not None
    assert worker["spec"]["replicas"] == 2
    assert await place.find(JOBS, f"{FULLNAME}-crds") is None, "a hook that succeeded is taken away"

    await place.run(place.helm.rollback, RELEASE, version=1)
    worker = await place.find(DEPLOYMENTS, f"{FULLNAME}-worker")
    assert worker is not None
    assert worker["spec"]["replicas"] == 3
    assert await _identities(place) == before


async def _identities(place: Place) -> tuple[Any, ...]:
    """What neither upgrade nor rollback may touch: the password, and the database's pod."""
    secret = await place.find(SECRETS, f"{FULLNAME}-postgres")
    database = await place.find(STATEFULSETS, f"{FULLNAME}-postgres")
    assert database is not None
    return (
        _password(secret),
        database["metadata"]["uid"],
        database["spec"]["template"]["spec"]["containers"],
    )


@pytest.mark.long("starts processes of its own, for seconds of processor time")
async def test_what_the_controller_writes_outlives_an_upgrade(place: Place) -> None:
    """The caBundle is not the chart's: no upgrade may take it away."""
    await place.install()
    bundle = base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode()
    configuration = await place.find(MUTATING_WEBHOOKS, FULLNAME)
    assert configuration is not None
    if place.kind == "real":
        bundle = base64.b64encode(await _any_certificate(place)).decode()
    patch = [
        {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": bundle}
        for number in range(len(configuration["webhooks"]))
    ]
    await place.client.patch(MUTATING_WEBHOOKS, None, FULLNAME, patch, kind=PatchKind.JSON)
    await place.upgrade({"webhook": {"timeoutSeconds": 7, "namespaces": "optIn"}})
    after = await place.find(MUTATING_WEBHOOKS, FULLNAME)
    assert after is not None
    for one in after["webhooks"]:
        assert one["clientConfig"]["caBundle"] == bundle
        assert one["timeoutSeconds"] == 7


async def _any_certificate(place: Place) -> bytes:
    """The API server takes certificates only: its own CA's will do."""
    config = place.client.config
    if config.ca_pem:
        return config.ca_pem.encode()
    assert config.ca_file is not None
    return await asyncio.to_thread(config.ca_file.read_bytes)


@pytest.mark.long("starts processes of its own, for seconds of processor time")
async def test_removal_leaves_what_it_says_and_nothing_else(place: Place) -> None:
    """Password, volume and definitions stay. A second installation finds them."""
    await place.install()
    password = _password(await place.find(SECRETS, f"{FULLNAME}-postgres"))
    removed = await place.run(place.helm.uninstall, RELEASE)
    assert f"[Secret] {FULLNAME}-postgres" in removed["info"]
    assert await _left(place) == {("Secret", f"{FULLNAME}-postgres")}
    assert await place.find(CRDS, "fluxjobs.jobs.converged-computing.org")
    await place.install()
    assert _password(await place.find(SECRETS, f"{FULLNAME}-postgres")) == password


async def _left(place: Place) -> set[tuple[str, str]]:
    """Objects of the release, of all kinds that the chart has."""
    groups = {
        "": ("serviceaccounts", "services", "secrets", "configmaps"),
        "apps": ("deployments", "statefulsets"),
        "batch": ("jobs",),
        "policy": ("poddisruptionbudgets",),
        "rbac.authorization.k8s.io": (
            "clusterroles",
            "clusterrolebindings",
            "roles",
            "rolebindings",
        ),
        "admissionregistration.k8s.io": (
            "mutatingwebhookconfigurations",
            *(
                ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
                if place.kind == "real"
                else ()
            ),
        ),
    }

    async def look() -> set[tuple[str, str]]:
        found = set()
        for group, plurals in groups.items():
            for plural in plurals:
                listed = await place.client.list(
                    ApiResource(group, "v1", plural, plural, True),
                    label_selector=f"app.kubernetes.io/instance={RELEASE}",
                )
                found |= {
                    (one.get("kind") or plural, one["metadata"]["name"]) for one in listed.items
                }
        return {("Secret" if kind == "secrets" else kind, name) for kind, name in found}

    async def is_settled() -> set[tuple[str, str]] | None:
        found = await look()
        return found if len(found) <= 1 else None

    return await eventually(is_settled, "nothing but the Secret is left")
