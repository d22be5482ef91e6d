"""Client, informer and elector against the embedded API server, over HTTP and in-process alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.errors import ApiError, Conflict, Invalid, NotFound
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.config import load_kubeconfig
from fluxqueue.kube.informer import Informer
from fluxqueue.kube.lease import LeaseElector, LeaseIdentity, LeaseTimes
from fluxqueue.kube.resources import CONFIGMAPS, LEASES, PODS
from fluxqueue.workload.objects import Object
from fluxqueue_devtools.localpg.held_port import HeldPort
from localcluster import LocalCluster, LocalClusterConfig
from tests.support.clusters import InProcessTransport, config_of
from tests.support.waiting import WAIT_S, eventually

QUIET = LocalClusterConfig(run_controllers=False, run_scheduler=False, run_nodes=False)


@pytest_asyncio.fixture(params=["http", "in-process"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KubeClient]:
    """A client by kubeconfig over TLS, or without a socket."""
    async with LocalCluster(QUIET) as cluster:
        path = tmp_path / "kubeconfig"
        cluster.write_kubeconfig(path)
        config = load_kubeconfig(str(path))
        transport = InProcessTransport(cluster) if request.param == "in-process" else None
        async with KubeClient(config, transport=transport) as made:
            yield made


def _map(name: str, **metadata: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "data": {"v": "1"},
    }


async def test_life_of_an_object(client: KubeClient) -> None:
    """Create, read, replace, patch in three ways, delete under a condition."""
    made = await client.create(CONFIGMAPS, "default", _map("a"))
    assert await client.get(CONFIGMAPS, "default", "a") == made
    with pytest.raises(Conflict) as caught:
        await client.create(CONFIGMAPS, "default", _map("a"))
    assert caught.value.reason == "AlreadyExists"
    written = await client.replace(CONFIGMAPS, "default", "a", {**made, "data": {"v": "2"}})
    with pytest.raises(Conflict):
        await client.replace(CONFIGMAPS, "default", "a", {**made, "data": {"v": "3"}})
    await client.patch(CONFIGMAPS, "default", "a", {"data": {"w": "x"}})
    tests = [{"op": "test", "path": "/data/v", "value": "wrong"}]
    with pytest.raises(Invalid):
        await client.patch(CONFIGMAPS, "default", "a", tests, kind=PatchKind.JSON)
    applied = await client.patch(
        CONFIGMAPS,
        "default",
        "a",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"z": "1"}},
        kind=PatchKind.APPLY,
        field_manager="me",
    )
    assert applied["data"] == {"v": "2", "w": "x", "z": "1"}
    with pytest.raises(Conflict):
        await client.delete(CONFIGMAPS, "default", "a", uid="1" * 8)
    await client.delete(CONFIGMAPS, "default", "a", uid=written["metadata"]["uid"])
    with pytest.raises(NotFound):
        await client.get(CONFIGMAPS, "default", "a")


async def test_an_answer_may_be_the_metadata_alone(client: KubeClient) -> None:
    """What is written is written whole. Only of the answer the rest is left out."""
    made = await client.create(CONFIGMAPS, "default", _map("a"), metadata_only=True)
    patched = await client.patch(
        CONFIGMAPS, "default", "a", {"data": {"w": "x"}}, metadata_only=True
    )
    found = await client.get_metadata(CONFIGMAPS, "default", "a")
    for answer in (made, patched, found):
        assert set(answer) == {"apiVersion", "kind", "metadata"}
        assert answer["kind"] == "PartialObjectMetadata"
    assert made["metadata"]["uid"] == patched["metadata"]["uid"]
    assert patched["metadata"] == found["metadata"]
    assert (await client.get(CONFIGMAPS, "default", "a"))["data"] == {"v": "1", "w": "x"}


async def test_dry_run_and_refusals(client: KubeClient) -> None:
    """Nothing is stored by a dry run. A wrong object says which field."""
    await client.create(CONFIGMAPS, "default", _map("dry"), dry_run=True)
    with pytest.raises(NotFound):
        await client.get(CONFIGMAPS, "default", "dry")
    bad = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": []}}
    with pytest.raises(Invalid) as caught:
        await client.create(PODS, "default", bad)
    assert caught.value.body["details"]["causes"][0]["field"] == "spec.containers"


async def test_pages_and_selectors(client: KubeClient) -> None:
    """Pages are put together. Items carry their kind. Selectors select."""
    for number in range(7):
        body = _map(f"m{number}", labels={"parity": "even" if number % 2 == 0 else "odd"})
        await client.create(CONFIGMAPS, "default", body)
    listed = await client.list(CONFIGMAPS, "default", limit=2)
    names = [item["metadata"]["name"] for item in listed.items]
    assert names == [f"m{number}" for number in range(7)]
    assert {item["kind"] for item in listed.items} == {"ConfigMap"}
    even = await client.list(CONFIGMAPS, label_selector="parity=even")
    assert len(even.items) == 4
    one = await client.list(CONFIGMAPS, "default", field_selector="metadata.name=m3")
    assert len(one.items) == 1


async def test_watch(client: KubeClient) -> None:
    """Events after a version, in order. Other objects than the selected stay out."""
    version = (await client.list(CONFIGMAPS)).resource_version
    await client.create(CONFIGMAPS, "default", _map("other"))
    await client.create(CONFIGMAPS, "default", _map("mine", labels={"a": "b"}))
    await client.patch(CONFIGMAPS, "default", "mine", {"data": {"v": "2"}})
    await client.delete(CONFIGMAPS, "default", "mine")
    events = client.watch(CONFIGMAPS, resource_version=version, label_selector="a=b", timeout_s=60)
    seen: list[str] = []
    async with aclosing(events) as stream:  # type: ignore[type-var]
        async for event in stream:
            if event.type != "BOOKMARK":
                seen.append(f"{event.type} {event.object['metadata']['name']}")
            if event.type == "DELETED":
                break
    assert seen == ["ADDED mine", "MODIFIED mine", "DELETED mine"]


async def test_refused_watch(client: KubeClient) -> None:
    """A refusal before the stream begins is an exception with its code."""
    events = client.watch(CONFIGMAPS, resource_version="1", label_selector="a in (")
    with pytest.raises(ApiError) as caught:
        await anext(events)
    assert caught.value.code == 400


async def test_informer(client: KubeClient) -> None:
    """It follows what is there and what comes, and ends with stop."""
    await client.create(CONFIGMAPS, "default", _map("before"))
    log: list[str] = []

    def changed(old: Object | None, new: Object | None) -> None:
        meta = (new or old or {})["metadata"]
        kind = "+" if old is None else "-" if new is None else "~"
        log.extend([kind + meta["name"]] * (meta["namespace"] == "default"))

    informer = Informer(client, CONFIGMAPS, on_change=changed)
    informer.start()
    await asyncio.wait_for(informer.synced.wait(), WAIT_S)
    await client.create(CONFIGMAPS, "default", _map("after"))
    await client.patch(CONFIGMAPS, "default", "before", {"data": {"v": "2"}})
    await client.delete(CONFIGMAPS, "default", "after")

    await eventually(lambda: len(log) >= 4, "four changes")
    await informer.stop()
    assert log == ["+before", "+after", "~before", "-after"]
    assert len(informer) == 1


async def test_elector(client: KubeClient) -> None:
    """The real validation of Leases accepts what the elector writes, through a whole change."""
    log: list[str] = []

    def elector(name: str) -> asyncio.Task[None]:
        made = LeaseElector(
            client.reserved(),
            LeaseIdentity("default", "leader", name),
            LeaseTimes(60, 20, 0.05),  # no pause of this machine lets it expire
            on_started=lambda term: log.append(f"{name} {term}"),
            on_lost=lambda: log.append(f"{name} lost"),
        )
        return asyncio.create_task(made.run())

    def logged(line: str) -> Any:
        async def look() -> bool:
            return line in log

        return look

    first = elector("a")
    await eventually(logged("a 1"), "a leads")
    second = elector("b")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await eventually(logged("b 2"), "b leads")
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    lease = await client.get(LEASES, "default", "leader")
    assert lease["spec"].get("holderIdentity", "") == ""
    assert log == ["a 1", "a lost", "b 2", "b lost"]


async def test_informer_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    """The server goes and comes back on its port with its data: what vanished is reported."""
    held = HeldPort()  # another process could take it while no server listens
    config = LocalClusterConfig(
        data_dir=tmp_path,
        port=held.port,
        run_controllers=False,
        run_scheduler=False,
        run_nodes=False,
    )
    log: list[str] = []

    def changed(old: Object | None, new: Object | None) -> None:
        meta = (new or old or {})["metadata"]
        kind = "+" if old is None else "-" if new is None else "~"
        log.extend([kind + meta["name"]] * (meta["namespace"] == "default"))

    async with LocalCluster(config) as cluster:
        client = KubeClient(config_of(cluster), timeout_s=30)
        await client.create(CONFIGMAPS, "default", _map("stays"))
        await client.create(CONFIGMAPS, "default", _map("goes"))
        informer = Informer(client, CONFIGMAPS, on_change=changed, retry_cap_s=0.2)
        informer.start()
        await asyncio.wait_for(informer.synced.wait(), WAIT_S)
    async with LocalCluster(config):
        await client.delete(CONFIGMAPS, "default", "goes")

        await eventually(lambda: "-goes" in log, "the removal is reported")
        await informer.stop()
        await client.close()
    held.release()
    assert log.count("+stays") == 1
    assert "-stays" not in log
