"""The submitter of what a controller makes: each of two users has a limit of their own.

Every kind in turn: alice has two objects, bob one, and a queue lets each user run one job. Hostile
tenants are tried at the API server in ``tests/chart/test_gate_policy.py`` and here with all parts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.errors import ApiError, Conflict, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import (
    CLUSTER_ROLES,
    CRON_JOBS,
    DEPLOYMENTS,
    FLUXJOBS,
    JOBS,
    PODS,
    REPLICASETS,
    ROLE_BINDINGS,
    STATEFULSETS,
    ApiResource,
)
from fluxqueue.workload import labels
from tests.support.e2e.custom_kinds import JOB_SET, define
from tests.support.e2e.database import empty, everybody_killed
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.operators import Operators
from tests.support.e2e.owned_pods import template
from tests.support.e2e.queues import Queues
from tests.support.e2e.replica_sets import a_set
from tests.support.e2e.space import Space
from tests.support.owners import job_set_spec
from tests.support.waiting import eventually

ALICE, BOB, MALLORY = "alice", "bob@example.com", "mallory"
LIMIT = "limits.perUser.jobs is 1"
RBAC = "rbac.authorization.k8s.io"
REAL = [pytest.param("real", marks=pytest.mark.real_cluster)]
MINUTELY = {"schedule": "* * * * *", "concurrencyPolicy": "Forbid"}


@dataclass(slots=True)
class Tenants:
    """Users with the role ``edit`` in one namespace, and a queue that lets each run one job."""

    space: Space
    queue: str
    made: list[tuple[ApiResource, str]] = field(default_factory=list)

    def of(self, user: str) -> KubeClient:
        """The API server as this user."""
        return self.space.client.acting_as(user)

    async def create(self, user: str, resource: ApiResource, body: Obj) -> Obj:
        """Create an object as this user. It is deleted after the test."""
        made = await self.of(user).create(resource, self.space.name, body)
        self.made.append((resource, made["metadata"]["name"]))
        return made

    async def users(self) -> dict[str, str]:
        """Which user each FluxJob of the namespace counts for, by its name."""
        found = (await self.space.client.list(FLUXJOBS, self.space.name)).items
        return {one["metadata"]["name"]: one["spec"].get("user", "") for one in found}

    async def until_running(self, fluxjob: str, user: str) -> None:
        """Wait until a FluxJob runs, and counts for this user, in its row as well."""

        async def look() -> bool:
            found = await self._fluxjob(fluxjob)
            return (found.get("status") or {}).get("state") == "Running"

        await eventually(look, f"{fluxjob} runs")
        assert (await self._fluxjob(fluxjob))["spec"]["user"] == user
        sql = "SELECT user_name FROM fluxjobs WHERE namespace = :space AND name = :name"
        rows = await self.space.world.rows(sql, space=self.space.name, name=fluxjob)
        assert [row["user_name"] for row in rows] == [user]

    async def until_limited(self, fluxjob: str) -> None:
        """Wait until a FluxJob waits for its user's own limit."""

        async def look() -> bool:
            found = await self._fluxjob(fluxjob)
            return LIMIT in (found.get("status") or {}).get("reason", "")

        await eventually(look, f"{fluxjob} waits for its user's limit")

    async def _fluxjob(self, name: str) -> Obj:
        try:
            return await self.space.client.get(FLUXJOBS, self.space.name, name)
        except NotFound:
            return {}


@pytest_asyncio.fixture(loop_scope="session")
async def tenants(space: Space) -> AsyncIterator[Tenants]:
    """Three of them. All that they have made is gone after the test."""
    queues = Queues(space)
    await queues.make("fair", limits={"perUser": {"jobs": 1}})
    rules = [{"apiGroups": [JOB_SET.group], "resources": ["*"], "verbs": ["*"]}]
    role = {"metadata": {"name": "e2e-jobset-editor"}, "rules": rules}
    with suppress(Conflict):
        await space.client.create(CLUSTER_ROLES, None, role)
    for name in ("edit", "e2e-jobset-editor"):
        binding = {
            "metadata": {"name": name},
            "subjects": [
                {"kind": "User", "name": user, "apiGroup": RBAC} for user in (ALICE, BOB, MALLORY)
            ],
            "roleRef": {"kind": "ClusterRole", "name": name, "apiGroup": RBAC},
        }
        await space.client.create(ROLE_BINDINGS, space.name, binding)
    found = Tenants(space, queues.name("fair"))
    yield found
    for resource, name in found.made:
        with suppress(NotFound):
            await space.delete(name, resource)
    await eventually(partial(_is_empty, space), "all FluxJobs are gone")
    await queues.delete("fair")


