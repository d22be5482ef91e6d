"""Our webhook and our patches against the real API server, Job controller and scheduler.

What unit tests hold against recorded rules is sent here to the server that made the rules.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from fluxqueue.cli.certs import LOOPBACK
from fluxqueue.clock import SystemClock
from fluxqueue.controller.observing.fluxjob_creator import FluxJobCreator, Lookups
from fluxqueue.db.store.last_readings import Past
from fluxqueue.errors import ApiError, Conflict, Invalid, NotFound
from fluxqueue.fluxjob.node import Destination
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.discovery import find_served
from fluxqueue.kube.installation import install_pod_policies
from fluxqueue.kube.resources import (
    CONFIGMAPS,
    CRDS,
    FLUXJOBS,
    JOBS,
    MUTATING_POLICIES,
    MUTATING_POLICY_BINDINGS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
)
from fluxqueue.kube.webhook_configuration import WebhookConfiguration, WebhookEndpoint
from fluxqueue.process.certs.folder import ensure
from fluxqueue.workload import labels
from fluxqueue.workload.fluxjob_object import build
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.managed import is_managed
from fluxqueue.workload.pinning import has_required_affinity, pinned_node
from fluxqueue.workload.release_patches import (
    pin_patch,
    resume_patch,
    suspend_again_patch,
    suspend_patch,
    ungate_by_name_patch,
    ungate_patch,
    unpin_patch,
)
from fluxqueue.workload.site import DEFAULT_SITE
from fluxqueue_webhook.server import ServerConfig, WebhookServer
from tests.support.control_plane import ControlPlane
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.real_cluster

REPOSITORY = Path(__file__).resolve().parents[2]
CRD_FILE = REPOSITORY / "chart" / "crds" / "fluxjobs.yaml"
HOSTS = {"real-a": "host-of-real-a", "real-b": "host-of-real-b", "real-c": "real-c"}
NODE_NAMES = tuple(HOSTS)


@pytest_asyncio.fixture
async def namespace(client: KubeClient) -> AsyncIterator[str]:
    """A namespace of the test's own, usable at once."""
    made = await client.create(NAMESPACES, None, {"metadata": {"generateName": "test-"}})
    name: str = made["metadata"]["name"]

    async def is_usable() -> bool:
        accounts = await client.list(SERVICE_ACCOUNTS, name)
        return bool(accounts.items)

    await eventually(is_usable, "the default service account")
    yield name
    with contextlib.suppress(NotFound, Conflict):  # the test may have deleted it
        await client.delete(NAMESPACES, None, name)
    for pod in (await client.list(PODS, name)).items:  # bound ones wait for a kubelet
        with contextlib.suppress(NotFound):
            await client.delete(PODS, name, pod["metadata"]["name"], grace_s=0)


