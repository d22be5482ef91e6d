"""The maker of a pod in the end: read from a cluster, once, and only of those that ask."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.clock import SystemClock
from fluxqueue.controller.observing.owners import Owner, Owners
from fluxqueue.errors import ApiError, ApiUnavailable, NotFound
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.resources import CRDS, DEPLOYMENTS, REPLICASETS, ApiResource
from fluxqueue.workload.owner_kind_settings import parse_owner_kinds
from localcluster import LocalCluster
from tests.support.clusters import config_of
from tests.support.waiting import eventually
from tests.support.workers import QUIET

Obj = dict[str, Any]

GANGS = ApiResource("example.org", "v1", "gangs", "Gang", True)
KINDS = parse_owner_kinds(
    '[{"kind": "Gang", "group": "example.org", "resource": "gangs",'
    ' "pods": [{"count": ["spec.members"]}]}]'
)


class Watched(KubeClient):
    """A client that remembers what it asked for, and may be refused."""

    asked: list[str]
    refusal: Exception | None = None

    async def request(self, method: str, path: str, **more: Any) -> Obj:
        self.asked.append(path)
        if self.refusal is not None:
            raise self.refusal
        return await super().request(method, path, **more)


@dataclass
class World:
    """Owners on a cluster. ``objects`` are those that are watched anyway."""

    client: Watched
    owners: Owners
    objects: dict[str, Obj] = field(default_factory=dict)
    found: list[str] = field(default_factory=list)

    async def top(self, pod: Obj) -> Owner | None:
        while self.owners.top(pod) is None:
            await self.owners.settle()
        return self.owners.top(pod)


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    async with LocalCluster(QUIET) as cluster, Watched(config_of(cluster)) as client:
        client.asked = []
        objects: dict[str, Obj] = {}
        found: list[str] = []
        owners = Owners(client, SystemClock(), KINDS, find=objects.get, on_found=found.append)
        yield World(client, owners, objects, found)
        await owners.stop()


def of(resource: ApiResource, made: Mapping[str, Any]) -> Obj:
    meta = made["metadata"]
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }


def pod(owner: Obj | None, name: str = "a") -> Obj:
    owned = [] if owner is None else [owner]
    meta = {"name": name, "uid": f"uid-{name}", "namespace": "default", "ownerReferences": owned}
    return {"metadata": meta, "spec": {}}


def a_set(name: str, owner: Obj | None = None) -> Obj:
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "m", "image": "m"}]},
    }
    spec = {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    meta = {"name": name, "ownerReferences": [owner] if owner else []}
    return {"metadata": meta, "spec": spec}


async def test_the_chain_is_followed_to_its_top_and_asked_for_once() -> None:
    """Deployment over ReplicaSet: one discovery and one look at each, however many pods."""
    async with a_world() as world:
        web = await world.client.create(DEPLOYMENTS, "default", a_set("web"))
        web_of = of(DEPLOYMENTS, web)
        one = await world.client.create(REPLICASETS, "default", a_set("web-1", web_of))
        world.client.asked.clear()
        owner = of(REPLICASETS, one)
        expected = Owner("apps/v1", "Deployment", "web", web["metadata"]["uid"])
        assert await world.top(pod(owner)) == expected
        assert world.found == ["uid-a"] * 2, "told at each step"
        for name in "bcdef":
            assert world.owners.top(pod(owner, name)) == expected
        assert len(world.client.asked) == 3, world.client.asked


async def test_what_is_watched_anyway_is_not_asked_for() -> None:
    async with a_world() as world:
        job = {"metadata": {"name": "part", "uid": "uid-job"}}
        world.objects["uid-job"] = job
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "part", "uid": "uid-job"}
        found = world.owners.top(pod(owner | {"controller": True}))
        assert found == Owner("batch/v1", "Job", "part", "uid-job")
        assert world.owners.top(pod(None)) is None
        assert world.client.asked == []


async def test_an_owner_that_is_gone_or_of_no_kind_that_is_served_is_the_top() -> None:
    async with a_world() as world:
        for name, version, kind in (
            ("gone", "apps/v1", "ReplicaSet"),
            ("odd", "nowhere.org/v1", "Odd"),
            ("odder", "apps/v1", "Odder"),
        ):
            owner = {"apiVersion": version, "kind": kind, "name": name, "uid": f"uid-{name}"}
            found = await world.top(pod(owner | {"controller": True}, name))
            assert found == Owner(version, kind, name, f"uid-{name}")


async def test_one_of_the_same_name_is_not_taken_for_it() -> None:
    async with a_world() as world:
        other = await world.client.create(DEPLOYMENTS, "default", a_set("web"))
        await world.client.create(REPLICASETS, "default", a_set("one", of(DEPLOYMENTS, other)))
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "one", "uid": "uid-before"}
        found = await world.top(pod(owner | {"controller": True}))
        assert found == Owner("apps/v1", "ReplicaSet", "one", "uid-before")


async def test_the_size_of_a_kind_of_the_table_is_read_and_read_again() -> None:
    async with a_world() as world:
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": "v1", "served": True, "storage": True}
        names = {"plural": "gangs", "singular": "gang", "kind": "Gang"}
        spec = {"group": GANGS.group, "scope": "Namespaced", "names": names}
        spec["versions"] = [version | {"schema": {"openAPIV3Schema": schema}}]
        await world.client.create(CRDS, None, {"metadata": {"name": GANGS.key}, "spec": spec})
        made: Obj = {}

        async def is_served() -> bool:
            try:
                kind = {"apiVersion": GANGS.api_version, "kind": GANGS.kind}
                body = kind | {"metadata": {"name": "g"}, "spec": {"members": 3}}
                made.update(await world.client.create(GANGS, "default", body))
            except NotFound:
                return False
            return True

        await eventually(is_served, "the definition served")
        found = await world.top(pod(of(GANGS, made)))
        assert found is not None
        assert found.size == 3
        more = {"spec": {"members": 5}}
        await world.client.patch(GANGS, "default", "g", more, kind=PatchKind.MERGE)
        world.owners.ask_again(found, "default", "uid-a")
        await world.owners.settle()
        again = world.owners.top(pod(of(GANGS, made)))
        assert again is not None
        assert again.size == 5
        assert world.found == ["uid-a", "uid-a"]


async def test_who_may_not_read_an_owner_takes_it_for_the_top() -> None:
    """It is queued all the same, under the name that its pods tell."""
    async with a_world() as world:
        web = await world.client.create(DEPLOYMENTS, "default", a_set("web"))
        world.client.refusal = ApiError(403, "Forbidden", "no", {})
        found = await world.top(pod(of(DEPLOYMENTS, web)))
        assert found is not None
        assert found.name == "web"


async def test_an_api_server_that_is_away_is_asked_again() -> None:
    async with a_world() as world:
        web = await world.client.create(DEPLOYMENTS, "default", a_set("web"))
        world.client.refusal = ApiUnavailable("away")
        assert world.owners.top(pod(of(DEPLOYMENTS, web))) is None

        await eventually(lambda: len(world.client.asked) > 2, "asked again")
        assert world.found == []
        world.client.refusal = None
        await world.owners.settle()
        assert world.found == ["uid-a"]


async def test_a_circle_of_owners_ends() -> None:
    async with a_world() as world:
        for name, other in (("a", "b"), ("b", "a")):
            owner = {"apiVersion": "x/v1", "kind": "X", "name": other, "uid": f"uid-{other}"}
            meta = {"name": name, "uid": f"uid-{name}"}
            world.objects[f"uid-{name}"] = {
                "metadata": meta | {"ownerReferences": [owner | {"controller": True}]}
            }
        assert world.owners.top(world.objects["uid-a"] | _in_default("a", world)) is not None


def _in_default(name: str, world: World) -> Obj:
    return {"metadata": world.objects[f"uid-{name}"]["metadata"] | {"namespace": "default"}}
