"""Three users under the chart's roles: a viewer, a user of two namespaces, and one without rights.

The answers to users who ask why something waits, and those of the view server, at its own address
and through the API server's proxy: each what that user may list, under their own credentials.
"""

from __future__ import annotations

import base64
import json
import socket
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.errors import ApiError
from fluxqueue.explain.review_status import HIDDEN
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_kubeconfig
from fluxqueue.kube.installation import VIEW_NAME, VIEW_NAMESPACE, put
from fluxqueue.kube.resources import (
    CONFIGMAPS,
    PLACEMENT_REVIEWS,
    PODS,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    SERVICES,
    ApiResource,
)
from tests.support import chart_rights
from tests.support.e2e.explaining import RBAC, ask
from tests.support.e2e.objects import FOR_EVER, job
from tests.support.e2e.rights import rights_world
from tests.support.e2e.space import Space, make_space, remove_space
from tests.support.e2e.world import World
from tests.support.typing_verbs import Told, Typist

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long("a world of its own, each part under its account and its own rights"),
    pytest.mark.xdist_group("three users"),
]

REAL = [pytest.param("real", marks=pytest.mark.real_cluster)]


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def world(cluster_kind: str) -> AsyncIterator[World]:
    """A world under the chart's rights. At its end nothing of ours was refused."""
    with tempfile.TemporaryDirectory(prefix="fluxqueue-asks-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        async with rights_world(cluster_kind, folder) as rights:
            yield rights.world
            assert not chart_rights.missing(rights.uses())


async def _let(space: Space, user: str, role: str) -> None:
    binding = {
        "metadata": {"name": f"{user}-{role}"},
        "subjects": [{"kind": "User", "name": user, "apiGroup": RBAC}],
        "roleRef": {
            "apiGroup": RBAC,
            "kind": "ClusterRole",
            "name": f"{chart_rights.NAME}-{role}",
        },
    }
    await space.client.create(ROLE_BINDINGS, space.name, binding)


async def _names(space: Space, client: KubeClient, **spec: object) -> set[str]:
    status = (await ask(space, client, **spec))["status"]
    assert status["verdict"] == "Later", status
    return {one["name"] for one in status["blockers"]}


async def test_an_answer_names_what_its_asker_may_read(world: World) -> None:
    """Others' jobs are in the way of all alike, and named only to users that may read them."""
    mine, theirs = await make_space(world), await make_space(world)
    admin = world.client
    vera, ursula, nemo = (admin.acting_as(user) for user in ("vera", "ursula", "nemo"))
    await _let(mine, "vera", "viewer")
    await _let(mine, "ursula", "user")
    await _let(theirs, "ursula", "viewer")
    hour = {"duration": "1h"}
    await theirs.create(job("secret", cpu="9", pool="single", run=FOR_EVER, wishes=hour))
    await theirs.until_state("secret", "Running")
    await mine.create(job("known", cpu="5", pool="single", run=FOR_EVER, wishes=hour))
    await mine.until_state("known", "Running")
    wide = job("wide", cpu="16", pool="single", wishes=hour)
    assert await _names(mine, vera, manifest=wide) == {"known", HIDDEN}
    assert await _names(mine, ursula, manifest=wide) == {"known", "secret"}
    await mine.create(wide)
    await mine.until_state("wide", "Reserved")
    assert await _names(mine, vera, fluxJob="wide-job") == {"known", HIDDEN}
    with pytest.raises(ApiError, match='"nemo" cannot create'):
        await ask(mine, nemo, manifest=wide)
    with pytest.raises(ApiError, match='"vera" cannot create'):
        await ask(theirs, vera, fluxJob="secret-job")
    with pytest.raises(ApiError, match='"vera" cannot list'):
        await vera.list(PLACEMENT_REVIEWS, mine.name)
    # A user who may ask, and not read, learns nothing of a FluxJob by its name.
    rule = {"apiGroups": [PLACEMENT_REVIEWS.group], "resources": ["placementreviews"]}
    await admin.create(
        chart_rights.CLUSTER_ROLES,
        None,
        {
            "metadata": {"name": "asks-only"},
            "rules": [{**rule, "verbs": ["create", "get", "delete"]}],
        },
    )
    binding = {
        "metadata": {"name": "nemo-asks"},
        "subjects": [{"kind": "User", "name": "nemo", "apiGroup": RBAC}],
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "asks-only"},
    }
    await admin.create(ROLE_BINDINGS, mine.name, binding)
    told = (await ask(mine, nemo, fluxJob="wide-job"))["status"]
    assert told["reason"] == "NotFound"
    assert "verdict" not in told
    assert await _names(mine, nemo, manifest=wide) == {HIDDEN}
    await remove_space(mine)
    await remove_space(theirs)


# --- the view server -----------------------------------------------------------------------------

ENDPOINTS = ApiResource("", "v1", "endpoints", "Endpoints", True)


