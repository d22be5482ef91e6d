"""The admission policy, enforced by an API server: which users may release queued work.

The chart's own accounts and rights are used. The Job controller is the cluster's. The webhook is
not running: work is gated by hand, as the webhook would.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.errors import ApiError, Conflict, NotFound
from fluxqueue.fluxjob.node import Destination
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.config import ClusterConfig
from fluxqueue.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONTROLLER_REVISIONS,
    CRDS,
    CRON_JOBS,
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    REPLICASETS,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    STATEFULSETS,
    ApiResource,
)
from fluxqueue.workload import labels
from fluxqueue.workload.release_patches import pin_patch, resume_patch, ungate_patch
from localcluster import NodeShape, SimulatedNodes
from tests.chart.rendering import render
from tests.support.embedded_plane import Plane
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.timeout(240)

OURS = "gate-policy-system"
RELEASE = "green"
OTHER_GATE = "example.org/other"
GITOPS = "gitops"
"""An account with an annotation that names the user (``submitter.accounts``)."""
VALUES = {"submitter": {"accounts": [GITOPS]}, "webhook": {"namespaces": "optOut"}}
MALLORY = "mallory"
"""A tenant with the role ``edit`` in the namespace of the test."""
CONTROLLER = "system:serviceaccount:kube-system:{}-controller"
_KINDS = {
    "ServiceAccount": SERVICE_ACCOUNTS,
    "ClusterRole": CLUSTER_ROLES,
    "ClusterRoleBinding": CLUSTER_ROLE_BINDINGS,
    "ValidatingAdmissionPolicy": ApiResource(
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        False,
    ),
    "ValidatingAdmissionPolicyBinding": ApiResource(
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        False,
    ),
}
REPLICATION_CONTROLLERS = ApiResource(
    "", "v1", "replicationcontrollers", "ReplicationController", True
)
JOB_SET = ApiResource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", True)
LEADER_WORKER_SET = ApiResource(
    "leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet", True
)
TOKENS = "token"
REAL = [pytest.param("real", marks=pytest.mark.real_cluster)]


@dataclass(frozen=True, slots=True)
class People:
    """Clients: the administrator, not special to the policy, and the chart's worker."""

    admin: KubeClient
    worker: KubeClient
    namespace: str
    user: str
    """The administrator, as the API server knows them."""

    async def pod(self, name: str, *gates: str, **meta: Any) -> dict[str, Any]:
        """Create a Pod with these gates, as the webhook leaves it."""
        spec = {**_pod_spec(), "schedulingGates": [{"name": gate} for gate in gates]}
        stamp = {"annotations": {labels.USER: self.user}}
        body = {
            "metadata": {"name": name, "labels": {labels.MANAGED: "true"}, **stamp, **meta},
            "spec": spec,
        }
        return await self.admin.create(PODS, self.namespace, body)

    async def job(self, name: str, **meta: Any) -> dict[str, Any]:
        """Create a Job as the webhook leaves it."""
        body = self.job_body(name, **meta)
        return await self.admin.create(JOBS, self.namespace, body)

    def job_body(self, name: str, **meta: Any) -> dict[str, Any]:
        """A Job as the webhook leaves it."""
        template = {
            "metadata": {"labels": {labels.MANAGED: "true"}},
            "spec": {**_pod_spec(), "schedulingGates": [{"name": labels.GATE}]},
        }
        stamp = {labels.USER: self.user, **meta.pop("annotations", {})}
        marks = {"labels": {labels.MANAGED: "true"}, "annotations": stamp}
        return {
            "metadata": {"name": name, **marks, **meta},
            "spec": {"suspend": True, "parallelism": 2, "completions": 2, "template": template},
        }

    async def pods_of(self, job: str) -> list[dict[str, Any]]:
        """The pods of a Job."""
        selector = f"batch.kubernetes.io/job-name={job}"
        return (await self.admin.list(PODS, self.namespace, label_selector=selector)).items


def _pod_spec() -> dict[str, Any]:
    container = {"name": "main", "image": "example.org/work:1"}
    return {"containers": [container], "restartPolicy": "Never"}


@pytest_asyncio.fixture
async def people(plane: Plane) -> AsyncIterator[People]:
    """The policies and the worker's account in force. All of it gone after the test."""
    documents = [
        one
        for one in render(VALUES, name=RELEASE, namespace=OURS)
        if one["kind"].startswith("ValidatingAdmission")
        or one["metadata"]["name"] == f"{RELEASE}-fluxqueue-worker"
    ]
    wanted = [one for one in documents if one["kind"] in _KINDS]
    async with KubeClient(plane.config) as admin:
        own = await _namespace(admin, {"name": OURS})
        made = await _namespace(admin, {"generateName": "test-"})
        for one in wanted:
            await admin.create(_KINDS[one["kind"]], one["metadata"].get("namespace"), one)
        config = await _worker_config(admin, plane)
        async with KubeClient(config) as worker:
            there = People(admin, worker, made, await _who(admin))
            await there.pod("probe", labels.GATE)
            await there.job("probe")
            await eventually(lambda: _is_in_force(there), "the policies are in force")
            for resource in (PODS, JOBS):
                await admin.delete(resource, made, "probe", grace_s=0)
            yield there
        for one in wanted:
            await admin.delete(
                _KINDS[one["kind"]], one["metadata"].get("namespace"), one["metadata"]["name"]
            )
        for name in (made, own):
            await admin.delete(NAMESPACES, None, name)
        await eventually(lambda: _is_gone(admin, OURS), "the namespace is gone")