@pytest_asyncio.fixture
async def nodes(client: KubeClient) -> AsyncIterator[tuple[str, ...]]:
    """Nodes that call themselves ready, but for the last, their host names are not their names."""
    room = {"cpu": "8", "memory": "16Gi", "pods": "20"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
    status = {"capacity": room, "allocatable": room, "conditions": [ready]}
    for name in NODE_NAMES:
        meta = {"name": name, "labels": {labels.HOSTNAME: HOSTS[name]}}
        await client.create(NODES, None, {"metadata": meta})
        await client.patch(NODES, None, name, {"status": status}, subresource="status")
    yield NODE_NAMES
    for name in NODE_NAMES:
        await client.delete(NODES, None, name)


@pytest_asyncio.fixture
async def webhook(client: KubeClient, tmp_path: Path) -> AsyncIterator[WebhookServer]:
    """Our webhook, listening, and known to the API server."""
    files = ensure(tmp_path, LOOPBACK, now=datetime.now(tz=UTC), validity=timedelta(days=1))
    async with WebhookServer(ServerConfig(cert_dir=tmp_path, port=0)) as server:
        configuration = WebhookConfiguration(
            WebhookEndpoint(url=server.url), files.ca.read_bytes()
        ).build()
        await client.create(MUTATING_WEBHOOKS, None, configuration)
        yield server
        await client.delete(MUTATING_WEBHOOKS, None, configuration["metadata"]["name"])


def _pod_spec(**more: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    return {"containers": [container], "restartPolicy": "Never", **more}


def _batch_job(name: str, parallelism: int = 2, **pod_fields: Any) -> dict[str, Any]:
    template = {"spec": _pod_spec(**pod_fields)}
    spec = {"parallelism": parallelism, "completions": parallelism, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


async def _resume(client: KubeClient, namespace: str, name: str, uid: str) -> None:
    """As the worker does. The webhook knows its parts by the field manager here."""
    kind = PatchKind.STRATEGIC
    await client.patch(
        JOBS, namespace, name, resume_patch(uid), kind=kind, field_manager=labels.FIELD_MANAGER
    )


async def _create_taken_in(client: KubeClient, namespace: str, job: dict[str, Any]) -> Any:
    """Create it until the server, which learns of webhooks with a delay, has asked us."""

    async def try_it() -> Any:
        made = await client.create(JOBS, namespace, job)
        if made["spec"]["suspend"]:
            return made
        await client.delete(JOBS, namespace, made["metadata"]["name"], propagation="Background")
        return None

    return await eventually(try_it, "a BatchJob that the webhook has taken in")


async def _pods(client: KubeClient, namespace: str, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    async def look() -> bool:
        found[:] = (await client.list(PODS, namespace)).items
        return len(found) == count

    await eventually(look, f"{count} pods")
    return found


async def _is_bound_to(client: KubeClient, pod: dict[str, Any], node: str) -> bool:
    meta = pod["metadata"]
    found = await client.get(PODS, meta["namespace"], meta["name"])
    return bool(found["spec"].get("nodeName") == node)


async def _leave_groups(client: KubeClient, namespace: str) -> None:
    """Install the policy that takes pods out of the PodGroups of their Jobs, and wait for it.

    Where groups are served, kube-scheduler binds no pod of a Job while another one is gated.
    """
    await install_pod_policies(client, drops_managed_fields=False)
    marks = {labels.MANAGED: "true", "batch.kubernetes.io/controller-uid": "u"}
    spec = _pod_spec() | {"schedulingGroup": {"podGroupName": "g"}}
    body = {"metadata": {"generateName": "p-", "labels": marks}, "spec": spec}

    async def is_in_force() -> bool:
        made = await client.create(PODS, namespace, body, dry_run=True)
        return "schedulingGroup" not in made["spec"]

    await eventually(is_in_force, "pods leave their groups")


HOST_TERMS = [
    {"matchExpressions": [{"key": labels.HOSTNAME, "operator": "Exists"}]},
    {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["elsewhere"]}]},
]
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": HOST_TERMS}}
PREFERENCE = {"weight": 1, "preference": HOST_TERMS[0]}
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [PREFERENCE]}


@pytest.mark.parametrize("is_by_name", [False, True], ids=["by-label", "by-name"])
@pytest.mark.parametrize(
    "pod_fields",
    [
        {},
        {"nodeSelector": {"kubernetes.io/hostname": "host-of-real-b"}},
        {"affinity": {"nodeAffinity": REQUIRED}},
        {"affinity": {"nodeAffinity": PREFERRED}},
        {"affinity": {"podAntiAffinity": {}}},
        {"schedulingGates": [{"name": "example.com/other"}]},
    ],
    ids=["plain", "selector", "required", "preferred", "other-affinity", "other-gate"],
)
async def test_released_pods_go_to_the_chosen_node(
    client: KubeClient,
    webhook: WebhookServer,
    namespace: str,
    nodes: tuple[str, ...],
    *,
    pod_fields: dict[str, Any],
    is_by_name: bool,
) -> None:
    """Taken in, unsuspended, gated pods made, ungated: the scheduler has one node left."""
    await _leave_groups(client, namespace)
    job = await _create_taken_in(client, namespace, _batch_job("work", **pod_fields))
    assert job["metadata"]["labels"][labels.MANAGED] == "true"
    uid = job["metadata"]["uid"]
    await _resume(client, namespace, "work", uid)
    chosen = nodes[1]
    for pod in await _pods(client, namespace, 2):
        assert {"name": labels.GATE} in pod["spec"]["schedulingGates"]
        assert pod["metadata"]["labels"][labels.MANAGED] == "true"
        hostname = None if is_by_name else HOSTS[chosen]
        meta, affinity = pod["metadata"], has_required_affinity(pod["spec"])
        patch: Any = ungate_patch(
            meta["uid"],
            to=Destination(chosen, hostname),
            jobid=7,
            nodes=chosen,
            has_affinity=affinity,
        )
        kind = PatchKind.STRATEGIC
        if hostname is None and affinity:
            kind, patch = (
                PatchKind.JSON,
                ungate_by_name_patch(pod, to=Destination(chosen, None), jobid=7, nodes=chosen),
            )
        freed = await client.patch(PODS, namespace, meta["name"], patch, kind=kind)
        assert freed["metadata"]["labels"][labels.JOBID] == "7"
        if "schedulingGates" in pod_fields:
            assert freed["spec"]["schedulingGates"] == pod_fields["schedulingGates"]
            continue
        await eventually(partial(_is_bound_to, client, pod, chosen), f"{meta['name']} bound")


async def test_a_bare_pod_waits_behind_the_gate(
    client: KubeClient, webhook: WebhookServer, namespace: str, nodes: tuple[str, ...]
) -> None:
    """Pods of other owners are not asked about, bare ones are gated."""
    await _create_taken_in(client, namespace, _batch_job("first", 1))
    pod = await client.create(PODS, namespace, {"metadata": {"name": "p"}, "spec": _pod_spec()})
    assert pod["spec"]["schedulingGates"] == [{"name": labels.GATE}]
    uid = pod["metadata"]["uid"]
    patch = ungate_patch(uid, to=Destination(nodes[0], None), jobid=1, nodes=nodes[0])
    for _ in range(2):  # sent again it changes nothing
        await client.patch(PODS, namespace, "p", patch, kind=PatchKind.STRATEGIC)
    other = ungate_patch("1" * 36, to=Destination(nodes[0], None), jobid=1, nodes=nodes[0])
    with pytest.raises(Invalid):
        await client.patch(PODS, namespace, "p", other, kind=PatchKind.STRATEGIC)
    await eventually(lambda: _is_bound_to(client, pod, nodes[0]), "the pod bound")


async def test_released_pods_of_jobs_are_stored_without_managed_fields(
    client: KubeClient, namespace: str
) -> None:
    """Nor do later updates record any. A server-side apply begins them again."""
    kinds = {(one.group, one.kind) for one in (MUTATING_POLICIES, MUTATING_POLICY_BINDINGS)}
    if MUTATING_POLICIES not in await find_served(client, kinds):
        pytest.skip("this API server serves no MutatingAdmissionPolicy v1 (Kubernetes 1.36 does)")
    await install_pod_policies(client, drops_managed_fields=True)
    marks = {labels.JOBID: "7", "batch.kubernetes.io/controller-uid": "u"}

    async def create(name: str, **marks: str) -> dict[str, Any]:
        body = {"metadata": {"name": name, "labels": marks}, "spec": _pod_spec()}
        return (await client.create(PODS, namespace, body))["metadata"]

    async def is_in_force() -> bool:
        made = await create("one", **marks)
        if "managedFields" in made:
            await client.delete(PODS, namespace, "one", grace_s=0)
        return "managedFields" not in made

    await eventually(is_in_force, "the policy is in force")
    assert (await create("other", **{labels.JOBID: "7"}))["managedFields"]
    status = {"status": {"message": "it runs"}}
    told = await client.patch(PODS, namespace, "one", status, subresource="status")
    assert (told["status"]["message"], "managedFields" in told["metadata"]) == ("it runs", False)
    applied = {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"mine": "1"}}}
    one = await client.patch(
        PODS, namespace, "one", applied, kind=PatchKind.APPLY, field_manager="author"
    )
    assert "author" in {entry["manager"] for entry in one["metadata"]["managedFields"]}
    await install_pod_policies(client, drops_managed_fields=False)
    left = (await client.list(MUTATING_POLICIES)).items
    assert not [one for one in left if one["metadata"]["name"].endswith("-released-pods")]


