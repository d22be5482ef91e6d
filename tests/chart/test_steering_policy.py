"""The admission policy on steering, enforced by an API server: decisions about others.

The chart's own roles are used. The webhook is not there: it checks values and states, not people.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.errors import ApiError, Invalid
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.installation import install_definitions
from fluxqueue.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    FLUXJOBS,
    NAMESPACES,
    PLACEMENT_REVIEWS,
    ROLE_BINDINGS,
)
from fluxqueue.workload.labels import MANAGED, OWN_NAMESPACE
from tests.chart.rendering import render
from tests.support.embedded_plane import Plane
from tests.support.policies import POLICIES
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(240)

RELEASE = "steered"
FLUXJOB = {
    "apiVersion": FLUXJOBS.api_version,
    "kind": FLUXJOBS.kind,
    "metadata": {"name": "a-job"},
    "spec": {
        "size": 1,
        "workload": {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "uid-a"},
    },
}
ROLES = ("viewer", "user", "operator")


class People:
    """A FluxJob, and one person for each role, named after it."""

    def __init__(self, admin: KubeClient, namespace: str) -> None:
        self.admin, self.namespace = admin, namespace

    async def patch(self, who: str, **spec: Any) -> dict[str, Any]:
        """Change its spec as ``who``."""
        acting = self.admin.acting_as(who)
        return await acting.patch(FLUXJOBS, self.namespace, "a-job", {"spec": spec})


@pytest_asyncio.fixture
async def people(plane: Plane) -> AsyncIterator[People]:
    """The policy and the roles in force. All of it gone after the test."""
    policies = [
        (POLICIES[one["kind"]], one)
        for one in render(name=RELEASE)
        if one["kind"] in POLICIES and one["metadata"]["name"].endswith("-steering")
    ]
    names = {f"{RELEASE}-fluxqueue-{role}": role for role in ROLES}
    roles = [
        (CLUSTER_ROLES, one)
        for one in render(name=RELEASE)
        if one["kind"] == "ClusterRole" and one["metadata"]["name"] in names
    ]
    bindings = [
        (
            CLUSTER_ROLE_BINDINGS,
            {
                "metadata": {"name": name},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": name,
                },
                "subjects": [{"kind": "User", "name": role}],
            },
        )
        for name, role in names.items()
    ]
    async with KubeClient(plane.config) as admin, AsyncExitStack() as exits:
        await install_definitions(admin, OWN_NAMESPACE)
        for resource, one in [*policies, *roles, *bindings]:
            await admin.create(resource, None, one)
            exits.push_async_callback(admin.delete, resource, None, one["metadata"]["name"])
        meta = {"generateName": "test-", "labels": {MANAGED: "false"}}
        made = await admin.create(NAMESPACES, None, {"metadata": meta})
        namespace = made["metadata"]["name"]
        exits.push_async_callback(admin.delete, NAMESPACES, None, namespace)
        await admin.create(FLUXJOBS, namespace, FLUXJOB)
        there = People(admin, namespace)
        await eventually(lambda: _is_in_force(there), "policy and roles are in force")
        yield there


async def _is_in_force(people: People) -> bool:
    """Both are read some time after they are written, each by itself."""
    try:
        await people.patch("operator", priority=None)
        await people.patch("user", priority=1)
    except ApiError as error:
        return "verb operate" in str(error)
    return False


async def test_an_operator_decides_about_others_and_a_user_does_not(people: People) -> None:
    """The refusal says what is needed. Holding, and asking to be requeued, is a user's own."""
    for spec in ({"priority": 7}, {"queue": "gold"}):
        with pytest.raises(ApiError, match=r"verb operate .*steered-fluxqueue-operator"):
            await people.patch("user", **spec)
        patched = await people.patch("operator", **spec)
        assert spec.items() <= patched["spec"].items()
    for spec in ({"hold": True}, {"hold": None}, {"requeue": "again"}):
        await people.patch("user", **spec)
    # Taking an operator's word back is deciding, too.
    with pytest.raises(ApiError, match="verb operate"):
        await people.patch("user", priority=None)


async def test_a_viewer_steers_nothing(people: People) -> None:
    """Role-based access control says so, before any policy."""
    with pytest.raises(ApiError, match=r"403.*viewer"):
        await people.patch("viewer", hold=True)


async def test_kubernetes_own_roles_have_the_like(people: People) -> None:
    """A user with a built-in role in a namespace needs no binding to a role of ours."""
    for role in ("view", "edit", "admin"):
        await people.admin.create(
            ROLE_BINDINGS,
            people.namespace,
            {
                "metadata": {"name": role},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": role,
                },
                "subjects": [{"kind": "User", "name": f"may-{role}"}],
            },
        )

    async def may(role: str, **spec: Any) -> bool:
        try:
            await people.patch(f"may-{role}", **spec)
        except ApiError:
            return False
        return True

    await eventually(lambda: may("admin", priority=3), "the controller manager has aggregated")
    looking = people.admin.acting_as("may-view")
    assert (await looking.list(FLUXJOBS, people.namespace)).items
    review = {
        "apiVersion": PLACEMENT_REVIEWS.api_version,
        "kind": PLACEMENT_REVIEWS.kind,
        "metadata": {"generateName": "ask-"},
        "spec": {"fluxJob": "a-job"},
    }
    await looking.create(PLACEMENT_REVIEWS, people.namespace, review)
    with pytest.raises(ApiError, match="403"):
        await looking.list(PLACEMENT_REVIEWS, people.namespace)
    assert [await may(role, hold=True) for role in ("view", "edit", "admin")] == [False, True, True]
    assert [await may(role, priority=9) for role in ("view", "edit")] == [False, False]
    assert not await may("nobody", hold=None)


async def test_wrong_values_are_refused_by_the_definition(people: People) -> None:
    with pytest.raises(Invalid, match=r"spec\.priority"):
        await people.patch("operator", priority="high")
