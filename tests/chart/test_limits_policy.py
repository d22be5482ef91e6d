"""The admission policy on limits, enforced by an API server: raises of a released job.

The webhook is not there, so the objects are written as it and a release leave them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.errors import ApiError, Conflict
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CRDS,
    JOBS,
    NAMESPACES,
    PODS,
    ApiResource,
)
from fluxqueue.workload.labels import MANAGED
from tests.chart.rendering import render
from tests.support.embedded_plane import Plane
from tests.support.policies import POLICIES
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(240)

RELEASE = "limited"
USER, OPERATOR = "anna", "olaf"
TRAIN_JOBS = ApiResource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob", True)
MPI_JOBS = ApiResource("kubeflow.org", "v2beta1", "mpijobs", "MPIJob", True)
PODS_OF_JOB = {
    "restartPolicy": "Never",
    "containers": [{"name": "c", "image": "busybox"}],
}
LIMIT_S = 20


def definition(of: ApiResource) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": of.version, "served": True, "storage": True}
    return {
        "metadata": {"name": of.key},
        "spec": {
            "group": of.group,
            "scope": "Namespaced",
            "names": {"plural": of.plural, "kind": of.kind, "singular": of.kind.lower()},
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


@dataclass
class Space:
    """A namespace in which both may change work."""

    admin: KubeClient
    namespace: str

    async def make(self, resource: ApiResource, spec: dict[str, Any], **marks: str) -> str:
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"generateName": "a-", "labels": {MANAGED: "true"} | marks},
            "spec": spec,
        }
        made = await self.admin.create(resource, self.namespace, body)
        return str(made["metadata"]["name"])

    async def job(
        self, *, suspend: bool = False, limit_s: int | None = LIMIT_S, **marks: str
    ) -> str:
        spec = {"suspend": suspend, "template": {"spec": PODS_OF_JOB}}
        limit = {} if limit_s is None else {"activeDeadlineSeconds": limit_s}
        return await self.make(JOBS, spec | limit, **marks)

    async def edit(self, who: str, name: str, spec: dict[str, Any], of: ApiResource = JOBS) -> None:
        await self.admin.acting_as(who).patch(of, self.namespace, name, {"spec": spec})


@pytest_asyncio.fixture
async def space(plane: Plane) -> AsyncIterator[Space]:
    """The policy in force, with one user and one operator. All of it gone after the test."""
    rendered = render(name=RELEASE)
    made: list[tuple[ApiResource, dict[str, Any]]] = [
        (CRDS, definition(one)) for one in (TRAIN_JOBS, MPI_JOBS)
    ]
    made += [
        (POLICIES[one["kind"]], one)
        for one in rendered
        if one["kind"] in POLICIES and one["metadata"]["name"].endswith(("-limits", "-graces"))
    ]
    rules = [
        {"apiGroups": ["*"], "resources": ["jobs", "pods", "trainjobs", "mpijobs"], "verbs": ["*"]}
    ]
    made.append((CLUSTER_ROLES, {"metadata": {"name": "works"}, "rules": rules}))
    operator = f"{RELEASE}-fluxqueue-operator"
    made += [
        (CLUSTER_ROLES, one)
        for one in rendered
        if one["kind"] == "ClusterRole" and one["metadata"]["name"] == operator
    ]
    for role, people in (("works", (USER, OPERATOR)), (operator, (OPERATOR,))):
        binding = {
            "metadata": {"name": role},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": role,
            },
            "subjects": [{"kind": "User", "name": one} for one in people],
        }
        made.append((CLUSTER_ROLE_BINDINGS, binding))
    async with KubeClient(plane.config) as admin, AsyncExitStack() as exits:
        for resource, one in made:
            # The definitions of the test before may still be on their way out.
            await eventually(partial(_is_made, admin, resource, one), f"{one['metadata']} is made")
            exits.push_async_callback(admin.delete, resource, None, one["metadata"]["name"])
        body = {"metadata": {"generateName": "test-"}}
        namespace = (await admin.create(NAMESPACES, None, body))["metadata"]["name"]
        exits.push_async_callback(admin.delete, NAMESPACES, None, namespace)
        # The chart manages only namespaces that ask.
        await admin.patch(NAMESPACES, None, namespace, {"metadata": {"labels": {MANAGED: "true"}}})
        there = Space(admin, namespace)
        await eventually(lambda: _is_in_force(there), "policy and roles are in force")
        yield there


async def _is_made(admin: KubeClient, resource: ApiResource, one: dict[str, Any]) -> bool:
    try:
        await admin.create(resource, None, one)
    except Conflict:
        return False
    return True


async def _is_in_force(space: Space) -> bool:
    name = await space.job()
    try:
        for kind in (TRAIN_JOBS, MPI_JOBS):
            await space.make(kind, {})
        await space.edit(OPERATOR, name, {"activeDeadlineSeconds": 30})
        await space.edit(USER, name, {"activeDeadlineSeconds": 31})
    except ApiError as error:
        return "released with a limit" in str(error)
    return False


@pytest.mark.parametrize("limit_s", [LIMIT_S + 1, 36_000, 2**31 - 1, 2**33, None])
async def test_only_an_operator_raises_the_limit_of_a_released_job(
    space: Space, limit_s: int | None
) -> None:
    """Removing it is raising it. The refusal names the field, the value, why, and the way out."""
    name = await space.job()
    with pytest.raises(ApiError, match=r"activeDeadlineSeconds: .* is not valid.*20 s.*Fix: .*"):
        await space.edit(USER, name, {"activeDeadlineSeconds": limit_s})
    await space.edit(OPERATOR, name, {"activeDeadlineSeconds": limit_s})


async def test_every_way_to_write_is_judged(space: Space) -> None:
    """A merge patch, a JSON patch, a replacement and a server-side apply."""
    name = await space.job()
    user = space.admin.acting_as(USER)
    at = (JOBS, space.namespace, name)
    stored = await user.get(*at)
    stored["spec"]["activeDeadlineSeconds"] = 99
    op = {"op": "replace", "path": "/spec/activeDeadlineSeconds", "value": 99}
    applied = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"activeDeadlineSeconds": 99},
    }
    for write in (
        lambda: user.replace(*at, stored),
        lambda: user.patch(*at, [op], kind=PatchKind.JSON),
        lambda: user.patch(*at, {"spec": op | {"activeDeadlineSeconds": 99}}),
        lambda: user.patch(*at, applied, kind=PatchKind.APPLY, field_manager="x", force=True),
    ):
        with pytest.raises(ApiError, match="released with a limit of 20 s"):
            await write()


async def test_what_everybody_may(space: Space) -> None:
    """Lower a limit, set a first one, edit what waits, and stop a job to have it decided anew."""
    await space.edit(USER, await space.job(), {"activeDeadlineSeconds": 5})
    await space.edit(USER, await space.job(limit_s=None), {"activeDeadlineSeconds": 5})
    await space.edit(USER, await space.job(suspend=True), {"activeDeadlineSeconds": 99})
    await space.edit(USER, await space.job(), {"suspend": True, "activeDeadlineSeconds": 99})
    await space.edit(USER, await space.job(), {"parallelism": 2})
    unmanaged = await space.job(**{MANAGED: "false"})
    await space.edit(USER, unmanaged, {"activeDeadlineSeconds": 99})


@pytest.mark.parametrize(
    ("kind", "inside"), [(TRAIN_JOBS, ()), (MPI_JOBS, ("runPolicy",))], ids=["TrainJob", "MPIJob"]
)
async def test_kinds_with_a_limit_of_their_own(
    space: Space, kind: ApiResource, inside: tuple[str, ...]
) -> None:
    def spec(**fields: Any) -> dict[str, Any]:
        return {inside[0]: fields} if inside else fields

    name = await space.make(kind, spec(suspend=False, activeDeadlineSeconds=LIMIT_S))
    with pytest.raises(ApiError, match="released with a limit of 20 s"):
        await space.edit(USER, name, spec(activeDeadlineSeconds=21), kind)
    await space.edit(USER, name, spec(activeDeadlineSeconds=19), kind)
    await space.edit(OPERATOR, name, spec(activeDeadlineSeconds=21), kind)
    waiting = await space.make(kind, spec(suspend=True, activeDeadlineSeconds=LIMIT_S))
    await space.edit(USER, waiting, spec(activeDeadlineSeconds=21), kind)


async def test_a_pod_is_not_deleted_with_a_longer_grace_than_its_own(space: Space) -> None:
    # The API server takes an unbound pod away at once.
    spec = {**PODS_OF_JOB, "terminationGracePeriodSeconds": 5, "nodeName": "n0"}
    at = (PODS, space.namespace, await space.make(PODS, spec))

    async def delete(who: str, grace_s: int) -> None:
        acting = space.admin.acting_as(who)
        body = {"gracePeriodSeconds": grace_s}
        await acting.request("DELETE", PODS.path(*at[1:]), body=body)

    with pytest.raises(ApiError, match=r"gracePeriodSeconds: 6 is not valid.*5 s to end.*Fix"):
        await delete(USER, 6)
    assert "deletionTimestamp" not in (await space.admin.get(*at))["metadata"]
    await delete(USER, 5)
    other = await space.make(PODS, spec)
    await space.admin.acting_as(OPERATOR).request(
        "DELETE", PODS.path(space.namespace, other), body={"gracePeriodSeconds": 99}
    )
