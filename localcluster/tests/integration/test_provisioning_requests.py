"""The simulated autoscaler keeps the conditions that other writers add at the same time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from localcluster.client.calls import Client, Listed
from localcluster.client.resources import POD_TEMPLATES, PROVISIONING_REQUESTS, Resource
from localcluster.inprocess import InProcessTransport
from localcluster.nodes.pool import SimulatedPool
from localcluster.nodes.provisioning_requests import ProvisioningRequests
from localcluster.nodes.shape import NodeShape
from tests.integration.conftest import Api, until

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "provisioningrequests.autoscaling.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    },
    "spec": {
        "group": "autoscaling.x-k8s.io",
        "scope": "Namespaced",
        "names": {
            "plural": "provisioningrequests",
            "singular": "provisioningrequest",
            "kind": "ProvisioningRequest",
            "listKind": "ProvisioningRequestList",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": OPEN},
                "subresources": {"status": {}},
            }
        ],
    },
}
POOL = SimulatedPool(NodeShape("gpu", cpu="8"), 4, provisioning_class="queued")
REVOKED = {
    "type": "CapacityRevoked",
    "status": "True",
    "reason": "Revoked",
    "message": "it is over",
}


class Interrupted(Client):
    """A client that lets another writer come first, once, after a read of the requests."""

    is_overtaken = False

    async def list(self, resource: Resource, namespace: str | None = None) -> Listed:
        """Read, and write a condition of another writer before the caller goes on."""
        found = await super().list(resource, namespace)
        if resource == PROVISIONING_REQUESTS and not self.is_overtaken:
            self.is_overtaken = True
            body = {"status": {"conditions": [REVOKED]}}
            await self.patch(resource, "default", "r", body, subresource="status")
        return found


async def _ask(client: Client, api: Api) -> None:
    await api.ok("POST", DEFINITIONS, DEFINITION)
    lookup = api.server.machinery.registry.lookup
    named = ("autoscaling.x-k8s.io", "v1", "provisioningrequests")
    await until(lambda: lookup(*named) is not None, "requests are served")
    template: dict[str, Any] = {
        "metadata": {"name": "t"},
        "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}},
    }
    request = {
        "metadata": {"name": "r"},
        "spec": {
            "provisioningClassName": "queued",
            "podSets": [{"count": 1, "podTemplateRef": {"name": "t"}}],
        },
    }
    for kind, body in ((POD_TEMPLATES, template), (PROVISIONING_REQUESTS, request)):
        own = {"apiVersion": kind.api_version, "kind": kind.kind}
        await client.create(kind, "default", {**own, **body})


@pytest.mark.parametrize("refuses", ["", "out of quota"])
async def test_a_condition_of_another_writer_stays(api: Api, refuses: str) -> None:
    """It was written between a read and the write that follows. The next turn has both."""
    headers = {"Authorization": f"Bearer {api.server.token}"}
    client = Interrupted(InProcessTransport(api.server), headers=headers)
    brought: list[str] = []

    def bring(pool: SimulatedPool) -> str:
        brought.append(pool.name)
        return f"{pool.name}-{len(brought)}"

    pool = replace(POOL, refuses=refuses)
    await _ask(client, api)
    requests = ProvisioningRequests(client, bring, brought.remove)
    told = []
    for _ in range(2):
        await requests.turn(pool, 4, [])
        found = await client.get(PROVISIONING_REQUESTS, "default", "r")
        told.append([one["type"] for one in found["status"]["conditions"]])
    assert told == [["CapacityRevoked"], ["CapacityRevoked", "Failed" if refuses else "Accepted"]]
    assert brought == ([] if refuses else ["gpu"])
