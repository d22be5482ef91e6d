"""What kube-scheduler does with its own groups: the facts on which the release of groups rests.

Observed on Kubernetes 1.37.2 with ``GenericWorkload`` and all that belongs to it. On 1.36 a group
is not gated as a whole. Each test says what was seen, and a later minor that differs fails here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.errors import ApiError
from fluxqueue.fluxjob.pod_facts import OF_GROUP
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.discovery import find_served
from fluxqueue.kube.resources import JOBS, NAMESPACES, NODES, PODS, PRIORITY_CLASSES
from fluxqueue.workload import observed_pod
from tests.support.control_plane import ControlPlane, Options, features_here, missing_reason
from tests.support.waiting import eventually

Obj = dict[str, Any]
pytestmark = [
    pytest.mark.real_cluster,
    pytest.mark.long("it starts a control plane of its own"),
    pytest.mark.asyncio(loop_scope="module"),
]
GROUP = ("scheduling.k8s.io", "PodGroup")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def admin() -> AsyncIterator[KubeClient]:
    """Admin access to a control plane with groups, three nodes of two cores and no kubelets."""
    if reason := missing_reason():
        pytest.skip(reason)
    feature = features_here().groups
    if feature is None or "CompositePodGroup" not in feature.gates:
        pytest.skip("this minor does not gate a group as a whole")
    options = Options(feature=feature, node_grace_s=100_000)
    async with ControlPlane(options=options) as plane, KubeClient(plane.config) as client:
        for name in ("n0", "n1", "n2"):
            meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
            await client.create(NODES, None, {"metadata": meta})
            room = {"cpu": "2", "memory": "4Gi", "pods": "20"}
            ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
            status = {"capacity": room, "allocatable": room, "conditions": [ready]}
            await client.patch(NODES, None, name, {"status": status}, subresource="status")
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def namespace(admin: KubeClient) -> AsyncIterator[str]:
    """A namespace of the test's own. Its pods go with it, at once."""
    made = await admin.create(NAMESPACES, None, {"metadata": {"generateName": "test-"}})
    name: str = made["metadata"]["name"]
    await eventually(lambda: _can_create(admin, name), "its service account")
    yield name
    for pod in (await admin.list(PODS, name)).items:
        await admin.delete(PODS, name, pod["metadata"]["name"], grace_s=0)


async def _can_create(admin: KubeClient, namespace: str) -> bool:
    pod = member("probe", gates=("probe",))
    try:
        await admin.create(PODS, namespace, pod)
    except Exception:  # noqa: BLE001  the controller manager has not made the account yet
        return False
    await admin.delete(PODS, namespace, "probe", grace_s=0)
    return True


def member(
    name: str, group: str = "", *, cpu: str = "1", gates: tuple[str, ...] = (), **more: Any
) -> Obj:
    requests = {"requests": {"cpu": cpu}}
    spec = {"containers": [{"name": "c", "image": "none", "resources": requests}], **more}
    spec["schedulingGates"] = [{"name": f"test/{one}"} for one in gates]
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    return {"metadata": {"name": name}, "spec": spec}


async def pod_group(admin: KubeClient, namespace: str, name: str, policy: Obj, **more: Any) -> None:
    served = await find_served(admin, {GROUP})
    body = {"metadata": {"name": name}, "spec": {"schedulingPolicy": policy, **more}}
    await admin.create(served[0], namespace, body)


async def ungate(admin: KubeClient, namespace: str, *names: str) -> None:
    for name in names:
        patch = {"spec": {"schedulingGates": []}}
        await admin.patch(PODS, namespace, name, patch, kind=PatchKind.MERGE)


async def nodes_of(admin: KubeClient, namespace: str) -> dict[str, str]:
    """The node of each pod, empty while it is not bound."""
    found = (await admin.list(PODS, namespace)).items
    return {one["metadata"]["name"]: one["spec"].get("nodeName", "") for one in found}


async def words(admin: KubeClient, namespace: str) -> dict[str, str]:
    """What kube-scheduler says of each pod that it cannot bind, as fluxqueue reads it."""
    found = (await admin.list(PODS, namespace)).items
    return {one["metadata"]["name"]: observed_pod.why_unbound(one) for one in found}


async def until_bound(admin: KubeClient, namespace: str, *names: str) -> None:
    async def are_bound() -> bool:
        found = await nodes_of(admin, namespace)
        return all(found.get(name) for name in names)

    await eventually(are_bound, f"{', '.join(names)} bound")


async def until_looked(admin: KubeClient, namespace: str, name: str) -> None:
    """Wait until kube-scheduler has bound a pod that came later than all others."""
    await admin.create(PODS, namespace, member(name, cpu="10m"))
    await until_bound(admin, namespace, name)


@pytest.mark.parametrize("policy", [{"gang": {"minCount": 3}}, {"basic": {}}])
async def test_a_group_with_a_gated_pod_is_gated_as_a_whole(
    admin: KubeClient, namespace: str, policy: Obj
) -> None:
    """Seen: three of five pods without a gate and room for all are not bound, and no pod says why.

    With ``minCount: 3`` and with ``basic`` alike. With the last gate all five are bound.
    """
    await pod_group(admin, namespace, "g", policy)
    for name in "abcde":
        await admin.create(PODS, namespace, member(name, "g", gates=("hold",)))
    await ungate(admin, namespace, *"abc")
    await until_looked(admin, namespace, "later")
    assert {name for name, node in (await nodes_of(admin, namespace)).items() if node} == {"later"}
    assert not any((await words(admin, namespace)).values())
    await ungate(admin, namespace, *"de")
    await until_bound(admin, namespace, *"abcde")


