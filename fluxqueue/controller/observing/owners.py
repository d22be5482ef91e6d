"""Find what makes a pod: follow its controllers up to the topmost one.

Part of ``event_router``. Only pods that admission marked with an owner are looked up
(``workload.groups``), so that other pods cost no request. Each owner is looked up once. Its
metadata is enough, unless a table says how many pods it is to have (``workload.owner_kinds``). Then
the whole object is read. The chain ends where an owner is gone or may not be read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.errors import ApiError, ApiUnavailable, NotFound
from fluxqueue.kube.backoff import Backoff
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import ApiResource
from fluxqueue.workload.objects import Object
from fluxqueue.workload.owner_kinds import OwnerKinds, size_of
from fluxqueue.workload.pods import controller_owner
from fluxqueue.workload.references import Reference

logger = logging.getLogger(__name__)


DEPTH = 8
KNOWN_MAX = 20_000
RETRY_MIN_S, RETRY_MAX_S = 0.2, 30.0


@dataclass(frozen=True, slots=True)
class Owner:
    """An object that makes pods. ``size`` is its declared number of pods, if known."""

    api_version: str
    kind: str
    name: str
    uid: str
    size: int | None = None

    def reference(self) -> Reference:
        """Return the reference that rows store."""
        return Reference(self.api_version, self.kind, self.name, self.uid)


@dataclass(frozen=True, slots=True)
class _Found:
    """The result of a look-up: the owner's own controller, if any, and its size."""

    parent: Mapping[str, Any] | None
    size: int | None = None


def _log_trouble(owner: Mapping[str, Any], namespace: str, error: Exception) -> None:
    extra = {"action": "owner", "uid": owner["uid"], "namespace": namespace, "error": str(error)}
    logger.error("owner cannot be read; taken for the topmost", extra=extra)


class Owners:
    """The topmost controllers of pods.

    Parameters
    ----------
    find : returns an object that is watched anyway (a BatchJob, a Pod) by its UID.
    on_found : called with the UID of a pod when its topmost owner becomes known.
    on_trouble : called with an owner reference, its namespace and the error, if that owner cannot
        be read. The owner then counts as the topmost one.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        kinds: OwnerKinds,
        *,
        find: Callable[[str], Object | None],
        on_found: Callable[[str], None],
        on_trouble: Callable[[Mapping[str, Any], str, Exception], None] = _log_trouble,
    ) -> None:
        self._client, self._clock, self._kinds = client, clock, kinds
        self._on_trouble = on_trouble
        self._find, self._on_found = find, on_found
        self._known: dict[str, _Found] = {}
        self._waiting: dict[str, set[str]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._plurals: dict[str, dict[str, tuple[str, bool]]] = {}

    def top(self, pod: Object) -> Owner | None:
        """Return the topmost controller of ``pod``, or None until it is known.

        ``on_found`` is called when it becomes known.
        """
        owner, namespace = controller_owner(pod), pod["metadata"]["namespace"]
        # Bounded: a user may write owner references that form a cycle.
        for _ in range(DEPTH):
            if owner is None:
                return None
            found = self._look(owner)
            if found is None:
                self._want(owner, namespace, pod["metadata"]["uid"])
                return None
            if found.parent is None:
                return Owner(
                    owner["apiVersion"], owner["kind"], owner["name"], owner["uid"], found.size
                )
            owner = found.parent
        logger.warning("owners without end", extra={"uid": pod["metadata"]["uid"]})
        return None if owner is None else Owner(*(owner[key] for key in _REFERENCE))

    def _look(self, owner: Mapping[str, Any]) -> _Found | None:
        # A watched object costs no request.
        watched = self._find(owner["uid"])
        if watched is not None:
            return _Found(controller_owner(watched))
        return self._known.get(owner["uid"])

    def _want(self, owner: Mapping[str, Any], namespace: str, pod_uid: str) -> None:
        uid = owner["uid"]
        self._waiting.setdefault(uid, set()).add(pod_uid)
        # One request per owner, however many of its pods come at the same time.
        if uid not in self._tasks:
            work = self._ask(dict(owner), namespace)
            self._tasks[uid] = asyncio.create_task(work, name=f"owner {uid}")

    async def settle(self) -> None:
        """Wait until all look-ups have ended."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def stop(self) -> None:
        """Cancel all look-ups."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def ask_again(self, owner: Owner, namespace: str, pod_uid: str) -> None:
        """Read the size of an owner again. It may change while its pods gather."""
        said = (owner.api_version, owner.kind, owner.name, owner.uid)
        self._want(dict(zip(_REFERENCE, said, strict=True)), namespace, pod_uid)

    async def _ask(self, owner: Mapping[str, Any], namespace: str) -> None:
        backoff, uid = Backoff(base_s=RETRY_MIN_S, cap_s=RETRY_MAX_S), owner["uid"]
        try:
            while True:
                try:
                    found = await self._read(owner, namespace)
                    break
                except ApiUnavailable as error:
                    extra = {"action": "owner", "uid": uid, "error": str(error)}
                    logger.warning("owner not read; tried again", extra=extra)
                    await self._clock.sleep(backoff.next_delay_s())
                except Exception as error:  # noqa: BLE001  otherwise its pods wait for ever
                    self._on_trouble(owner, namespace, error)
                    found = _Found(None)
                    break
        finally:
            del self._tasks[uid]
        # Bounded: drop the oldest entry. It is looked up again if it is needed.
        if len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[uid] = found
        for pod_uid in sorted(self._waiting.pop(uid, ())):
            self._on_found(pod_uid)

    async def _read(self, owner: Mapping[str, Any], namespace: str) -> _Found:
        """Read an owner. An owner that is gone or unreadable has no controller.

        Raises
        ------
        ApiUnavailable
            The API server cannot be reached.
        """
        group, _, _ = owner["apiVersion"].rpartition("/")
        entry = self._kinds.find(group, owner["kind"])
        try:
            resource = await self._resource(owner["apiVersion"], owner["kind"])
            if resource is None:
                return _Found(None)
            at = (resource, namespace if resource.namespaced else None, owner["name"])
            has_size = entry is not None and entry.has_size
            get = self._client.get if has_size else self._client.get_metadata
            obj = await get(*at)
        except NotFound:
            return _Found(None)
        except ApiError as error:
            extra = {"action": "owner", "uid": owner["uid"], "error": str(error)}
            logger.warning("owner may not be read; taken for the topmost", extra=extra)
            return _Found(None)
        # Another object took the name: its owners and its size say nothing about this pod.
        if obj["metadata"]["uid"] != owner["uid"]:
            return _Found(None)
        return _Found(controller_owner(obj), None if entry is None else size_of(entry, obj))

    async def _resource(self, api_version: str, kind: str) -> ApiResource | None:
        """Return the resource of a kind by discovery, or None if it is no longer served."""
        group, _, version = api_version.rpartition("/")
        plurals = self._plurals.get(api_version, {})
        if kind not in plurals:  # also asked again if the kind was installed since
            root = f"/apis/{api_version}" if group else f"/api/{api_version}"
            served = await self._client.request("GET", root)
            plurals = {
                one["kind"]: (one["name"], bool(one["namespaced"]))
                for one in served.get("resources") or ()
                if "/" not in one["name"]
            }
            self._plurals[api_version] = plurals
        if kind not in plurals:
            return None
        plural, is_namespaced = plurals[kind]
        return ApiResource(group, version, plural, kind, is_namespaced)


_REFERENCE = ("apiVersion", "kind", "name", "uid")
