"""Devices of DRA as an API server tells them: how many each node has, and which are written anew.

The embedded server does not serve ``resource.k8s.io``, so definitions of the same names do. The
real server is in ``tests/e2e/test_devices.py``.
"""

from __future__ import annotations

from typing import Any

from fluxqueue.errors import ApiUnavailable, NotFound
from fluxqueue.fluxjob.request import DEVICE_CLASS_PREFIX
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import (
    CRDS,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    EVENTS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ApiResource,
)
from tests.support.devices import DRIVER, RESOURCE, Watched, body, gpu_class, gpu_slice
from tests.support.waiting import eventually

KINDS = (DEVICE_CLASSES, RESOURCE_SLICES, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES)
(_, RULES, _) = DEVICE_TAINT_RULES


async def serve(admin: KubeClient, *kinds: ApiResource) -> None:
    """Serve the kinds, without a schema."""
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for one in kinds or KINDS:
        version = {"name": one.version, "served": True, "storage": True}
        spec = {
            "group": one.group,
            "scope": "Namespaced" if one.namespaced else "Cluster",
            "names": {"kind": one.kind, "plural": one.plural, "singular": one.kind.lower()},
            "versions": [{**version, "schema": {"openAPIV3Schema": free}}],
        }
        notes = {"api-approved.kubernetes.io": "unapproved, for a test"}
        meta = {"name": one.key, "annotations": notes}
        await admin.create(CRDS, None, {"metadata": meta, "spec": spec})
        await eventually(lambda one=one: _is_served(admin, one), f"{one.key} is served")


async def _is_served(admin: KubeClient, resource: ApiResource) -> bool:
    try:
        await admin.list(resource)
    except (NotFound, ApiUnavailable):  # the embedded server knows that a real one serves it
        return False
    return True


async def test_devices_come_change_and_go(admin: KubeClient) -> None:
    """Without the API nothing is watched. With it, each change marks the nodes that it concerns."""
    watched = Watched(admin)
    await watched.watch.look()
    assert watched.has() == (None, None)
    await serve(admin)
    await admin.create(DEVICE_CLASSES, None, gpu_class("gpu", f"device.driver == '{DRIVER}'"))
    await admin.create(RESOURCE_SLICES, None, gpu_slice("s0", 2, nodeName="n0"))
    try:
        await watched.watch.look()
        await watched.until_marked("n0")
        assert (watched.has("n0"), watched.has("n1")) == ((2, None), (None, None))
        own = {RESOURCE: 9}
        assert watched.has("n0", **own) == (9, None), "a device plugin serves this node"

        results = [{"driver": DRIVER, "pool": "p", "device": "s0-1"}]
        status = {"allocation": {"devices": {"results": results}}}
        claim = body(RESOURCE_CLAIMS, "c", status=status)
        await admin.create(RESOURCE_CLAIMS, "default", claim)
        await watched.until_marked("n0")
        assert watched.has() == (2, 1)

        await admin.create(RESOURCE_SLICES, None, gpu_slice("s1", 3, 2, nodeName="n0"))
        await watched.until_marked("n0")
        assert watched.has() == (3, None), "of the newest generation alone"
        await admin.delete(RESOURCE_SLICES, None, "s1")
        await watched.until_marked("n0")
        await admin.delete(RESOURCE_CLAIMS, "default", "c")
        await watched.until_marked("n0")
        assert watched.has() == (2, None)

        await admin.delete(DEVICE_CLASSES, None, "gpu")
        await watched.until_marked("n0")
        assert watched.has() == (None, None)
    finally:
        await watched.watch.stop()
    assert watched.marks == {"n0"}, "its node is written without devices"


async def test_what_cannot_be_counted_is_said_once(admin: KubeClient) -> None:
    """On its class. All devices that may be meant count, those of the network on each node."""
    await serve(admin)
    uncertain = f"cel.bind(d, device, d.driver == '{DRIVER}')"
    await admin.create(DEVICE_CLASSES, None, gpu_class("uncertain", uncertain))
    certain = f"device.driver == '{DRIVER}'"
    await admin.create(DEVICE_CLASSES, None, gpu_class("reached", certain))
    await admin.create(RESOURCE_SLICES, None, gpu_slice("net", 2, allNodes=True))
    watched = Watched(admin)
    try:
        await watched.watch.look()
        await watched.until_marked("n0", "n1")
        assert watched.has("n1") == (2, None)
        for _ in range(2):
            await watched.watch.look()
            told = {one["involvedObject"]["name"]: one for one in (await admin.list(EVENTS)).items}
            assert set(told) == {"uncertain", "reached"}
            assert "its selector cannot be evaluated" in told["uncertain"]["message"]
            assert "several nodes can reach" in told["reached"]["message"]
            assert all(one.get("count", 1) == 1 for one in told.values())
        assert watched.watch.is_doubtful(f"{DEVICE_CLASS_PREFIX}uncertain")
        assert not watched.watch.is_doubtful(f"{DEVICE_CLASS_PREFIX}other")
        asking = {"containers": [{"resources": {"limits": {f"{DEVICE_CLASS_PREFIX}reached": "1"}}}]}
        job = {"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": {"spec": asking}}}
        assert any(is_touched(job) for is_touched in watched.touched)
        # Once it can be counted, jobs with it are read again.
        watched.touched.clear()
        await admin.create(RESOURCE_SLICES, None, gpu_slice("own", 2, nodeName="n0"))
        await admin.delete(RESOURCE_SLICES, None, "net")
        await eventually(lambda: _is_certain(watched, "reached"), "all of its devices are counted")
        assert any(is_touched(job) for is_touched in watched.touched)
        assert watched.watch.is_doubtful(f"{DEVICE_CLASS_PREFIX}uncertain")
    finally:
        await watched.watch.stop()