async def test_ungating_removes_managed_fields_if_asked(
    client: KubeClient, webhook: WebhookServer, namespace: str, nodes: tuple[str, ...]
) -> None:
    """The pod is bound and updated without them, too."""
    await _create_taken_in(client, namespace, _batch_job("first", 1))
    pod = await client.create(PODS, namespace, {"metadata": {"name": "p"}, "spec": _pod_spec()})
    assert pod["metadata"]["managedFields"]
    patch = ungate_patch(
        pod["metadata"]["uid"],
        to=Destination(nodes[0], None),
        jobid=1,
        nodes=nodes[0],
        drops_managed_fields=True,
    )
    for _ in range(2):  # sent again it changes nothing
        freed = await client.patch(PODS, namespace, "p", patch, kind=PatchKind.STRATEGIC)
        assert "managedFields" not in freed["metadata"]
    await eventually(lambda: _is_bound_to(client, pod, nodes[0]), "the pod bound")
    assert "managedFields" not in (await client.get(PODS, namespace, "p"))["metadata"]


async def test_a_wish_that_cannot_be_read_is_refused(
    client: KubeClient, webhook: WebhookServer, namespace: str
) -> None:
    """The user sees 422 with our message, not a webhook's failure."""
    await _create_taken_in(client, namespace, _batch_job("first", 1))
    job = _batch_job("odd", 1)
    job["metadata"]["annotations"] = {labels.DURATION: "soon"}
    with pytest.raises(ApiError) as refusal:
        await client.create(JOBS, namespace, job)
    assert refusal.value.code == 422
    assert labels.DURATION in str(refusal.value)


