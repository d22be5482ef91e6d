"""Access control over HTTP: what the recordings do not ask, and a cluster without it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import pytest_asyncio

from localcluster.client.calls import Client
from localcluster.client.resources import CLUSTER_ROLES, NAMESPACES
from localcluster.cluster import LocalCluster, LocalClusterConfig
from localcluster.inprocess import InProcessTransport
from localcluster.kinds.request_context import UserInfo
from localcluster.server.server import ApiServer, ApiServerConfig
from tests.integration.conftest import Api
from tests.support.waiting import WAIT_S

VIEWER = UserInfo("vera", groups=("system:authenticated",))
RBAC = "/apis/rbac.authorization.k8s.io/v1"
GROUP = "rbac.authorization.k8s.io"
PODS = "/api/v1/namespaces/default/pods"


@pytest_asyncio.fixture
async def vera(api: Api) -> AsyncIterator[Api]:
    """A user that may view the namespace ``default``."""
    api.server.authenticator.static["vera"] = VIEWER
    binding = {
        "metadata": {"name": "vera"},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "name": "vera", "apiGroup": GROUP}],
    }
    await api.ok("POST", f"{RBAC}/namespaces/default/rolebindings", binding)
    yield Api(api.server, api.session, token="vera")


async def test_a_viewer_reads_and_writes_nothing(vera: Api) -> None:
    assert (await vera.call("GET", PODS)).code == 200
    assert (await vera.call("GET", "/api/v1/namespaces/kube-system/pods")).code == 403
    assert (await vera.call("POST", PODS, b"no object at all")).code == 403
    assert (await vera.call("GET", "/apis")).code == 200
    told = await vera.call("GET", "/api/v1/nodes")
    assert told.body["message"] == (
        'nodes is forbidden: User "vera" cannot list resource "nodes" in API group "" '
        "at the cluster scope"
    )


async def test_what_is_not_served_is_no_secret_to_who_may_use_it(api: Api, vera: Api) -> None:
    """Rights come first. Only then it shows that there is no such resource."""
    path = "/apis/batch/v1/namespaces/default/cronjobs"
    assert (await vera.call("GET", path)).code == 501
    assert (await vera.call("POST", path, {})).code == 403
    assert (await api.call("POST", path, {})).code == 501


async def test_a_deleted_binding_counts_at_once(api: Api, vera: Api) -> None:
    assert (await vera.call("GET", PODS)).code == 200
    await api.ok("DELETE", f"{RBAC}/namespaces/default/rolebindings/vera")
    assert (await vera.call("GET", PODS)).code == 403


async def test_default_roles_survive_a_restart_as_they_were_left(tmp_path: Path) -> None:
    config = ApiServerConfig(data_dir=tmp_path)
    async with ApiServer(config) as server:
        entry = server.store.entry((GROUP, "clusterroles"), "", "view")
        assert entry is not None
        server.store.replace((GROUP, "clusterroles"), entry, {**entry.obj, "rules": []})
    async with ApiServer(config) as server:
        found = server.store.get(GROUP, "clusterroles", "", "view")
        assert found is not None
        assert found["rules"] == []


async def test_without_access_control_everybody_may_everything() -> None:
    async with ApiServer(ApiServerConfig(has_rbac=False)) as server:
        server.authenticator.static["vera"] = VIEWER
        context = ssl.create_default_context(cadata=server.ca_pem.decode())
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(connector=connector) as session:
            vera = Api(server, session, token="vera")
            assert (await vera.call("GET", "/api/v1/nodes")).code == 200
            asked = {"spec": {"resourceAttributes": {"verb": "delete", "resource": "nodes"}}}
            review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
            assert (await vera.ok("POST", review, asked))["status"] == {"allowed": True}


async def test_a_role_of_roles_follows_them() -> None:
    """Also when one of them comes later, changes or goes."""
    config = LocalClusterConfig(run_scheduler=False, run_nodes=False)
    async with LocalCluster(config) as cluster:
        transport = InProcessTransport(cluster.server)
        client = Client(transport, headers={"Authorization": f"Bearer {cluster.token}"})
        selector = {"clusterRoleSelectors": [{"matchLabels": {"part": "yes"}}]}
        whole = {"metadata": {"name": "whole"}, "aggregationRule": selector}
        await client.create(CLUSTER_ROLES, None, whole)

        async def until(*resources: str) -> None:
            async with asyncio.timeout(WAIT_S):
                while True:
                    rules = (await client.get(CLUSTER_ROLES, None, "whole")).get("rules") or []
                    if [rule["resources"][0] for rule in rules] == list(resources):
                        return
                    await asyncio.sleep(0.01)

        def part(name: str, resource: str) -> dict[str, Any]:
            rule = {"verbs": ["get"], "apiGroups": [""], "resources": [resource]}
            return {"metadata": {"name": name, "labels": {"part": "yes"}}, "rules": [rule]}

        await client.create(CLUSTER_ROLES, None, part("b", "pods"))
        await until("pods")
        await client.create(CLUSTER_ROLES, None, part("a", "nodes"))
        await until("nodes", "pods")
        await client.patch(CLUSTER_ROLES, None, "a", part("a", "events"))
        await until("events", "pods")
        await client.delete(CLUSTER_ROLES, None, "b")
        await until("events")
        assert await client.get(NAMESPACES, None, "default")


@pytest.mark.parametrize("name", ["system:masters", "system:authenticated"])
async def test_a_viewer_becomes_nobody_else(vera: Api, name: str) -> None:
    url = vera.server.url + PODS
    headers = {
        "authorization": "Bearer vera",
        "impersonate-user": "admin",
        "impersonate-group": name,
    }
    async with vera.session.get(url, headers=headers) as answer:
        assert answer.status == 403
        assert "cannot impersonate-on:user-info:list" in (await answer.json())["message"]


async def test_the_audit_log_says_who_was_let(tmp_path: Path) -> None:
    """A line for each request, there when the answer is."""
    log = tmp_path / "logs" / "audit.log"
    async with ApiServer(ApiServerConfig(audit_log=log)) as server:
        server.authenticator.static["vera"] = VIEWER
        context = ssl.create_default_context(cadata=server.ca_pem.decode())
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(connector=connector) as session:
            await Api(server, session, token="vera").call("GET", f"{PODS}/p/status")
            await Api(server, session).call("GET", "/version")
            headers = {"authorization": f"Bearer {server.token}", "impersonate-user": "ann"}
            await session.get(server.url + "/api/v1/nodes", headers=headers)
    first, second, third = map(orjson.loads, log.read_bytes().splitlines())
    reference = {"resource": "pods", "namespace": "default", "name": "p", "subresource": "status"}
    assert first["objectRef"] == reference
    assert (first["user"]["username"], first["verb"]) == ("vera", "get")
    assert first["annotations"] == {"authorization.k8s.io/decision": "forbid"}
    assert second["annotations"] == {"authorization.k8s.io/decision": "allow"}
    assert (second["requestURI"], "objectRef" in second) == ("/version", False)
    assert third["impersonatedUser"] == {"username": "ann"}
    assert third["annotations"] == {"authorization.k8s.io/decision": "forbid"}
