"""Namespaces: what a new one gets, and how a deleted one is emptied.

A new namespace gets its default service account and the CA bundle. A deleted namespace loses its
pods first. While a pod terminates, nothing else is deleted. Then everything else is deleted, and
finally the namespace itself.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

from localcluster.client.resources import CONFIGMAPS, NAMESPACES, PODS, SERVICE_ACCOUNTS, Resource
from localcluster.controllers.served import discover
from localcluster.errors import ApiError, Conflict, NotFound
from localcluster.loops.context import Context, QueueController
from localcluster.loops.objects import is_deleting, now, write_time
from localcluster.loops.workqueue import WorkQueue
from localcluster.obj import Obj

COMPONENT = "namespace-controller"
NEEDED_VERBS = frozenset({"list", "deletecollection"})
ROOT_CA = "kube-root-ca.crt"
ROOT_CA_NOTE = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal "
    "endpoints such as the internal service IP or kubernetes.default.svc. No other usage is "
    "guaranteed across distributions of Kubernetes clusters."
)
QUICK_RETRY_S = 0.1


def deletion_conditions(remaining: dict[str, int], finalizers: dict[str, int]) -> list[Obj]:
    """Return the five conditions of a terminating namespace, without times.

    ``remaining`` has the number of objects left by resource name. ``finalizers`` has the number of
    objects that wait for each finalizer.
    """
    left = ", ".join(f"{name} has {count} resource instances" for name, count in remaining.items())
    held = ", ".join(f"{name} in {count} resource instances" for name, count in finalizers.items())
    texts = [
        (
            "NamespaceDeletionDiscoveryFailure",
            False,
            "ResourcesDiscovered",
            "All resources successfully discovered",
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            False,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        (
            "NamespaceDeletionContentFailure",
            False,
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        (
            "NamespaceContentRemaining",
            bool(remaining),
            "SomeResourcesRemain" if remaining else "ContentRemoved",
            f"Some resources are remaining: {left}"
            if remaining
            else "All content successfully removed",
        ),
        (
            "NamespaceFinalizersRemaining",
            bool(finalizers),
            "SomeFinalizersRemain" if finalizers else "ContentHasNoFinalizers",
            f"Some content in the namespace has finalizers remaining: {held}"
            if finalizers
            else "All content-preserving finalizers finished",
        ),
    ]
    return [
        {"type": kind, "status": str(is_true), "reason": reason, "message": message}
        for kind, is_true, reason, message in texts
    ]


def with_times(conditions: list[Obj], before: list[Obj], at: datetime) -> list[Obj]:
    """Keep the transition time of conditions with an unchanged status."""
    old = {condition["type"]: condition for condition in before}
    timed = []
    for condition in conditions:
        was = old.get(condition["type"])
        same = was is not None and was["status"] == condition["status"]
        stamp = was["lastTransitionTime"] if was is not None and same else write_time(at)
        timed.append({**condition, "lastTransitionTime": stamp})
    return timed


class NamespaceController(QueueController):
    """Fills new namespaces and empties deleted ones."""

    def __init__(self, context: Context) -> None:
        self._client = context.client_of(COMPONENT)
        self._retry_s = context.options.namespace_retry_s
        self._ca_pem = context.ca_pem
        self._namespaces = context.informers.get(NAMESPACES)
        self._queue: WorkQueue[str] = WorkQueue(COMPONENT, self._sync)
        self._namespaces.add_handler(self._changed)
        context.informers.get(SERVICE_ACCOUNTS).add_handler(self._content_changed)

    def _changed(self, _old: Obj | None, new: Obj | None) -> None:
        if new is not None:
            self._queue.add(new["metadata"]["name"])

    def _content_changed(self, old: Obj | None, new: Obj | None) -> None:
        if new is None and old is not None and old["metadata"]["name"] == "default":
            self._queue.add(old["metadata"]["namespace"])

    async def _sync(self, name: str) -> None:
        namespace = self._namespaces.get("", name)
        if namespace is None:
            return
        if is_deleting(namespace):
            await self._empty(namespace)
        else:
            await self._fill(name)

    async def _fill(self, name: str) -> None:
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": name},
        }
        bundle = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": ROOT_CA,
                "namespace": name,
                "annotations": {"kubernetes.io/description": ROOT_CA_NOTE},
            },
            "data": {"ca.crt": self._ca_pem},
        }
        for resource, body in ((SERVICE_ACCOUNTS, account), (CONFIGMAPS, bundle)):
            try:
                await self._client.create(resource, name, body)
            except Conflict:
                continue  # It exists already.
            except (NotFound, ApiError):
                if self._namespaces.get("", name) is None:
                    return
                raise

    # -- deletion --------------------------------------------------------------------------------

    async def _empty(self, namespace: Obj) -> None:
        name = namespace["metadata"]["name"]
        if not (namespace["spec"].get("finalizers") or ()):
            return
        pods = await self._delete_all(PODS, name)
        # Pods in their grace period are waited for, without being reported as remaining.
        left = {} if pods else await self._delete_rest(name)
        counts = {self._shown(key): len(objects) for key, objects in sorted(left.items())}
        await self._write_conditions(name, counts, _finalizers_of(left))
        if pods or left:
            self._queue.add_after(name, self._pod_retry_s() if pods else self._retry_s)
            return
        live = await self._client.get(NAMESPACES, None, name)
        live["spec"]["finalizers"] = []
        try:
            await self._client.replace(NAMESPACES, None, name, live, subresource="finalize")
        except NotFound:
            return

    def _pod_retry_s(self) -> float:
        return min(QUICK_RETRY_S, self._retry_s)

    @staticmethod
    def _shown(key: str) -> str:
        """Return ``pods.`` for the core group, as in the messages."""
        return key if "." in key else f"{key}."

    async def _delete_rest(self, name: str) -> dict[str, list[Obj]]:
        served = await discover(self._client)
        resources = [
            s.resource
            for s in served
            if s.resource.namespaced and s.verbs >= NEEDED_VERBS and s.resource != PODS
        ]
        results = await asyncio.gather(*(self._delete_all(r, name) for r in resources))
        return {r.key: left for r, left in zip(resources, results, strict=True) if left}

    async def _delete_all(self, resource: Resource, namespace: str) -> list[Obj]:
        """Delete a collection and return what still exists."""
        if not (await self._client.list(resource, namespace)).items:
            return []
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        await self._client.request("DELETE", resource.path(namespace), options)
        return (await self._client.list(resource, namespace)).items

    async def _write_conditions(
        self, name: str, counts: dict[str, int], finalizers: dict[str, int]
    ) -> None:
        try:
            live = await self._client.get(NAMESPACES, None, name)
            before = (live.get("status") or {}).get("conditions") or []
            wanted = with_times(deletion_conditions(counts, finalizers), before, now())
            if wanted != before:
                status = {"status": {"conditions": wanted}}
                await self._client.patch(NAMESPACES, None, name, status, subresource="status")
        except NotFound:
            return


def _finalizers_of(left: dict[str, list[Obj]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for objects in left.values():
        for obj in objects:
            for finalizer in obj["metadata"].get("finalizers") or ():
                counts[finalizer] = counts.get(finalizer, 0) + 1
    return dict(sorted(counts.items()))
