"""Devices of DRA on the real server: the test publishes ResourceSlices, and a class serves them.

No node advertises the resource. The real kube-scheduler binds the pods.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.errors import NotFound
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import (
    DEVICE_CLASSES,
    NAMESPACES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ApiResource,
)
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.refusals import was_refused
from tests.support.e2e.space import WAITING, Space
from tests.support.waiting import eventually

pytestmark = pytest.mark.parametrize(
    "cluster_kind", [pytest.param("real", marks=pytest.mark.real_cluster)], indirect=True
)

DRIVER = "gpu.example.com"
RESOURCE = "devices.example.com/gpu"
A100 = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].model == 'a100'"


class Devices:
    """Classes and slices of one test, removed after it."""

    def __init__(self, space: Space) -> None:
        self.space, self.made = space, list[tuple[ApiResource, str]]()

    async def put(self, resource: ApiResource, name: str, spec: Obj) -> None:
        """Create an object."""
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        body = {**kind, "metadata": {"name": name}, "spec": spec}
        await self.space.client.create(resource, None, body)
        self.made.append((resource, name))

    async def publish(self, node: str, models: str, *, generation: int = 1) -> None:
        """Publish the devices of a node, as its driver does: one model for each letter."""
        devices = [
            {
                "name": f"gpu-{number}",
                "attributes": {"model": {"string": "a100" if model == "a" else "t4"}},
            }
            for number, model in enumerate(models)
        ]
        pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
        await self.put(RESOURCE_SLICES, f"{node}-{self.space.name}-{generation}", spec)

    async def until(self, node: str, capacity: int, unusable: int = 0) -> None:
        """Wait until the rows have so many devices of a node."""
        sql = (
            "SELECT coalesce((fact -> 'capacity' ->> :name)::int, 0) AS capacity,"
            " coalesce((fact -> 'unusable' ->> :name)::int, 0) AS unusable"
            " FROM nodes WHERE name = :node"
        )

        async def look() -> bool:
            rows = await self.space.world.rows(sql, name=RESOURCE, node=node)
            return rows == [{"capacity": capacity, "unusable": unusable}]

        await eventually(look, f"{node} has {capacity} devices, {unusable} of them not usable")

    async def remove(self) -> None:
        """Remove all, and wait until no node has any."""
        for resource, name in reversed(self.made):
            try:
                await self.space.client.delete(resource, None, name)
            except NotFound:
                continue
        for node in ("node-1", "node-2"):
            await self.until(node, 0)


@pytest_asyncio.fixture(loop_scope="session")
async def devices(space: Space) -> AsyncIterator[Devices]:
    """A class that serves the resource, and no devices yet."""
    made = Devices(space)
    selectors = [{"cel": {"expression": A100}}]
    spec = {"selectors": selectors, "extendedResourceName": RESOURCE}
    await made.put(DEVICE_CLASSES, space.name, spec)
    yield made
    await made.remove()


def _job(name: str, number: int, *, resource: str = RESOURCE, **more: Any) -> Obj:
    return job(name, requests={resource: str(number)}, **more)


async def test_extended_resources_of_a_class(space: Space, devices: Devices) -> None:
    """Never is said of what no node has, and of no more. All that starts is bound."""
    await space.create(_job("early", 2))
    await space.until_state("early", "Unsatisfiable")
    await devices.publish("node-1", "aat")
    await devices.publish("node-2", "a")
    await devices.until("node-1", 2)
    await space.until_job("early")

    await space.create(_job("large", 3))
    large = await space.until_state("large", "Unsatisfiable")
    assert "the largest of 7 nodes has 2" in large["status"]["reason"]

    await space.create(_job("gang", 1, pods=3, run=FOR_EVER))
    await space.until_state("gang", "Running")
    nodes = sorted(pod["spec"]["nodeName"] for pod in await space.pods("gang"))
    assert nodes == ["node-1", "node-1", "node-2"]
    await space.create(_job("next", 1))
    await space.until_state("next", *WAITING)
    await space.finish("gang")
    await space.until_job("next")

    implicit = f"deviceclass.resource.kubernetes.io/{space.name}"
    await space.create(_job("implicit", 2, resource=implicit))
    await space.until_job("implicit")
    # The driver replaces a device: a newer generation of its pool counts alone.
    await devices.publish("node-1", "aaat", generation=2)
    await devices.until("node-1", 3)
    await space.until_job("large")


async def test_devices_of_claims_and_tainted_ones_are_not_given(
    space: Space, unmanaged: Space, devices: Devices
) -> None:
    """They are capacity, so nothing is called impossible, and jobs wait until they are free."""
    await devices.publish("node-1", "aa")
    await devices.until("node-1", 2)
    exactly = {"deviceClassName": space.name, "allocationMode": "ExactCount", "count": 1}
    claim = {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {"name": "theirs"},
        "spec": {"devices": {"requests": [{"name": "one", "exactly": exactly}]}},
    }
    await unmanaged.client.create(RESOURCE_CLAIMS, unmanaged.name, claim)
    body = bare_pod("theirs", run=FOR_EVER)
    body["spec"]["resourceClaims"] = [{"name": "one", "resourceClaimName": "theirs"}]
    body["spec"]["containers"][0]["resources"]["claims"] = [{"name": "one"}]
    await unmanaged.create(body)
    await devices.until("node-1", 2, unusable=1)
    await space.create(_job("both", 2))
    await space.until_state("both", *WAITING)
    await space.create(_job("single", 1))
    await space.until_job("single")
    await unmanaged.delete("theirs", PODS)
    await unmanaged.client.delete(RESOURCE_CLAIMS, unmanaged.name, "theirs")
    await devices.until("node-1", 2)
    await space.until_job("both")

    _, name = devices.made[-1]
    found = await space.client.get(RESOURCE_SLICES, None, name)
    tainted = found["spec"]["devices"]
    tainted[0]["taints"] = [{"key": "example.com/broken", "effect": "NoSchedule"}]
    change = {"spec": {"devices": tainted}}
    await space.client.patch(RESOURCE_SLICES, None, name, change, kind=PatchKind.MERGE)
    await devices.until("node-1", 2, unusable=1)
    await space.create(_job("again", 2))
    await space.until_state("again", *WAITING)
    for one in tainted:
        one.pop("taints", None)
    await space.client.patch(RESOURCE_SLICES, None, name, change, kind=PatchKind.MERGE)
    await space.until_job("again")


async def test_claims_of_a_jobs_own_pods_are_counted(space: Space, devices: Devices) -> None:
    """By the template of their claims, and once: pods by resource name use the same devices."""
    exactly = {"deviceClassName": space.name, "allocationMode": "ExactCount", "count": 2}
    template = {
        "apiVersion": RESOURCE_CLAIM_TEMPLATES.api_version,
        "kind": RESOURCE_CLAIM_TEMPLATES.kind,
        "metadata": {"name": "two"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}},
    }
    await space.client.create(RESOURCE_CLAIM_TEMPLATES, space.name, template)

    def claiming(name: str, **more: Any) -> Obj:
        claims = [{"name": "gpus", "resourceClaimTemplateName": "two"}]
        body = job(name, pod={"resourceClaims": claims}, **more)
        (container,) = body["spec"]["template"]["spec"]["containers"]
        container["resources"]["claims"] = [{"name": "gpus"}]
        return body

    await space.create(claiming("early", pods=2))
    early = await space.until_state("early", "Unsatisfiable")
    assert RESOURCE in early["status"]["reason"]
    await devices.publish("node-1", "aaa")
    await devices.publish("node-2", "aa")
    await devices.until("node-2", 2)
    await space.until_job("early")

    await space.create(claiming("gang", pods=2, run=FOR_EVER))
    await space.until_state("gang", "Running")
    nodes = sorted(pod["spec"]["nodeName"] for pod in await space.pods("gang"))
    assert nodes == ["node-1", "node-2"]
    gang = await space.fluxjob("gang") or {}
    assert "ConstraintsIgnored" not in {one["type"] for one in gang["status"]["conditions"]}
    # One device is left, and the devices of the gang count once.
    await space.create(_job("two", 2))
    await space.until_state("two", *WAITING)
    await space.create(_job("one", 1))
    await space.until_job("one")
    await devices.until("node-1", 3)
    await space.finish("gang")
    await space.until_job("two")


async def test_a_class_that_cannot_be_counted_is_left_to_the_scheduler(
    space: Space, devices: Devices
) -> None:
    """No job is called impossible because of it. A pod that is not bound waits with the reason."""
    starts = f"cel.bind(d, device.attributes['{DRIVER}'], d.model.startsWith('a'))"
    change = {"spec": {"selectors": [{"cel": {"expression": starts}}]}}
    await space.client.patch(DEVICE_CLASSES, None, space.name, change, kind=PatchKind.MERGE)
    await devices.publish("node-1", "aat")
    await devices.until("node-1", 3)
    await space.create(_job("fits", 2))
    await space.until_job("fits")


async def test_a_claim_by_name_binds_jobs_to_its_node(space: Space, devices: Devices) -> None:
    """It is left to kube-scheduler until it is allocated. A running job stays as it is then."""
    await devices.publish("node-2", "a")
    await devices.until("node-2", 1)
    exactly = {"deviceClassName": space.name, "allocationMode": "ExactCount", "count": 1}
    claim = {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {"name": "shared"},
        "spec": {"devices": {"requests": [{"name": "one", "exactly": exactly}]}},
    }
    await space.client.create(RESOURCE_CLAIMS, space.name, claim)

    def sharing(name: str, **more: Any) -> Obj:
        claims = [{"name": "one", "resourceClaimName": "shared"}]
        body = job(name, pod={"resourceClaims": claims}, **more)
        (container,) = body["spec"]["template"]["spec"]["containers"]
        container["resources"]["claims"] = [{"name": "one"}]
        return body

    # Only a repair may find the node of the device, so it starts there.
    first = sharing("first", run=FOR_EVER)
    first["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-2"}
    await space.create(first)
    await space.until_state("first", "Running")
    await devices.until("node-2", 1, unusable=1)
    await space.create(sharing("second", run=FOR_EVER))
    await space.until_state("second", "Running")
    (pod,) = await space.pods("second")
    assert pod["spec"]["nodeName"] == "node-2"
    still = await space.fluxjob("first") or {}
    assert (still["status"]["state"], still["status"]["nodes"]) == ("Running", "node-2")
    assert len(await space.pods("first")) == 1


def _with_claim(name: str, claim: Obj, **more: Any) -> Obj:
    """A Job with pods that use one claim, or have one each."""
    body = job(name, run=FOR_EVER, pod={"resourceClaims": [{"name": "one", **claim}]}, **more)
    (container,) = body["spec"]["template"]["spec"]["containers"]
    container["resources"]["claims"] = [{"name": "one"}]
    return body


@pytest.mark.long("three kinds of claims, and pods that kube-scheduler places")
async def test_claims_that_are_left_find_their_node_at_once(space: Space, devices: Devices) -> None:
    """Alternatives, administrators, and one claim of several pods. The matcher knows no node."""
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await space.client.patch(NAMESPACES, None, space.name, label, kind=PatchKind.MERGE)
    await devices.publish("node-2", "aa")
    await devices.until("node-2", 2)
    exactly = {"deviceClassName": space.name, "allocationMode": "ExactCount", "count": 1}
    of_three = {"name": "three", **exactly, "count": 3}
    first = [of_three, {"name": "single", **exactly}]
    for name, request in (
        ("prioritized", {"name": "any", "firstAvailable": first}),
        ("admin", {"name": "all", "exactly": {**exactly, "adminAccess": True}}),
    ):
        body = {
            "apiVersion": RESOURCE_CLAIM_TEMPLATES.api_version,
            "kind": RESOURCE_CLAIM_TEMPLATES.kind,
            "metadata": {"name": name},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        }
        await space.client.create(RESOURCE_CLAIM_TEMPLATES, space.name, body)
    shared = {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {"name": "shared"},
        "spec": {"devices": {"requests": [{"name": "one", "exactly": exactly}]}},
    }
    await space.client.create(RESOURCE_CLAIMS, space.name, shared)
    await space.create_all(
        [
            _with_claim("prioritized", {"resourceClaimTemplateName": "prioritized"}),
            _with_claim("admin", {"resourceClaimTemplateName": "admin"}),
            _with_claim("shared", {"resourceClaimName": "shared"}, pods=2),
        ]
    )
    for name, count in (("prioritized", 1), ("admin", 1), ("shared", 2)):
        pods = await space.until_running(name, count)
        assert {pod["spec"]["nodeName"] for pod in pods} == {"node-2"}
        assert not await was_refused(space, name)
        fluxjob = await space.fluxjob(name) or {}
        assert "ConstraintsIgnored" in {one["type"] for one in fluxjob["status"]["conditions"]}


@pytest.mark.long("a job waits until kube-scheduler has parts of a device again")
async def test_parts_of_a_device_are_never_called_impossible(
    space: Space, devices: Devices
) -> None:
    """Two halves of one device and the whole of it: one of both can be had."""
    await devices.publish("node-1", "a")
    half = {"attributes": {"model": {"string": "a100"}}}
    takes = [{"counterSet": "chip", "counters": {"slices": {"value": "1"}}}]
    parts = [{"name": f"half-{n}", **half, "consumesCounters": takes} for n in range(2)]
    takes = [{"counterSet": "chip", "counters": {"slices": {"value": "2"}}}]
    parts.append({"name": "whole", **half, "consumesCounters": takes})
    pool = {"name": "chips", "generation": 1, "resourceSliceCount": 2}
    at = {"driver": DRIVER, "nodeName": "node-2", "pool": pool}
    counters = [{"name": "chip", "counters": {"slices": {"value": "2"}}}]
    await devices.put(RESOURCE_SLICES, f"chip-{space.name}", {**at, "sharedCounters": counters})
    await devices.put(RESOURCE_SLICES, f"parts-{space.name}", {**at, "devices": parts})
    await devices.until("node-2", 3)
    await space.create(_job("two", 2, run=FOR_EVER))
    await space.until_running("two", 1)
    await space.create(_job("next", 1, run=FOR_EVER))
    await space.until_running("next", 1)
    await space.create(_job("third", 1))
    await space.until_state("third", *WAITING, "Allocated")
    await space.finish("two")
    await space.until_job("third")