class Person:
    """A service account with a kubeconfig of its own, as people have them: with a token."""

    def __init__(self, world: World, folder: Path, name: str, token: str) -> None:
        config = load_kubeconfig(str(world.kubeconfig))
        authority = config.ca_pem or (config.ca_file.read_text() if config.ca_file else "")
        inline = base64.b64encode(authority.encode()).decode()
        cluster = {"server": config.server, "certificate-authority-data": inline}
        self._file = folder / f"{name}.kubeconfig"
        self._file.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "users": [{"name": name, "user": {"token": token}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": name}}],
                }
            )
        )
        self._typist = Typist(world.client, self._file)

    async def type(self, *words: str) -> Told:
        """Run one command line under the user's kubeconfig, which is all that it needs."""
        return await self._typist.type(*words)

    async def sums(self) -> set[str]:
        """Namespaces in which the user sees who used how much."""
        told = await self.type("acct", "-A", "--by", "namespace", "-o", "json")
        assert told.code == 0, told.err
        return {one["namespace"] for one in json.loads(told.out)}


async def _person(space: Space, folder: Path, name: str, **roles: Space) -> Person:
    await space.client.create(SERVICE_ACCOUNTS, space.name, {"metadata": {"name": name}})
    made = await space.client.create(
        SERVICE_ACCOUNTS, space.name, {"spec": {}}, name=name, subresource="token"
    )
    for role, where in roles.items():
        subject = {"kind": "ServiceAccount", "name": name, "namespace": space.name}
        binding = {
            "metadata": {"name": f"{name}-{role}"},
            "subjects": [subject],
            "roleRef": {
                "apiGroup": RBAC,
                "kind": "ClusterRole",
                "name": f"{chart_rights.NAME}-{role}",
            },
        }
        await space.client.create(ROLE_BINDINGS, where.name, binding)
    return Person(space.world, folder, name, made["status"]["token"])


@dataclass(frozen=True, slots=True)
class Three:
    """A viewer of one namespace, a user of it and a second one, and one without rights."""

    mine: Space
    theirs: Space
    vera: Person
    ursula: Person
    nemo: Person

    async def are_told_their_own(self) -> None:
        """Sums and histories, each of what that user may list."""
        mine, theirs = self.mine, self.theirs
        assert await self.vera.sums() == {mine.name}
        assert await self.ursula.sums() == {mine.name, theirs.name}
        assert await self.nemo.sums() == set()
        for person, space, is_told in (
            (self.vera, mine, True), (self.vera, theirs, False),
            (self.ursula, mine, True), (self.ursula, theirs, True),
            (self.nemo, mine, False),
        ):  # fmt: skip
            told = await person.type("history", "done", "-n", space.name)
            assert told.code == (0 if is_told else 1), told.err
            said = told.out if is_told else told.err
            assert ("Completed" if is_told else "may not list fluxjobs") in said


@pytest_asyncio.fixture(loop_scope="session")
async def three(world: World, tmp_path: Path) -> AsyncIterator[Three]:
    """They, a job done in each namespace, and the view server."""
    mine, theirs = await make_space(world), await make_space(world)
    for space in (mine, theirs):
        await space.create(job("done"))
        await space.until_job("done")
        await space.until_state("done", "Completed")
    if "view" not in world.stack.parts:
        await world.stack.start_view("0.0.0.0")
    vera = await _person(mine, tmp_path, "vera", viewer=mine)
    ursula = await _person(mine, tmp_path, "ursula", user=mine, viewer=theirs)
    nemo = await _person(mine, tmp_path, "nemo")
    yield Three(mine, theirs, vera, ursula, nemo)
    await remove_space(mine)
    await remove_space(theirs)


async def test_the_view_server_tells_each_what_he_may_list(three: Three) -> None:
    """By kubeconfig alone, at its own address."""
    await three.are_told_their_own()


@pytest.mark.parametrize("cluster_kind", REAL, indirect=True)
async def test_the_view_server_tells_it_through_the_api_server(three: Three) -> None:
    """Its proxy goes to pods, which the embedded cluster has none of."""
    address = _own_address()
    if address is None:
        pytest.skip("this machine has no address but loopback, which no Endpoint may have")
    await _put_service(three.mine.world, address)
    await three.are_told_their_own()


def _own_address() -> str | None:
    """An address of this machine that is not loopback. Nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        found: str = probe.getsockname()[0]
    return None if found.startswith("127.") else found


async def _put_service(world: World, address: str) -> None:
    """What the chart has, with this machine in the place of the pod, and no address is given."""
    name, where = f"{chart_rights.NAME}-view", chart_rights.NAMESPACE
    port = int(world.stack.view_url.rpartition(":")[2])
    ports: list[dict[str, Any]] = [{"name": "https", "port": 443, "targetPort": port}]
    await world.client.create(
        SERVICES, where, {"metadata": {"name": name}, "spec": {"ports": ports}}
    )
    # Its proxy goes to pods only: to addresses that a pod has, by the pod's own status.
    pod = {"schedulerName": "nobody", "containers": [{"name": "view", "image": "none"}]}
    await world.client.create(PODS, where, {"metadata": {"name": name}, "spec": pod})
    status = {"podIP": address, "podIPs": [{"ip": address}]}
    await world.client.patch(PODS, where, name, {"status": status}, subresource="status")
    target = {"kind": "Pod", "name": name, "namespace": where}
    subset = {
        "addresses": [{"ip": address, "targetRef": target}],
        "ports": [{"name": "https", "port": port}],
    }
    await world.client.create(ENDPOINTS, where, {"metadata": {"name": name}, "subsets": [subset]})
    data = {"url": None, "ca.crt": None, "service": f"https:{name}:https", "namespace": where}
    body = {"metadata": {"name": VIEW_NAME}, "data": data}
    await put(world.client, CONFIGMAPS, body, namespace=VIEW_NAMESPACE)