@pytest.mark.parametrize("containers", [70_000, 200_000])
async def test_a_review_that_defaults_make_huge_is_refused_in_words(
    control_plane: ControlPlane, webhook: WebhookServer, namespace: str, containers: int
) -> None:
    """The API server shows the refusal though it could not send the whole review."""
    async with KubeClient(control_plane.config, timeout_s=60) as client:
        await _create_taken_in(client, namespace, _batch_job("first", 1))
        job = _batch_job("huge", 1)
        job["spec"]["template"]["spec"]["containers"] = [{}] * containers
        with pytest.raises(ApiError, match="Fix: use fewer containers") as refusal:
            await client.create(JOBS, namespace, job)
        assert refusal.value.code == 422
        await client.create(JOBS, namespace, _batch_job("next", 1))


async def test_resuspending_and_releasing_again(
    client: KubeClient, webhook: WebhookServer, namespace: str
) -> None:
    """A BatchJob that runs can be taken back. A patch for its predecessor changes nothing."""
    job = await _create_taken_in(client, namespace, _batch_job("twice"))
    uid = job["metadata"]["uid"]
    await _resume(client, namespace, "twice", uid)
    await _pods(client, namespace, 2)
    runs = await client.get(JOBS, namespace, "twice")
    await client.patch(JOBS, namespace, "twice", suspend_again_patch(runs), kind=PatchKind.JSON)
    await _pods(client, namespace, 0)
    other = "11111111-2222-3333-4444-555555555555"
    with pytest.raises(Invalid):
        await _resume(client, namespace, "twice", other)
    await _resume(client, namespace, "twice", uid)
    await _pods(client, namespace, 2)