async def _is_certain(watched: Watched, device_class: str) -> bool:
    await watched.watch.look()
    return not watched.watch.is_doubtful(f"{DEVICE_CLASS_PREFIX}{device_class}")


async def test_claims_of_pods_with_slots_are_counted_by_their_slots(admin: KubeClient) -> None:
    """And objects that pods name touch the workloads that name them."""
    await serve(admin)
    watched = Watched(admin)
    await admin.create(DEVICE_CLASSES, None, gpu_class("gpu", f"device.driver == '{DRIVER}'"))
    await admin.create(RESOURCE_SLICES, None, gpu_slice("s0", 2, nodeName="n0"))
    try:
        await watched.watch.look()
        await watched.until_marked("n0")
        assert watched.watch.device_resource("gpu") == RESOURCE
        results = [{"driver": DRIVER, "pool": "p", "device": "s0-1"}]
        claim = body(RESOURCE_CLAIMS, "c", status={"allocation": {"devices": {"results": results}}})
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-1", "controller": True}
        claim["metadata"]["ownerReferences"] = [owner]
        await admin.create(RESOURCE_CLAIMS, "default", claim)
        await watched.until_marked("n0")
        assert watched.has() == (2, 1)
        watched.ours.add("pod-1")
        assert watched.has() == (2, None)

        watched.touched.clear()
        template = body(RESOURCE_CLAIM_TEMPLATES, "t", spec={"spec": {"devices": {}}})
        await admin.create(RESOURCE_CLAIM_TEMPLATES, "default", template)
        await eventually(lambda: _is_any(watched.touched), "workloads are touched")
        (is_touched,) = watched.touched
        pods = {"containers": [], "resourceClaims": [{"resourceClaimTemplateName": "t"}]}
        job = {
            "kind": "Job",
            "metadata": {"name": "j", "namespace": "default"},
            "spec": {"template": {"spec": pods}},
        }
        assert is_touched(job)
        assert not is_touched({**job, "metadata": {"name": "j", "namespace": "other"}})
        assert not is_touched({**job, "spec": {"template": {"spec": {"containers": []}}}})
        found = watched.watch.claim_template("default", "t")
        assert found is not None
        assert found["metadata"]["name"] == "t"
    finally:
        await watched.watch.stop()


async def test_rules_of_taints_are_followed_once_they_are_served(admin: KubeClient) -> None:
    """They mark the nodes that they may concern, and touch workloads with claims."""
    await serve(admin)
    await admin.create(DEVICE_CLASSES, None, gpu_class("gpu", f"device.driver == '{DRIVER}'"))
    await admin.create(RESOURCE_SLICES, None, gpu_slice("s0", 2, nodeName="n0"))
    watched = Watched(admin)
    try:
        await watched.watch.look()
        await watched.until_marked("n0")
        assert not watched.watch.device_taints("gpu")
        await serve(admin, RULES)
        taint = {"key": "example.com/broken", "effect": "NoSchedule"}
        selector = {"pool": "p", "device": "s0-1"}
        rule = body(RULES, "broken", spec={"deviceSelector": selector, "taint": taint})
        await admin.create(RULES, None, rule)
        await watched.watch.look()
        await watched.until_marked("n0")
        assert watched.has() == (2, 1)
        assert {one.key for one in watched.watch.device_taints("gpu")} == {"example.com/broken"}
        assert not watched.watch.device_taints("other")
        pods = {"containers": [], "resourceClaims": [{"resourceClaimTemplateName": "t"}]}
        job = {"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": {"spec": pods}}}
        assert watched.touched[-1](job)
        # The pod of a job with such a toleration may hold any device, and its slot counts none.
        results = [{"driver": DRIVER, "pool": "p", "device": "s0-0"}]
        exactly = {"deviceClassName": "gpu", "tolerations": [{"operator": "Exists"}]}
        claim = body(
            RESOURCE_CLAIMS,
            "c",
            spec={"devices": {"requests": [{"name": "one", "exactly": exactly}]}},
            status={"allocation": {"devices": {"results": results}}},
        )
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-1", "controller": True}
        claim["metadata"]["ownerReferences"] = [owner]
        watched.ours.add("pod-1")
        await admin.create(RESOURCE_CLAIMS, "default", claim)
        await watched.until_marked("n0")
        assert watched.has() == (2, 2)
        await admin.delete(RULES, None, "broken")
        await watched.until_marked("n0")
        assert watched.has() == (2, None)
    finally:
        await watched.watch.stop()


async def _is_any(found: list[Any]) -> bool:
    return bool(found)
