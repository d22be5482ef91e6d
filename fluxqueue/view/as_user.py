"""What the page shows and does with the rights of its user: objects, pods, logs, and steering.

``window`` calls it. Each request goes to the API server with the token of the user, so RBAC,
admission and the audit log see that user. The view server's own account is never used here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from fluxqueue.errors import InvalidInput
from fluxqueue.kube import placement_reviews, steer
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import ClusterConfig
from fluxqueue.kube.resources import EVENTS, FLUXJOBS, PODS
from fluxqueue.workload.labels import JOBID
from fluxqueue.workload.objects import Object

LOG_LINES, LOG_BYTES = 500, 256 * 1024
PODS_MAX, EVENTS_MAX = 500, 200
ANSWER_S = 20.0
"""The longest wait for the answer of a PlacementReview."""
INT32 = range(-(2**31), 2**31)
Obj = Mapping[str, Any]


async def _set_priority(client: KubeClient, fluxjob: Obj, value: object) -> None:
    if not (value is None or (type(value) is int and value in INT32)):
        raise InvalidInput(
            "is not a whole number of 32 bits", where="value", value=str(value)[:100],
            hint="null returns to the priority of its author",
        )  # fmt: skip
    await steer.change_spec(client, fluxjob, {"priority": value})


async def _move(client: KubeClient, fluxjob: Obj, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidInput("is not the name of a queue", where="value", value=str(value)[:100])
    await steer.change_spec(client, fluxjob, {"queue": value})


def _plain(verb: Callable[[KubeClient, Obj], Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    async def act(client: KubeClient, fluxjob: Obj, _: object) -> None:
        await verb(client, fluxjob)

    return act


VERBS: Mapping[str, Callable[[KubeClient, Obj, object], Awaitable[None]]] = {
    "hold": _plain(steer.hold),
    "release": _plain(steer.release),
    "requeue": _plain(steer.requeue),
    "cancel": _plain(steer.cancel),
    "priority": _set_priority,
    "move": _move,
}
"""What a user can do with a job, by name."""


class UserCluster:
    """Access to the API server with the token of a user. ``config`` says where it is."""

    def __init__(self, config: ClusterConfig) -> None:
        # Without any credentials of our own: a client certificate would count before the token.
        self._client = KubeClient(
            replace(
                config,
                token=None,
                token_file=None,
                authorization=None,
                client_cert_file=None,
                client_key_file=None,
                client_cert_pem=None,
                client_key_pem=None,
            ),
            attempts_max=1,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    def of(self, token: str) -> UserRights:
        """Return access with the rights of a user. It ends with this object."""
        return UserRights(self._client.sending({"Authorization": f"Bearer {token}"}))


class UserRights:
    """The API server as one user sees it. Every method raises ApiError if it refuses."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def fluxjob(self, namespace: str, name: str) -> Object:
        """Return a FluxJob, with its jobspec and its R."""
        return await self._client.get(FLUXJOBS, namespace, name)

    async def steer(self, namespace: str, name: str, verb: str, value: object) -> None:
        """Do one of ``VERBS`` with a FluxJob.

        Raises
        ------
        InvalidInput
            The value is not valid, or the verb does not apply now.
        """
        await VERBS[verb](self._client, await self.fluxjob(namespace, name), value)

    async def explain(self, namespace: str, name: str, changes: Obj) -> Object:
        """Ask the queue when a FluxJob starts, with ``changes`` of its request if there are any."""
        spec: dict[str, Any] = {"fluxJob": name}
        if changes:
            spec["changes"] = dict(changes)
        return await placement_reviews.ask(self._client, namespace, spec, ANSWER_S)

    async def pods(self, namespace: str, jobid: int) -> list[dict[str, Any]]:
        """Return the pods of a job in short: name, node, phase, and why it waits."""
        found = await self._client.list(
            PODS, namespace, label_selector=f"{JOBID}={jobid}", limit=PODS_MAX
        )
        return [_short(pod) for pod in found.items[:PODS_MAX]]

    async def log(self, namespace: str, pod: str, container: str) -> str:
        """Return the last lines of the log of a container."""
        query = {"tailLines": str(LOG_LINES), "limitBytes": str(LOG_BYTES), "container": container}
        return await self._client.get_text(
            f"{PODS.path(namespace, pod)}/log?{urlencode({k: v for k, v in query.items() if v})}"
        )

    async def events(self, namespace: str, name: str) -> list[dict[str, Any]]:
        """Return the Events of a FluxJob, the latest first."""
        found = await self._client.list(
            EVENTS, namespace, field_selector=f"involvedObject.name={name}", limit=EVENTS_MAX
        )
        events = [
            {
                "at": one.get("lastTimestamp") or one.get("eventTime"),
                "type": one.get("type"),
                "reason": one.get("reason"),
                "message": one.get("message"),
            }
            for one in found.items
        ]
        return sorted(events, key=lambda one: str(one["at"]), reverse=True)


def _short(pod: Object) -> dict[str, Any]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    waits = [one for one in status.get("conditions") or () if one.get("status") == "False"]
    return {
        "name": pod["metadata"]["name"],
        "node": spec.get("nodeName"),
        "phase": status.get("phase") or "Pending",
        "isGated": bool(spec.get("schedulingGates")),
        "containers": [one.get("name") for one in spec.get("containers") or ()],
        "startedAt": status.get("startTime"),
        "why": next((str(one["message"]) for one in waits if one.get("message")), ""),
    }