async def _who(client: KubeClient) -> str:
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    answer = await client.request("POST", path, body=asked)
    name: str = answer["status"]["userInfo"]["username"]
    return name


async def _namespace(admin: KubeClient, meta: dict[str, Any]) -> str:
    made = await admin.create(NAMESPACES, None, {"metadata": meta})
    name: str = made["metadata"]["name"]

    await until(
        lambda: admin.list(SERVICE_ACCOUNTS, name),
        lambda found: bool(found.items),
        "the default service account",
    )
    return name


async def _worker_config(admin: KubeClient, plane: Plane) -> ClusterConfig:
    name = f"{RELEASE}-fluxqueue-worker"
    asked = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600},
    }
    path = SERVICE_ACCOUNTS.path(OURS, name, TOKENS)
    answer = await admin.request("POST", path, body=asked)
    return plane.config_with(answer["status"]["token"])


async def _is_in_force(people: People) -> bool:
    """Policies are read some time after they are written, each by itself: try until all refuse."""
    run = [{"op": "replace", "path": "/spec/suspend", "value": False}]
    theirs = _template_of(DEPLOYMENTS, "probe-2", "somebody-else")
    for resource, body in (
        (PODS, _forged_pod("probe-2")),
        (JOBS, _forged_job(people, "probe-2")),
        (DEPLOYMENTS, theirs),
    ):
        try:
            await people.admin.create(resource, people.namespace, body, dry_run=True)
        except ApiError as error:
            if not _is_refusal(error):
                raise
        else:
            return False
    for resource, patch in ((PODS, _remove_gate(0)), (JOBS, run)):
        try:
            await people.admin.patch(
                resource, people.namespace, "probe", patch, kind=PatchKind.JSON, dry_run=True
            )
        except ApiError as error:
            if not _is_refusal(error):
                raise
        else:
            return False
    return True


async def _is_gone(admin: KubeClient, name: str) -> bool:
    try:
        await admin.get(NAMESPACES, None, name)
    except NotFound:
        return True
    return False


def _is_refusal(error: ApiError) -> bool:
    said, name = str(error), f"{RELEASE}-fluxqueue"
    is_of_ours = f"{name}-queued" in said or f"{name}-marked" in said
    return "ValidatingAdmissionPolicy" in said and is_of_ours


def _forged_pod(name: str, **meta: Any) -> dict[str, Any]:
    spec = {**_pod_spec(), "schedulingGates": [{"name": labels.GATE}]}
    return {"metadata": {"name": name, **meta}, "spec": spec}


def _forged_job(people: People, name: str) -> dict[str, Any]:
    return people.job_body(name, annotations={labels.USER: "somebody-else"})


def _remove_gate(index: int) -> list[dict[str, Any]]:
    return [{"op": "remove", "path": f"/spec/schedulingGates/{index}"}]


async def _refused(people: People, resource: ApiResource, name: str, patch: Any) -> str:
    """Patch as the administrator. Give the policy's message."""
    kind = PatchKind.JSON if isinstance(patch, list) else PatchKind.MERGE
    with pytest.raises(ApiError) as caught:
        await people.admin.patch(resource, people.namespace, name, patch, kind=kind)
    assert _is_refusal(caught.value), str(caught.value)
    return str(caught.value)


async def test_pods(people: People) -> None:
    """Gate and label of a queued pod stay. Everything else is its owner's."""
    admin, namespace = people.admin, people.namespace
    pod = await people.pod("queued", OTHER_GATE, labels.GATE)
    said = await _refused(people, PODS, "queued", _remove_gate(1))
    assert "kubectl get fluxjobs" in said
    for value in ("false", None):
        relabel = {"metadata": {"labels": {labels.MANAGED: value}}}
        assert "create it with" in await _refused(people, PODS, "queued", relabel)

    await _refused(people, PODS, "queued", {"metadata": {"annotations": {labels.USER: "boss"}}})
    # With it nothing would look at what becomes of the gate.
    numbered = {"metadata": {"labels": {labels.JOBID: "1"}}}
    assert "on released work" in await _refused(people, PODS, "queued", numbered)

    # Another controller's gate, other labels, an annotation, a finalizer: as ever.
    await admin.patch(PODS, namespace, "queued", _remove_gate(0), kind=PatchKind.JSON)
    change = {"metadata": {"labels": {"a": "b"}, "finalizers": ["example.org/x"]}}
    await admin.patch(PODS, namespace, "queued", change)
    pod = await admin.patch(PODS, namespace, "queued", {"metadata": {"finalizers": None}})

    # The worker, with the patch it really sends.
    patch = ungate_patch(pod["metadata"]["uid"], to=Destination("n", "n"), jobid=1, nodes="n")
    freed = await people.worker.patch(PODS, namespace, "queued", patch, kind=PatchKind.STRATEGIC)
    assert not freed["spec"].get("schedulingGates")
    relabel = {"metadata": {"labels": {labels.MANAGED: None}}}
    await admin.patch(PODS, namespace, "queued", relabel)


async def _refused_creation(people: People, resource: ApiResource, body: dict[str, Any]) -> str:
    """Create as the administrator. Give the policy's message."""
    with pytest.raises(ApiError) as caught:
        await people.admin.create(resource, people.namespace, body)
    assert _is_refusal(caught.value), str(caught.value)
    return str(caught.value)