async def test_released_in_its_template_and_again_elsewhere(
    client: KubeClient, webhook: WebhookServer, namespace: str, nodes: tuple[str, ...]
) -> None:
    """One patch: its pods come without a gate and pinned. Stopped, it may go to another node."""
    job = await _create_taken_in(client, namespace, _batch_job("whole"))
    uid = job["metadata"]["uid"]

    async def patched(patch: Any) -> bool:
        """A template is refused (422) until the BatchJob's start is taken back."""
        with suppress(Invalid):
            changed = await client.patch(JOBS, namespace, "whole", patch, kind=PatchKind.STRATEGIC)
            return bool(changed["metadata"]["uid"] == uid)
        return False

    for node in nodes:
        to = Destination(node, HOSTS[node], is_labelled_index=HOSTS[node] == node)
        pin = pin_patch(uid, to=to, jobid=7, nodes=node, is_pinned=True)
        await eventually(lambda pin=pin: patched(pin), f"released to {node}")
        assert await patched(pin), "again: nothing changes"
        for pod in await _pods(client, namespace, 2):
            assert not pod["spec"].get("schedulingGates")
            await eventually(partial(_is_bound_to, client, pod, node), "the pod bound")
        stored = await client.get(JOBS, namespace, "whole")
        assert pinned_node(stored) == node
        await patched(suspend_patch(uid))
        for pod in (await client.list(PODS, namespace)).items:
            with suppress(NotFound):  # what a node would say of a pod that has ended
                await client.delete(PODS, namespace, pod["metadata"]["name"], grace_s=0)
        await _pods(client, namespace, 0)
    await eventually(lambda: patched(unpin_patch(uid)), "its template is as it was")
    stored = await client.get(JOBS, namespace, "whole")
    assert is_managed(stored)
    assert not has_required_affinity(stored["spec"]["template"]["spec"])


@pytest_asyncio.fixture
async def definition(client: KubeClient) -> AsyncIterator[None]:
    """Our CustomResourceDefinition, established. Another test may have left it on this server."""
    body = yaml.safe_load(CRD_FILE.read_text())
    name = body["metadata"]["name"]
    is_ours = not any(one["metadata"]["name"] == name for one in (await client.list(CRDS)).items)
    if is_ours:
        await client.create(CRDS, None, body)

    async def is_established() -> bool:
        found = await client.get(CRDS, None, name)
        conditions = found.get("status", {}).get("conditions") or []  # null at first
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    await eventually(is_established, "the definition established")
    yield
    if is_ours:
        await client.delete(CRDS, None, name)


@pytest.mark.slow
async def test_a_fluxjob_fits_its_definition_and_goes_with_its_batchjob(
    client: KubeClient, definition: None, namespace: str
) -> None:
    """Nothing is pruned or refused, and garbage collection takes it with its owner."""
    job = await client.create(JOBS, namespace, _batch_job("owned"))
    body = build(job, BATCH_JOB.to_request(job), priority=3)
    path = FLUXJOBS.path(namespace)
    made = await client.request("POST", path, query={"fieldValidation": "Strict"}, body=body)
    assert made["spec"] == body["spec"]
    await client.delete(JOBS, namespace, "owned", propagation="Background")

    await until(
        lambda: client.list(FLUXJOBS, namespace),
        lambda found: not found.items,
        "the FluxJob collected",
    )


async def _nothing_before(uids: AbstractSet[str]) -> dict[str, Past]:
    """No row says what a workload said before."""
    return {}


async def test_nothing_is_wrapped_in_a_namespace_that_ends(
    client: KubeClient, definition: None, namespace: str
) -> None:
    """Its workloads go with it. Asking again and again would only hold other work up."""
    job = await client.create(JOBS, namespace, _batch_job("late"))
    kept = {"metadata": {"name": "kept", "finalizers": ["example.com/keep"]}}
    await client.create(CONFIGMAPS, namespace, kept)
    await client.delete(NAMESPACES, None, namespace)
    made: list[str] = []
    wrapper = FluxJobCreator(
        client,
        SystemClock(),
        DEFAULT_SITE,
        Lookups(find=lambda uid: job, recall=_nothing_before),
        on_made=lambda uid, *_: made.append(uid),
    )
    uid = job["metadata"]["uid"]
    wrapper.want(uid)
    await wrapper._start(wrapper._take(1))

    await eventually(lambda: uid not in wrapper._trying, "it is not tried again")
    assert made == []
    patch = {"metadata": {"finalizers": None}}
    await client.patch(CONFIGMAPS, namespace, "kept", patch)