async def test_a_later_gated_pod_does_not_stop_bound_ones_and_stops_others(
    admin: KubeClient, namespace: str
) -> None:
    """Seen: pods that are bound stay. A further pod without a gate waits for the gated one."""
    await pod_group(admin, namespace, "g", {"gang": {"minCount": 2}})
    for name in "ab":
        await admin.create(PODS, namespace, member(name, "g"))
    await until_bound(admin, namespace, *"ab")
    await admin.create(PODS, namespace, member("c", "g", gates=("hold",)))
    await admin.create(PODS, namespace, member("d", "g"))
    await until_looked(admin, namespace, "later")
    assert not (await nodes_of(admin, namespace))["d"]
    await ungate(admin, namespace, "c")
    await until_bound(admin, namespace, *"cd")


async def test_all_pods_of_a_refused_group_are_unschedulable_and_one_names_nodes(
    admin: KubeClient, namespace: str
) -> None:
    """Seen: with ``minCount: 3``, a and b fit and c does not. All three are Unschedulable.

    c says "0/3 nodes are available". a and b say "pod group is unschedulable", and in the end that
    "minCount (3) cannot be satisfied: 2 scheduled, 0 remaining".
    """
    await pod_group(admin, namespace, "g", {"gang": {"minCount": 3}})
    for name in "ab":
        await admin.create(PODS, namespace, member(name, "g"))
    await admin.create(PODS, namespace, member("c", "g", nodeSelector={"is": "nowhere"}))

    async def are_refused() -> bool:
        return all((await words(admin, namespace)).values())

    await eventually(are_refused, "all pods are unschedulable")
    told = await words(admin, namespace)
    assert told["c"].startswith("0/3 nodes are available: ")
    for name in "ab":
        assert told[name].startswith(OF_GROUP)
        assert "minCount (3) cannot be satisfied: 2 scheduled, 0 remaining" in told[name]


@pytest.mark.parametrize(("mode", "gone"), [("single", 1), ("all", 3)])
async def test_what_preemption_takes_of_a_group_is_its_disruption_mode(
    admin: KubeClient, namespace: str, mode: str, gone: int
) -> None:
    """Seen: with ``disruptionMode: all``, a pod of a higher priority takes all pods of a group.

    With ``single`` it takes one. ``disruptionMode`` of a Job becomes that of its group.
    """
    await pod_group(admin, namespace, "g", {"gang": {"minCount": 3}}, disruptionMode={mode: {}})
    for name in "abc":
        await admin.create(PODS, namespace, member(name, "g", cpu="2"))
    await until_bound(admin, namespace, *"abc")
    value = {"metadata": {"name": f"high-{namespace}"}, "value": 1000}
    await admin.create(PRIORITY_CLASSES, None, value)
    high = member("high", cpu="2", priorityClassName=value["metadata"]["name"])

    async def is_admitted() -> bool:
        try:
            await admin.create(PODS, namespace, high)
        except ApiError:
            return False  # admission has not seen the class yet
        return True

    await eventually(is_admitted, "the pod is admitted")

    async def victims() -> int:
        found = [await admin.get(PODS, namespace, name) for name in "abc"]
        return sum("deletionTimestamp" in one["metadata"] for one in found)

    async def are_gone() -> bool:
        return await victims() >= gone

    await eventually(are_gone, "pods are preempted")
    assert await victims() == gone


async def test_a_group_that_is_not_there_gates_its_pods(admin: KubeClient, namespace: str) -> None:
    """Seen: pods may name a PodGroup before it exists. Its creation releases all of them."""
    for name in "ab":
        await admin.create(PODS, namespace, member(name, "late"))
    await until_looked(admin, namespace, "later")
    assert {name for name, node in (await nodes_of(admin, namespace)).items() if node} == {"later"}
    assert not any((await words(admin, namespace)).values())
    await pod_group(admin, namespace, "late", {"gang": {"minCount": 2}})
    await until_bound(admin, namespace, *"ab")


@pytest.mark.parametrize("is_suspended", [False, True])
async def test_each_job_gets_a_group_of_its_own(
    admin: KubeClient, namespace: str, is_suspended: bool
) -> None:
    """Seen: with ``WorkloadWithJob`` each Job has a Workload and a ``basic`` PodGroup.

    So has a Job that is created suspended. Its pods name the group in ``spec.schedulingGroup``.
    """
    template = member("x", gates=("hold",))["spec"] | {"restartPolicy": "Never"}
    spec = {"parallelism": 2, "suspend": is_suspended, "template": {"spec": template}}
    await admin.create(JOBS, namespace, {"metadata": {"name": "j"}, "spec": spec})
    kinds = {one.kind: one for one in await find_served(admin, {GROUP})}

    async def has_group() -> bool:
        return bool((await admin.list(kinds["PodGroup"], namespace)).items)

    await eventually(has_group, "the PodGroup of the Job")
    (group,) = (await admin.list(kinds["PodGroup"], namespace)).items
    assert "basic" in group["spec"]["schedulingPolicy"]
    await admin.patch(JOBS, namespace, "j", {"spec": {"suspend": False}})

    async def are_there() -> bool:
        return len((await admin.list(PODS, namespace)).items) == 2

    await eventually(are_there, "its pods")
    for pod in (await admin.list(PODS, namespace)).items:
        assert observed_pod.is_grouped(pod)
        assert pod["spec"]["schedulingGroup"]["podGroupName"] == group["metadata"]["name"]
    await admin.delete(JOBS, namespace, "j")
