"""The account of a tool that keeps a cluster as a repository says."""

from __future__ import annotations

from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import NODES, ROLE_BINDINGS
from tests.support.e2e.space import Space
from tests.support.waiting import eventually

RBAC = "rbac.authorization.k8s.io"
TOOL = "gitops"


async def tool_account(space: Space) -> KubeClient:
    """The account of a GitOps tool, with the role ``admin`` in the namespace."""
    binding = {
        "metadata": {"name": TOOL},
        "subjects": [{"kind": "User", "name": TOOL, "apiGroup": RBAC}],
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "admin"},
    }
    await space.client.create(ROLE_BINDINGS, space.name, binding)
    tool = space.client.acting_as(TOOL)

    async def may() -> bool:
        asked = {"verb": "patch", "group": "batch", "resource": "jobs", "namespace": space.name}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        spec = {"resourceAttributes": asked}
        answer = await tool.request("POST", path, body={**body, "spec": spec})
        return bool(answer["status"]["allowed"])

    await eventually(may, "the tool has its role")
    return tool


async def close(space: Space, node: str, *, is_closed: bool | None = True) -> None:
    await space.client.patch(NODES, None, node, {"spec": {"unschedulable": is_closed}})