async def test_forged_pods(people: People) -> None:
    """The gate, the submitter and the group are what admission wrote, or the pod is refused."""
    mine, theirs = {labels.USER: people.user}, {labels.USER: "somebody-else"}
    out, taken = {labels.MANAGED: "false"}, {labels.MANAGED: "true"}
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "decoy", "uid": "u", "controller": True}
    group = {labels.GROUP: "gang 2-2", **mine}
    numbered, of_a_job = {labels.JOBID: "7"}, {labels.OF_A_BATCH_JOB: "u"}
    for number, (marks, notes, more) in enumerate(
        [
            (out, mine, {}),
            ({}, mine, {}),
            (taken, {}, {}),
            (taken, theirs, {}),
            (taken | numbered, mine, {}),
            (taken | of_a_job, mine, {}),
            (taken, mine, {"ownerReferences": [job]}),
        ]
    ):
        meta = {"labels": marks, "annotations": notes, **more}
        await _refused_creation(people, PODS, _forged_pod(f"forged-{number}", **meta))
    # Of a group, without ever having been gated.
    meta = {"name": "member", "labels": taken | numbered, "annotations": group}
    await _refused_creation(people, PODS, {"metadata": meta, "spec": _pod_spec()})
    # Another user's name is refused without the gate, too. One's own name says nothing new.
    for marks in (out, taken, {}):
        meta = {"name": "plain", "labels": marks, "annotations": theirs}
        await _refused_creation(people, PODS, {"metadata": meta, "spec": _pod_spec()})
    meta = {"name": "plain", "labels": out, "annotations": mine}
    await people.admin.create(PODS, people.namespace, {"metadata": meta, "spec": _pod_spec()})


def _with(body: dict[str, Any], *path: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(body)
    at = changed
    for key in path[:-1]:
        at = at.setdefault(key, {})
    at[path[-1]] = value
    return changed


async def test_forged_jobs(people: People) -> None:
    """As of pods. Also by an edit of one that was created without the gate."""
    admin, namespace = people.admin, people.namespace
    good, inner = people.job_body("forged"), ("spec", "template", "metadata")
    marked = _with(good, *inner, "annotations", value={labels.GROUP: "gang 3-3"})
    for body in (
        _with(good, "metadata", "labels", value={labels.MANAGED: "false"}),
        _with(good, "metadata", "annotations", value={}),
        _with(good, "metadata", "annotations", value={labels.USER: "somebody-else"}),
        _with(good, *inner, "labels", value={labels.MANAGED: "false"}),
        _with(good, *inner, "labels", value={labels.MANAGED: "true", labels.JOBID: "3"}),
        _with(good, "spec", "managedBy", value="example.com/mine"),
        _with(good, "spec", "suspend", value=False),
        marked,
        _with(marked, *inner, "annotations", labels.USER, value="somebody-else"),
        _with(good, *inner, "annotations", value={labels.USER: "somebody-else"}),
        _with(good, *inner, "annotations", value={labels.PLACEMENT: "{}"}),
    ):
        await _refused_creation(people, JOBS, body)
    # Without its suspension it is queued only if its pods wait.
    gated = _with(good, "metadata", "annotations", labels.WAIT, value="gated")
    gated = _with(_with(gated, "spec", "suspend", value=False), "metadata", "name", value="gated")
    await admin.create(JOBS, namespace, gated)
    ungated = _with(good, "spec", "template", "spec", "schedulingGates", value=[])
    named = _with(ungated, *inner, "labels", labels.JOBID, value="3")
    await _refused_creation(people, JOBS, named)
    out = _with(ungated, "metadata", "labels", value={labels.MANAGED: "false"})
    theirs = _with(out, "metadata", "annotations", value={labels.USER: "somebody-else"})
    await _refused_creation(people, JOBS, theirs)
    await admin.create(JOBS, namespace, out)
    renamed = {"metadata": {"annotations": {labels.USER: "somebody-else"}}}
    await _refused(people, JOBS, "forged", renamed)
    gates = {"schedulingGates": [{"name": labels.GATE}]}
    relabel = {"labels": {labels.MANAGED: "true"}}
    edit = {"metadata": relabel, "spec": {"template": {"spec": gates}}}
    await _refused(people, JOBS, "forged", edit)
    await _refused(
        people,
        JOBS,
        "forged",
        {
            "spec": {
                "template": {
                    "metadata": {"labels": {labels.JOBID: "3"}},
                    "spec": {"nodeSelector": {labels.HOSTNAME: "n"}},
                }
            }
        },
    )


def _template_of(
    resource: ApiResource, name: str, user: str, *, inner: bool = False, **meta: Any
) -> dict[str, Any]:
    """An object with a template that names a user.

    ``inner``: of a CronJob, in the template of its pods and not in that of its Jobs.
    """
    app = {"app": name}
    stamp = {"annotations": {labels.USER: user}} if user else {}
    pods: dict[str, Any] = {"metadata": {"labels": app, **stamp}, "spec": _pod_spec()}
    pods["spec"]["restartPolicy"] = "Always"
    body: dict[str, Any] = {"metadata": {"name": name, **meta}}
    if resource is CRON_JOBS:
        pods["spec"]["restartPolicy"] = "Never"
        if not inner:
            pods["metadata"] = {}
        job = {"metadata": {} if inner else stamp, "spec": {"template": pods}}
        return body | {"spec": {"schedule": "0 0 1 1 *", "suspend": True, "jobTemplate": job}}
    if resource is CONTROLLER_REVISIONS:
        return body | {"revision": 1, "data": {"spec": {"template": {**pods, "$patch": "replace"}}}}
    selector = app if resource is REPLICATION_CONTROLLERS else {"matchLabels": app}
    return body | {"spec": {"replicas": 0, "selector": selector, "template": pods}}


def _stamp(path: str, user: str | None) -> list[dict[str, Any]]:
    place = f"{path}/metadata/annotations"
    if user is None:
        return [{"op": "remove", "path": place}]
    return [{"op": "add", "path": place, "value": {labels.USER: user}}]


async def _bind(people: People, *users: str, role: str = "edit") -> None:
    """Give users a role of Kubernetes' own in the namespace of the test."""
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"generateName": f"{role}-"},
        "subjects": [{"kind": "User", "name": user, "apiGroup": group} for user in users],
        "roleRef": {"kind": "ClusterRole", "name": role, "apiGroup": group},
    }
    await people.admin.create(ROLE_BINDINGS, people.namespace, binding)
    # A real server takes a moment until a binding counts.
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    asked = {"verb": "create", "group": "", "resource": "pods", "namespace": people.namespace}

    async def may(user: str) -> bool:
        body = {**review, "spec": {"resourceAttributes": asked}}
        answer = await people.admin.acting_as(user).request("POST", path, body=body)
        return bool(answer["status"]["allowed"])

    for user in users:
        await eventually(partial(may, user), f"{user} has the role {role}")