async def _is_empty(space: Space) -> bool:
    return not (await space.client.list(FLUXJOBS, space.name)).items


def a_queued_set(tenants: Tenants, resource: ApiResource, name: str, **more: Any) -> Obj:
    """A set with a template that asks to be queued, and names the queue."""
    made = a_set(resource, name, replicas=1, **more)
    made["spec"]["template"]["metadata"]["labels"][labels.QUEUE] = tenants.queue
    return made


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
@pytest.mark.parametrize("where", ["template", "object"])
@pytest.mark.parametrize("resource", [DEPLOYMENTS, REPLICASETS, STATEFULSETS])
async def test_each_user_has_a_limit_of_their_own_for_sets(
    tenants: Tenants, resource: ApiResource, where: str
) -> None:
    """Whether the set asks in its template or on itself. No controller's name is charged."""
    kind = resource.kind.lower()
    for user, name in ((ALICE, "a1"), (BOB, "b1")):
        body = a_queued_set(tenants, resource, name)
        if where == "object":
            del body["spec"]["template"]["metadata"]["labels"][labels.MANAGED]
            body["metadata"]["labels"] = {labels.MANAGED: "true"}
        await tenants.create(user, resource, body)
        await tenants.until_running(f"{name}-{kind}", user)
    await tenants.create(ALICE, resource, a_queued_set(tenants, resource, "a2"))
    await tenants.until_limited(f"a2-{kind}")
    await tenants.space.client.delete(resource, tenants.space.name, "a1", propagation="Background")
    await tenants.until_running(f"a2-{kind}", ALICE)


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_each_user_has_a_limit_of_their_own_for_what_waits_suspended(
    tenants: Tenants,
) -> None:
    """A JobSet of alice waits for her first one, and bob's runs beside that."""
    await define(tenants.space, JOB_SET)
    async with Operators(tenants.space):
        for user, name in ((ALICE, "a1"), (BOB, "b1"), (ALICE, "a2")):
            meta = {"name": name, "labels": {labels.MANAGED: "true", labels.QUEUE: tenants.queue}}
            spec = job_set_spec(node=(1, template(run=FOR_EVER)))
            kind = {"apiVersion": JOB_SET.api_version, "kind": JOB_SET.kind}
            await tenants.create(user, JOB_SET, {**kind, "metadata": meta, "spec": spec})
            if name != "a2":
                await tenants.until_running(f"{name}-jobset", user)
        await tenants.until_limited("a2-jobset")
        await tenants.space.delete("a1", JOB_SET)
        await tenants.until_running("a2-jobset", ALICE)
        for name in ("a2", "b1"):
            await tenants.space.delete(name, JOB_SET)
        await eventually(partial(_is_empty, tenants.space), "all FluxJobs are gone")


@pytest.mark.long("a CronJob makes a Job once a minute")
@pytest.mark.parametrize("cluster_kind", REAL, indirect=True)
async def test_each_user_has_a_limit_of_their_own_for_cron_jobs(tenants: Tenants) -> None:
    """The CronJob controller's own Jobs."""
    for user, name in ((ALICE, "a1"), (BOB, "b1"), (ALICE, "a2")):
        made = job("x", pool="main", run=FOR_EVER)
        meta = {"labels": {labels.QUEUE: tenants.queue}}
        spec = {**MINUTELY, "jobTemplate": {"metadata": meta, "spec": made["spec"]}}
        await tenants.create(user, CRON_JOBS, {"metadata": {"name": name}, "spec": spec})

    async def are_made() -> bool:
        return len(await tenants.users()) == 3

    await eventually(are_made, "a Job of each CronJob", timeout_s=90)
    told = {name.partition("-")[0]: user for name, user in (await tenants.users()).items()}
    assert told == {"a1": ALICE, "a2": ALICE, "b1": BOB}

    async def is_so() -> bool:
        found = (await tenants.space.client.list(FLUXJOBS, tenants.space.name)).items
        states = sorted((one.get("status") or {}).get("state", "") for one in found)
        limited = [one for one in found if LIMIT in (one.get("status") or {}).get("reason", "")]
        return states == ["Pending", "Running", "Running"] and len(limited) == 1

    await eventually(is_so, "one Job of each user runs")


