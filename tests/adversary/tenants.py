"""``Tenant``: a user with ``edit`` in one namespace. It sends any bytes.

A tenant has the roles that the chart adds to ``edit``, and nothing in any other namespace. Every
answer is kept. An answer that says that one of our parts failed is a finding (``faults``).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.errors import ApiUnavailable, NotFound
from fluxqueue.kube.config import load_kubeconfig
from fluxqueue.kube.resources import (
    FLUXJOBS,
    JOBS,
    PLACEMENT_REVIEWS,
    PODS,
    ROLE_BINDINGS,
    ApiResource,
)
from fluxqueue.kube.transport import HttpTransport, TransportError
from tests.adversary.crowds import all_of
from tests.support.e2e.space import Space, make_space, remove_space
from tests.support.e2e.world import World
from tests.support.waiting import eventually

Obj = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
ANSWER_S = 30.0
REMOVED_S, DELETED_S = 900.0, 70.0
"""A real control plane deletes five thousand Jobs in minutes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server said."""

    code: int
    body: Obj

    @property
    def is_taken(self) -> bool:
        """Whether it did what was asked."""
        return self.code < 300

    @property
    def message(self) -> str:
        """Why not."""
        return str(self.body.get("message", ""))


@dataclass(slots=True)
class Tenant:
    """One user, in their namespace. ``faults`` are the answers that a good system never gives."""

    space: Space
    user: str
    transport: HttpTransport
    authorization: str
    faults: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    async def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | Iterable[Any] | bytes | None = None,
        kind: str = "application/json",
    ) -> Answer:
        """Send once, without a retry. ``body`` may be bytes that are no JSON."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {
            "Authorization": self.authorization,
            "Impersonate-User": self.user,
            "Content-Type": kind,
            "Accept": "application/json",
        }
        try:
            reply = await self.transport.send(method, path, headers, data, ANSWER_S)
        except TransportError as error:
            self.faults.append(f"{method} {path}: {error}")
            return Answer(0, {"message": str(error)})
        try:
            answer = Answer(reply.status, json.loads(reply.body or b"{}"))
        except ValueError:
            answer = Answer(reply.status, {"message": repr(reply.body[:300])})
        self.answers.append(answer)
        if is_fault(answer):
            self.faults.append(f"{method} {path} {str(data)[:300]}: {answer.code} {answer.message}")
        return answer

    async def create(self, resource: ApiResource, body: Any, *, dry_run: bool = False) -> Answer:
        """POST. What was already there is a Conflict."""
        path = resource.path(self.space.name) + ("?dryRun=All" if dry_run else "")
        if isinstance(body, dict):
            body = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return await self.send("POST", path, body)

    async def patch(
        self, resource: ApiResource, name: str, body: Any, subresource: str | None = None
    ) -> Answer:
        """A merge patch, or a JSON patch where ``body`` is a list."""
        form = "json-patch" if isinstance(body, list) else "merge-patch"
        path = resource.path(self.space.name, name, subresource)
        return await self.send("PATCH", path, body, f"application/{form}+json")

    async def delete(self, resource: ApiResource, name: str) -> Answer:
        """In the background, as kubectl does."""
        path = resource.path(self.space.name, name)
        return await self.send("DELETE", path, {"propagationPolicy": "Background"})

    async def create_all(
        self, resource: ApiResource, bodies: Iterable[Any], *, dry_run: bool = False
    ) -> list[Answer]:
        """All of them, a few at once."""
        return await all_of(self.create(resource, body, dry_run=dry_run) for body in bodies)

    async def review(self, **spec: Any) -> Answer:
        """Ask when something would start."""
        return await self.create(
            PLACEMENT_REVIEWS, {"metadata": {"generateName": "ask-"}, "spec": spec}
        )


def is_fault(answer: Answer) -> bool:
    """Whether a part of ours failed, instead of refusing in words."""
    if answer.code >= 500 or "failed calling webhook" in answer.message:
        return True
    return "the log says more" in answer.message


@asynccontextmanager
async def tenancy(world: World, user: str, *roles: str) -> AsyncIterator[Tenant]:
    """A namespace in which ``user`` has ``edit``, and further ClusterRoles. Gone afterwards."""
    space = await make_space(world)
    for role in ("edit", *roles):
        await let(world, space.name, user, role)
    config = load_kubeconfig(str(world.kubeconfig))
    transport = HttpTransport(config)
    try:
        yield Tenant(space, user, transport, config.authorization_header() or "")
    finally:
        await transport.close()
        await _let_go(space)
        await remove_space(space, timeout_s=REMOVED_S)


async def let(world: World, namespace: str, user: str, role: str) -> None:
    """Bind a ClusterRole to a user, in one namespace."""
    binding = {
        "metadata": {"name": f"{user}-{role}"},
        "subjects": [{"kind": "User", "name": user, "apiGroup": RBAC}],
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
    }
    await world.client.create(ROLE_BINDINGS, namespace, binding)


async def _let_go(space: Space) -> None:
    """Take the tenant's own finalizers off, which would keep the namespace, and delete the Jobs.

    Kubernetes deletes the pods of a namespace before all else. It leaves those that a Job with
    ``backoffLimitPerIndex`` wants to replace, and the Job stays.
    """

    async def are_deleted() -> bool:
        # Of thousands of Jobs a real API server deletes as many as it can within its time limit.
        with suppress(ApiUnavailable):
            await space.client.request(
                "DELETE",
                JOBS.path(space.name),
                body={"propagationPolicy": "Background"},
                timeout_s=DELETED_S,
            )
            return True
        return False

    await eventually(are_deleted, "the Jobs of the tenant are deleted", timeout_s=REMOVED_S)
    for resource in (PODS, JOBS, FLUXJOBS):
        for one in (await space.client.list(resource, space.name)).items:
            if any("example.com" in name for name in one["metadata"].get("finalizers", ())):
                patch = {"metadata": {"finalizers": None}}
                try:
                    await space.client.patch(resource, space.name, one["metadata"]["name"], patch)
                except NotFound:
                    continue