def _as(people: People, user: str) -> People:
    return replace(people, admin=people.admin.acting_as(user), user=user)


APPS = [DEPLOYMENTS, REPLICASETS, STATEFULSETS]
TEMPLATES = [*APPS, CONTROLLER_REVISIONS]
ONLY_REAL = [
    pytest.param("real", one, marks=pytest.mark.real_cluster, id=f"real-{one.plural}")
    for one in (CRON_JOBS, REPLICATION_CONTROLLERS)
]
BOTH = [
    pytest.param(
        kind,
        one,
        marks=[pytest.mark.real_cluster] if kind == "real" else [],
        id=f"{kind}-{one.plural}",
    )
    for kind in ("embedded", "real")
    for one in TEMPLATES
]


@pytest.mark.cases_long("the other kinds")
@pytest.mark.parametrize(("plane", "resource"), [*BOTH, *ONLY_REAL], indirect=["plane"])
async def test_forged_templates(people: People, resource: ApiResource) -> None:
    """A tenant names no other user in a template, by no operation. A controller copies what is
    there.
    """
    await _bind(people, MALLORY)
    # The role `edit` does not allow revisions. A role with all of `apps` may.
    mallory = people if resource is CONTROLLER_REVISIONS else _as(people, MALLORY)
    forged = _template_of(resource, "forged", "alice")
    await _refused_creation(mallory, resource, forged)
    owned = [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "hers", "uid": "u"}]
    generated = copy.deepcopy(forged)
    generated["metadata"] = {"generateName": "forged-", "ownerReferences": owned}
    generated["metadata"]["labels"] = {labels.MANAGED: "false"}
    await _refused_creation(mallory, resource, generated)
    if resource is CRON_JOBS:
        await _refused_creation(
            mallory, resource, _template_of(resource, "forged", "alice", inner=True)
        )
    # One's own name, or none, is nothing that another could be charged for.
    await mallory.admin.create(resource, people.namespace, _template_of(resource, "none", ""))
    mine = _template_of(resource, "mine", mallory.user)
    await mallory.admin.create(resource, people.namespace, mine)
    if resource is CONTROLLER_REVISIONS:
        return  # what it holds cannot be changed
    path = "/spec/jobTemplate" if resource is CRON_JOBS else "/spec/template"
    for name in ("none", "mine"):
        await _refused(mallory, resource, name, _stamp(path, "alice"))
        await _refused_apply(mallory, resource, _template_of(resource, name, "alice"))
    # The submitter that is stored may stay in any user's edit, and may go.
    bob = people
    change = [{"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}]
    await bob.admin.patch(resource, people.namespace, "mine", change, kind=PatchKind.JSON)
    await bob.admin.patch(
        resource, people.namespace, "mine", _stamp(path, None), kind=PatchKind.JSON
    )


async def _refused_apply(people: People, resource: ApiResource, body: dict[str, Any]) -> None:
    """Server-side apply, with force."""
    path = resource.path(people.namespace, body["metadata"]["name"])
    named = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
    with pytest.raises(ApiError) as caught:
        await people.admin.request(
            "PATCH",
            path,
            body=named,
            query={"fieldManager": "mallory", "force": "true"},
            content_type="application/apply-patch+yaml",
        )
    assert _is_refusal(caught.value), str(caught.value)


@pytest.mark.parametrize("resource", APPS)
async def test_no_subresource_writes_a_template(people: People, resource: ApiResource) -> None:
    """Of whatever the API server serves, by its own discovery."""
    await people.admin.create(
        resource, people.namespace, _template_of(resource, "mine", people.user)
    )
    served = (await people.admin.request("GET", "/apis/apps/v1"))["resources"]
    subresources = [
        one["name"].partition("/")[2]
        for one in served
        if one["name"].startswith(f"{resource.plural}/") and "patch" in one["verbs"]
    ]
    assert {"status", "scale"} <= set(subresources)
    forged = {"template": {"metadata": {"annotations": {labels.USER: "alice"}}}}
    for subresource in subresources:
        path = resource.path(people.namespace, "mine", subresource)
        said = await _said_to(people, path, {"spec": forged})
        assert said is None or "ValidatingAdmissionPolicy" in said or "strict" in said, said
        after = await people.admin.get(resource, people.namespace, "mine")
        notes = after["spec"]["template"]["metadata"]["annotations"]
        assert notes == {labels.USER: people.user}, subresource


async def test_controllers_hand_on_the_user_of_a_template(people: People) -> None:
    """And no other user: not with the label of a ReplicaSet, and not with its owner reference."""
    app = {"app": "web", labels.MANAGED: "true"}
    made_by = CONTROLLER.format("replicaset")
    await _bind(people, MALLORY, made_by, CONTROLLER.format("cronjob"))
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u"}
    meta = {"labels": app, "annotations": {labels.USER: "alice"}}
    meta |= {"ownerReferences": [{**owner, "controller": True}]}
    for gates in ([], [{"name": labels.GATE}]):
        pod = {"metadata": meta, "spec": {**_pod_spec(), "schedulingGates": gates}}
        name = f"web-{len(gates)}"
        await _refused_creation(
            _as(people, MALLORY), PODS, _with(pod, "metadata", "name", value=name)
        )
        controller = _as(people, made_by)
        await controller.admin.create(
            PODS, people.namespace, _with(pod, "metadata", "name", value=name)
        )
    # Only pods of Jobs are exempt: what other controllers make must be marked whole.
    unmarked = _forged_pod("odd", annotations={labels.USER: "alice"})
    await _refused_creation(_as(people, made_by), PODS, unmarked)
    job = people.job_body("nightly", annotations={labels.USER: "alice"})
    await _refused_creation(_as(people, MALLORY), JOBS, job)
    await _as(people, CONTROLLER.format("cronjob")).admin.create(JOBS, people.namespace, job)


async def test_a_gitops_account_names_the_user(people: People) -> None:
    """By its annotation alone, and the annotation counts for that account alone."""
    await _bind(people, GITOPS, MALLORY)
    tool, mallory = _as(people, GITOPS), _as(people, MALLORY)
    named = {labels.SUBMITTER: "alice"}
    for resource in APPS:
        good = _template_of(resource, f"good-{resource.plural}", "alice", annotations=named)
        await _refused_creation(mallory, resource, good)
        await tool.admin.create(resource, people.namespace, good)
        await _refused_creation(
            tool, resource, _template_of(resource, "bad", "bob", annotations=named)
        )
    pod = _forged_pod(
        "good", labels={labels.MANAGED: "true"}, annotations={labels.USER: "alice", **named}
    )
    await _refused_creation(mallory, PODS, pod)
    await tool.admin.create(PODS, people.namespace, pod)
    job = people.job_body("good", annotations={labels.USER: "alice", **named})
    await _refused_creation(mallory, JOBS, job)
    await tool.admin.create(JOBS, people.namespace, job)
    # What a repository says of the user itself is not believed.
    other = people.job_body("bad", annotations={labels.USER: "bob", **named})
    await _refused_creation(tool, JOBS, other)


async def _define(admin: KubeClient, resource: ApiResource) -> None:
    """Install a definition of any fields, with a status. Wait until it is served."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": resource.version, "served": True, "storage": True}
    version |= {"schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}}}
    names = {"plural": resource.plural, "kind": resource.kind}
    spec = {"group": resource.group, "scope": "Namespaced", "names": names, "versions": [version]}
    meta = {
        "name": f"{resource.plural}.{resource.group}",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
    }
    with suppress(Conflict):
        await admin.create(CRDS, None, {"metadata": meta, "spec": spec})

    async def is_served() -> bool:
        try:
            await admin.list(resource)
        except NotFound:
            return False
        return True

    await eventually(is_served, f"{resource.key} is served")


async def test_what_waits_suspended_names_its_user(people: People) -> None:
    """As long as it asks to be queued. The user that was stored before that was its author's."""
    await _define(people.admin, JOB_SET)
    admin, namespace = people.admin, people.namespace
    asks, out = {labels.MANAGED: "true"}, {labels.MANAGED: "false"}
    body = {"apiVersion": JOB_SET.api_version, "kind": "JobSet", "spec": {"suspend": True}}

    def named(name: str, marks: dict[str, str], user: str) -> dict[str, Any]:
        meta = {"name": name, "labels": marks, "annotations": {labels.USER: user}}
        return {**body, "metadata": meta}

    await _refused_creation(people, JOB_SET, named("forged", asks, "alice"))
    await admin.create(JOB_SET, namespace, named("free", out, "alice"))
    await _refused(people, JOB_SET, "free", {"metadata": {"labels": asks}})
    await admin.create(JOB_SET, namespace, named("mine", asks, people.user))
    forged = {"metadata": {"annotations": {labels.USER: "alice"}}}
    await _refused(people, JOB_SET, "mine", forged)
    await _said_to(people, JOB_SET.path(namespace, "mine", "status"), forged)
    stored = await admin.get(JOB_SET, namespace, "mine")
    assert stored["metadata"]["annotations"][labels.USER] == people.user
    # In two steps: it stops asking, changes its user, and asks again.
    both = {"labels": out, **forged["metadata"]}
    await admin.patch(JOB_SET, namespace, "mine", {"metadata": both})
    await _refused(people, JOB_SET, "mine", {"metadata": {"labels": asks}})
    await admin.patch(JOB_SET, namespace, "mine", {"metadata": {"annotations": {"a": "b"}}})


@pytest.mark.parametrize("part", ["leaderTemplate", "workerTemplate"])
async def test_forged_templates_of_leader_worker_sets(people: People, part: str) -> None:
    """Their controller copies these into StatefulSets, if it is named as one that may."""
    await _define(people.admin, LEADER_WORKER_SET)
    body = {"apiVersion": LEADER_WORKER_SET.api_version, "kind": LEADER_WORKER_SET.kind}

    def named(user: str) -> dict[str, Any]:
        template = {"metadata": {"annotations": {labels.USER: user}}, "spec": {}}
        spec = {"leaderWorkerTemplate": {"size": 2, part: template}}
        return {**body, "metadata": {"name": f"lws-{part.lower()}"}, "spec": spec}

    await _refused_creation(people, LEADER_WORKER_SET, named("alice"))
    await people.admin.create(LEADER_WORKER_SET, people.namespace, named(people.user))
    forged = {"spec": named("alice")["spec"]}
    await _refused(people, LEADER_WORKER_SET, f"lws-{part.lower()}", forged)


async def test_a_released_pod_keeps_its_user(people: People) -> None:
    """Also by subresources. Its owner may change all else, and so may fluxqueue."""
    admin, namespace = people.admin, people.namespace
    pod = await people.pod("member", labels.GATE)
    to = Destination("n", "n")
    patch = ungate_patch(pod["metadata"]["uid"], to=to, jobid=1, nodes="n")
    await people.worker.patch(PODS, namespace, "member", patch, kind=PatchKind.STRATEGIC)
    for change in (
        {"annotations": {labels.USER: "alice"}},
        {"annotations": {labels.USER: None}},
        {"annotations": {labels.GROUP: "gang 2-2"}},
        {"labels": {labels.JOBID: None}},
        {"labels": {labels.OF_A_BATCH_JOB: "u"}},
    ):
        await _refused(people, PODS, "member", {"metadata": change})
        path = PODS.path(namespace, "member", "status")
        assert "queued-members" in (await _said_to(people, path, {"metadata": change}) or "")
    await admin.patch(PODS, namespace, "member", {"metadata": {"labels": {"a": "b"}}})


def _marks(resource: ApiResource, meta: dict[str, Any]) -> list[dict[str, str]]:
    """What we go by. Number and group stand in the template of a BatchJob, not on itself."""
    inner = {labels.JOBID, labels.GROUP} if resource is JOBS else set()
    return [
        {key: value for key, value in (meta.get(place) or {}).items() if key not in inner}
        for place in ("labels", "annotations")
    ]


async def _said_to(people: People, path: str, patch: dict[str, Any]) -> str | None:
    """Patch as the administrator. Why it was refused, None where it was not."""
    try:
        kind = "application/merge-patch+json"
        await people.admin.request("PATCH", path, body=patch, content_type=kind)
    except ApiError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("api", "resource"), [("/api/v1", PODS), ("/apis/batch/v1", JOBS)])
async def test_no_subresource_writes_our_marks(
    people: People, api: str, resource: ApiResource
) -> None:
    """Whatever the API server serves of queued work, by the discovery of that very server."""
    await (people.pod("queued", labels.GATE) if resource is PODS else people.job("queued"))
    served = (await people.admin.request("GET", api))["resources"]
    subresources = [
        one["name"].partition("/")[2]
        for one in served
        if one["name"].startswith(f"{resource.plural}/")
        and one["kind"] == resource.kind
        and "patch" in one["verbs"]
    ]
    assert "status" in subresources
    for subresource in subresources:
        path = resource.path(people.namespace, "queued", subresource)
        before = (await people.admin.get(resource, people.namespace, "queued"))["metadata"]
        for patch in (
            {"labels": {labels.JOBID: "1"}},
            {"labels": {labels.MANAGED: None}},
            {"labels": {labels.MANAGED: "false"}},
            {"annotations": {labels.USER: "somebody-else"}},
            {"annotations": {labels.AUTHOR_SUSPENDED: "true"}},
            {"annotations": {labels.GROUP: "gang 2-2"}},
        ):
            said = await _said_to(people, path, {"metadata": patch})
            assert said is None or "-fluxqueue-queued" in said, (subresource, patch, said)
            # Or it is accepted and has no effect: then the subresource ignores metadata.
            after = (await people.admin.get(resource, people.namespace, "queued"))["metadata"]
            assert _marks(resource, after) == _marks(resource, before), (subresource, patch)


async def test_a_released_template_is_edited_in_the_queue_alone(people: People) -> None:
    """Suspended and edited before its gate is back, its pods would run in a slot of others."""
    admin, namespace = people.admin, people.namespace
    job = await people.job("pinned")
    uid, to = job["metadata"]["uid"], Destination("n", "n", is_labelled_index=True)
    pin = pin_patch(uid, to=to, jobid=5, nodes="n")
    await people.worker.patch(JOBS, namespace, "pinned", pin, kind=PatchKind.STRATEGIC)
    await admin.patch(JOBS, namespace, "pinned", {"spec": {"suspend": True}})

    async def is_idle() -> bool:
        found = (await admin.get(JOBS, namespace, "pinned")).get("status") or {}
        suspended = (c for c in found.get("conditions") or () if c["type"] == "Suspended")
        return not found.get("active") and any(c["status"] == "True" for c in suspended)

    await eventually(is_idle, "none of its pods is left, so its template may be edited")
    for template in (
        {"spec": {"nodeSelector": {"a": "b"}}},
        {"spec": {"nodeSelector": {labels.HOSTNAME: "elsewhere"}}},
        {"metadata": {"labels": {labels.JOBID: None}}},
        {"metadata": {"labels": {labels.JOBID: "6"}}},
    ):
        await _refused(people, JOBS, "pinned", {"spec": {"template": template}})
    # (Of a Job that has no label left the API server makes those of its template its own.)
    relabel = {"metadata": {"labels": {labels.MANAGED: "false"}}}
    await _refused(people, JOBS, "pinned", relabel)
    # As admission has it: the gate comes back with the edit.
    undo = {
        "metadata": {"labels": {labels.JOBID: None}},
        "spec": {
            "schedulingGates": [{"name": labels.GATE}],
            "nodeSelector": {labels.HOSTNAME: None, "a": "b"},
        },
    }
    await admin.patch(JOBS, namespace, "pinned", {"spec": {"template": undo}})
    await admin.patch(JOBS, namespace, "pinned", {"spec": {"suspend": False}})


async def test_a_pinned_job_that_was_made_smaller_stays_so_while_it_runs(people: People) -> None:
    """Its pods come without the gate, and the slots of those that left were returned."""
    admin, at = people.admin, (JOBS, people.namespace)
    to = Destination("n", "n", is_labelled_index=True)
    for name in ("smaller", "gated"):
        job = await people.job(name)
        await admin.patch(*at, name, {"spec": {"parallelism": 3}}, kind=PatchKind.MERGE)
        if name == "smaller":
            pin = pin_patch(job["metadata"]["uid"], to=to, jobid=5, nodes="n")
        else:
            pin = resume_patch(job["metadata"]["uid"])
        await people.worker.patch(*at, name, pin, kind=PatchKind.STRATEGIC)
        await admin.patch(*at, name, {"spec": {"parallelism": 1}}, kind=PatchKind.MERGE)
    said = await _refused(people, JOBS, "smaller", {"spec": {"parallelism": 2}})
    assert "fluxqueue requeue" in said
    await admin.patch(*at, "smaller", {"spec": {"parallelism": 0}}, kind=PatchKind.MERGE)
    await _refused(people, JOBS, "smaller", {"spec": {"parallelism": 1}})
    await admin.patch(*at, "gated", {"spec": {"parallelism": 3}}, kind=PatchKind.MERGE)
    await admin.patch(*at, "smaller", {"spec": {"suspend": True}}, kind=PatchKind.MERGE)
    await admin.patch(*at, "smaller", {"spec": {"parallelism": 3}}, kind=PatchKind.MERGE)


@pytest.mark.parametrize("plane", REAL, indirect=True)  # the embedded cluster resizes no pods
async def test_a_queued_pod_keeps_its_size(people: People) -> None:
    marks = {"labels": {labels.MANAGED: "true"}, "annotations": {labels.USER: people.user}}
    body = _forged_pod("queued", **marks)
    (container,) = body["spec"]["containers"]
    container["resources"] = {"requests": {"cpu": "1"}}
    await people.admin.create(PODS, people.namespace, body)
    larger = {**container, "resources": {"requests": {"cpu": "9"}}}
    path = PODS.path(people.namespace, "queued", "resize")
    said = await _said_to(people, path, {"spec": {"containers": [larger]}})
    assert "the requests of a queued pod cannot be changed" in (said or "")


async def test_a_queued_pod_can_be_deleted(people: People) -> None:
    await people.pod("unwanted", labels.GATE)
    await people.admin.delete(PODS, people.namespace, "unwanted", grace_s=0)
    with pytest.raises(NotFound):
        await people.admin.get(PODS, people.namespace, "unwanted")


async def test_what_is_not_ours_is_not_looked_at(people: People) -> None:
    await people.pod("foreign", OTHER_GATE)
    patch = [*_remove_gate(0), {"op": "remove", "path": "/metadata/labels"}]
    await people.admin.patch(PODS, people.namespace, "foreign", patch, kind=PatchKind.JSON)
    body = {
        "metadata": {"name": "foreign"},
        "spec": {"suspend": True, "template": {"spec": _pod_spec()}},
    }
    await people.admin.create(JOBS, people.namespace, body)
    await people.admin.patch(JOBS, people.namespace, "foreign", {"spec": {"suspend": False}})


async def test_what_is_not_managed_is_not_looked_at(people: People) -> None:
    """A gate set by hand in a namespace that has opted out is its author's."""
    out = await _namespace(
        people.admin, {"generateName": "test-", "labels": {labels.MANAGED: "false"}}
    )
    there = replace(people, namespace=out)
    try:
        await there.pod("by-hand", labels.GATE)
        await there.admin.patch(PODS, out, "by-hand", _remove_gate(0), kind=PatchKind.JSON)
        await there.job("by-hand")
        await there.admin.patch(JOBS, out, "by-hand", {"spec": {"suspend": False}})
    finally:
        await there.admin.delete(NAMESPACES, None, out)


async def test_jobs(people: People) -> None:
    """A queued Job stays suspended, gated and labelled, whichever way one tries."""
    admin, namespace = people.admin, people.namespace
    job = await people.job("queued")
    assert "room for all" in await _refused(people, JOBS, "queued", {"spec": {"suspend": False}})
    gates = [{"op": "remove", "path": "/spec/template/spec/schedulingGates"}]
    await _refused(people, JOBS, "queued", gates)
    await _refused(people, JOBS, "queued", {"metadata": {"labels": {labels.MANAGED: "false"}}})
    replaced = copy.deepcopy(job)
    replaced["spec"]["suspend"] = False
    del replaced["metadata"]["resourceVersion"]
    with pytest.raises(ApiError) as caught:
        await admin.replace(JOBS, namespace, "queued", replaced)
    assert _is_refusal(caught.value)

    for key in (labels.USER, labels.AUTHOR_SUSPENDED):
        said = await _refused(people, JOBS, "queued", {"metadata": {"annotations": {key: "true"}}})
        assert key in said

    numbered = {"spec": {"template": {"metadata": {"labels": {labels.JOBID: "1"}}}}}
    assert "on released work" in await _refused(people, JOBS, "queued", numbered)

    for key in (labels.USER, labels.GROUP, labels.PLACEMENT):
        marked = {"spec": {"template": {"metadata": {"annotations": {key: "gang 3-3"}}}}}
        assert key in await _refused(people, JOBS, "queued", marked)

    # Parallelism, deadline, other annotations: its owner's.
    change = {"spec": {"parallelism": 1}, "metadata": {"annotations": {"a": "b"}}}
    await admin.patch(JOBS, namespace, "queued", change)
    await people.worker.patch(
        JOBS, namespace, "queued", resume_patch(job["metadata"]["uid"]), kind=PatchKind.STRATEGIC
    )
    # What runs may be suspended by its owner, and resumed.
    for is_suspended in (True, False):
        await admin.patch(JOBS, namespace, "queued", {"spec": {"suspend": is_suspended}})


async def test_authors_unsuspend_what_they_suspended(people: People) -> None:
    await people.job("held", annotations={labels.AUTHOR_SUSPENDED: "true"})
    patch = {"spec": {"suspend": False}}
    await people.admin.patch(JOBS, people.namespace, "held", patch)


@pytest.mark.parametrize("plane", REAL, indirect=True)  # the embedded cluster has no CronJobs
async def test_controllers_unsuspend_their_jobs_and_cron_jobs_do_not(people: People) -> None:
    """A JobSet says `run` again and again, and would fail for ever. Its pods are gated anyway."""
    template = {"spec": {"template": {"spec": _pod_spec()}}}
    cron_job = await people.admin.create(
        CRON_JOBS,
        people.namespace,
        {
            "metadata": {"name": "nightly"},
            "spec": {"schedule": "0 0 1 1 *", "suspend": True, "jobTemplate": template},
        },
    )
    owner = {"name": "nightly", "uid": cron_job["metadata"]["uid"], "controller": True}
    by_set = {**owner, "kind": "JobSet", "apiVersion": "jobset.x-k8s.io/v1alpha2"}
    by_cron = {**owner, "kind": "CronJob", "apiVersion": "batch/v1"}
    await people.job("of-a-set", ownerReferences=[by_set])
    await people.job("of-a-cron-job", ownerReferences=[by_cron])
    run = {"spec": {"suspend": False}}
    await people.admin.patch(JOBS, people.namespace, "of-a-set", run)
    await _refused(people, JOBS, "of-a-cron-job", run)


async def test_the_job_controller_is_not_hindered(people: People, plane: Plane) -> None:
    """From suspension to completion under the policy: gated pods, finalizers, status, deletion."""
    shape = NodeShape("policy-node", cpu="8")
    async with SimulatedNodes(plane.config, [shape]):
        try:
            await _run_to_its_end(people, shape.name)
        finally:
            await people.admin.delete(NODES, None, shape.name)


async def _run_to_its_end(people: People, node: str) -> None:
    admin, namespace = people.admin, people.namespace
    job = await people.job("whole")
    await people.worker.patch(
        JOBS, namespace, "whole", resume_patch(job["metadata"]["uid"]), kind=PatchKind.STRATEGIC
    )

    async def pods() -> list[dict[str, Any]] | None:
        found = await people.pods_of("whole")
        return found if len(found) == 2 else None

    for pod in await eventually(pods, "the Job's pods"):
        await _refused(people, PODS, pod["metadata"]["name"], _remove_gate(0))
        to = Destination(node, node, is_labelled_index=True)
        patch = ungate_patch(pod["metadata"]["uid"], to=to, jobid=1, nodes=node)
        name = pod["metadata"]["name"]
        await people.worker.patch(PODS, namespace, name, patch, kind=PatchKind.STRATEGIC)

    async def is_complete() -> bool:
        found = await admin.get(JOBS, namespace, "whole")
        return any(one["type"] == "Complete" for one in found["status"].get("conditions", ()))

    await eventually(is_complete, "the Job is complete")

    # One that is deleted while its pods are gated: the controller takes its finalizers off them.
    job = await people.job("unwanted")
    await people.worker.patch(
        JOBS, namespace, "unwanted", resume_patch(job["metadata"]["uid"]), kind=PatchKind.STRATEGIC
    )

    async def has_pods() -> bool:
        return len(await people.pods_of("unwanted")) == 2

    await eventually(has_pods, "pods of the unwanted Job")
    await admin.delete(JOBS, namespace, "unwanted", propagation="Background")

    async def is_gone() -> bool:
        return not await people.pods_of("unwanted")

    await eventually(is_gone, "nothing of it is left")