async def test_the_first_submitter_stays(tenants: Tenants) -> None:
    """Any user may edit, scale or replace it. Only a change of the template begins a rollout."""
    space = tenants.space
    await tenants.create(ALICE, DEPLOYMENTS, a_queued_set(tenants, DEPLOYMENTS, "web"))
    await tenants.until_running("web-deployment", ALICE)
    bob = tenants.of(BOB)
    before = await bob.get(DEPLOYMENTS, space.name, "web")
    await bob.patch(DEPLOYMENTS, space.name, "web", {"spec": {"replicas": 2}})
    path = DEPLOYMENTS.path(space.name, "web", "scale")
    body = {"spec": {"replicas": 1}}
    await bob.request("PATCH", path, body=body, content_type="application/merge-patch+json")
    # As `kubectl replace` with a manifest that was written before admission.
    replaced = a_queued_set(tenants, DEPLOYMENTS, "web")
    await bob.replace(DEPLOYMENTS, space.name, "web", replaced)
    after = await bob.get(DEPLOYMENTS, space.name, "web")
    assert after["spec"]["template"] == before["spec"]["template"]
    replaced["spec"]["template"]["metadata"]["annotations"]["version"] = "2"
    await bob.replace(DEPLOYMENTS, space.name, "web", replaced)

    async def is_rolled() -> bool:
        pods = (await space.client.list(PODS, space.name)).items
        notes = [pod["metadata"]["annotations"] for pod in pods]
        return [note.get("version") for note in notes] == ["2"]

    await eventually(is_rolled, "the new version")
    await tenants.until_running("web-deployment", ALICE)
    assert set((await tenants.users()).values()) == {ALICE}


async def _is_refused(create: Awaitable[Any]) -> None:
    with pytest.raises(ApiError, match="another user"):
        await create


def _forge(body: Obj) -> Obj:
    body["spec"]["template"]["metadata"].setdefault("annotations", {})[labels.USER] = ALICE
    return body


async def test_a_tenant_cannot_charge_another(tenants: Tenants) -> None:
    """Templates, owner references and labels of alice's Deployment: what mallory makes is hers."""
    space, mallory = tenants.space, tenants.of(MALLORY)
    await tenants.create(ALICE, DEPLOYMENTS, a_queued_set(tenants, DEPLOYMENTS, "web"))
    await tenants.until_running("web-deployment", ALICE)
    (hers,) = (await mallory.list(REPLICASETS, space.name)).items
    (pod,) = (await mallory.list(PODS, space.name)).items

    # A stamp in a template: overwritten where admission looks, refused where it does not.
    forged = await tenants.create(
        MALLORY, REPLICASETS, _forge(a_queued_set(tenants, REPLICASETS, "forged"))
    )
    notes = forged["spec"]["template"]["metadata"]["annotations"]
    assert notes[labels.USER] == MALLORY
    await tenants.until_running("forged-replicaset", MALLORY)
    plain = _forge(a_set(REPLICASETS, "plain", replicas=1))
    del plain["spec"]["template"]["metadata"]["labels"][labels.MANAGED]
    await _is_refused(mallory.create(REPLICASETS, space.name, plain))
    asks = {"labels": {labels.MANAGED: "false"}, "generateName": "out-"}
    out = _forge(a_queued_set(tenants, REPLICASETS, "out")) | {"metadata": asks}
    await _is_refused(mallory.create(REPLICASETS, space.name, out))

    # Pods that look like alice's: her labels, her ReplicaSet as their owner, her name.
    meta = {
        "labels": pod["metadata"]["labels"],
        "annotations": {labels.USER: ALICE},
        "ownerReferences": hers["metadata"]["ownerReferences"],
    }
    del meta["labels"][labels.JOBID]
    body = bare_pod("leech", nodeSelector={"pool": "main"}, run=FOR_EVER)
    meta["annotations"] |= body["metadata"]["annotations"]
    leech = await tenants.create(
        MALLORY, PODS, {**body, "metadata": {**meta, "generateName": "leech-"}}
    )
    assert leech["metadata"]["annotations"][labels.USER] == MALLORY

    # A ReplicaSet of hers below alice's Deployment.
    below = a_queued_set(tenants, REPLICASETS, "below")
    below["metadata"]["ownerReferences"] = hers["metadata"]["ownerReferences"]
    await tenants.create(MALLORY, REPLICASETS, below)

    async def are_told_apart() -> bool:
        users = await tenants.users()
        return len(users) >= 3 and set(users.values()) == {ALICE, MALLORY}

    await eventually(are_told_apart, "what mallory makes is hers")
    users = await tenants.users()
    assert [name for name, user in users.items() if user == ALICE] == ["web-deployment"]
    assert all(not user.startswith("system:") for user in users.values())

    # No other name in a request: impersonation needs a right that `edit` does not have.
    for name in (ALICE, "system:serviceaccount:kube-system:replicaset-controller"):
        pretender = _pretending(space, MALLORY, name)
        assert not await pretender()
    live = {"metadata": {"annotations": {labels.USER: ALICE}}}
    own = leech["metadata"]["name"]
    with pytest.raises(ApiError, match="cannot be changed"):
        await mallory.patch(PODS, space.name, own, live)
    for subresource in ("ephemeralcontainers", "resize"):
        path = PODS.path(space.name, own, subresource)
        kind = "application/merge-patch+json"
        with suppress(ApiError):
            await mallory.request("PATCH", path, body=live, content_type=kind)
        stored = await mallory.get(PODS, space.name, own)
        assert stored["metadata"]["annotations"][labels.USER] == MALLORY


def _pretending(space: Space, user: str, as_user: str) -> Callable[[], Awaitable[bool]]:
    """Whether the API server would let a user impersonate another."""

    async def ask() -> bool:
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {
                "resourceAttributes": {"verb": "impersonate", "resource": "users", "name": as_user}
            },
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = await space.client.acting_as(user).request("POST", path, body=body)
        return bool(answer["status"]["allowed"])

    return ask


@pytest.mark.long("seconds of processor time for a crash that a cheaper test covers in parts")
@pytest.mark.slow
async def test_an_empty_database_learns_who_submitted_what(tenants: Tenants) -> None:
    """From the FluxJobs and from the objects themselves, with and without FluxJobs."""
    space = tenants.space
    await tenants.create(ALICE, DEPLOYMENTS, a_queued_set(tenants, DEPLOYMENTS, "web"))
    await tenants.until_running("web-deployment", ALICE)
    alone = job("alone", pool="main", run=FOR_EVER)
    await tenants.create(BOB, JOBS, alone)
    await tenants.until_running("alone-job", BOB)
    waiting = a_queued_set(tenants, DEPLOYMENTS, "next")
    await tenants.create(ALICE, DEPLOYMENTS, waiting)
    await tenants.until_limited("next-deployment")
    expected = {"web-deployment": ALICE, "alone-job": BOB, "next-deployment": ALICE}
    assert await tenants.users() == expected
    for takes_fluxjobs in (False, True):
        async with everybody_killed(space.world.stack):
            await empty(space.world.stack)
            if takes_fluxjobs:
                await space.client.delete(FLUXJOBS, space.name, "next-deployment")

        async def are_told() -> bool:
            rows = await space.world.rows(
                "SELECT name, user_name FROM fluxjobs WHERE namespace = :space", space=space.name
            )
            return {row["name"]: row["user_name"] for row in rows} == expected

        await eventually(are_told, "rows of all, with their users", timeout_s=120)
        await tenants.until_limited("next-deployment")
        assert await tenants.users() == expected
