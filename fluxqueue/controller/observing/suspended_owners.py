"""Watch objects that make pods and can be suspended: JobSets, MPIJobs and others.

Part of ``watches``. The table of owner kinds lists them. Their definitions may be installed at any
time, or never. Discovery is repeated at intervals to find them. Unmanaged objects are not kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.errors import ApiError, ApiUnavailable
from fluxqueue.kube.backoff import Backoff
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.discovery import find_served
from fluxqueue.kube.informer import Informer, TroubleHandler
from fluxqueue.kube.resources import ApiResource
from fluxqueue.workload.deletion import carry
from fluxqueue.workload.kinds.admitted import Made, assemble_owner
from fluxqueue.workload.kinds.suspended_owner import tell_made
from fluxqueue.workload.objects import Object
from fluxqueue.workload.owner_kinds import OwnerKind
from fluxqueue.workload.pods import controller_owner

logger = logging.getLogger(__name__)


ASK_EVERY_S = 10.0
RETRY_MIN_S, RETRY_MAX_S = 0.2, 5.0
DOUBT_S = 30.0
"""How long (seconds) a kind that was served before, or is needed, may be missing.

A server that is just starting does not serve all definitions at once."""


class SuspendedOwners:
    """The existing objects of those ``kinds`` that can be suspended.

    ``on_change`` receives each object, in the form of ``kinds.suspended_owner``, as from an
    informer. The state of some objects depends on an object that they have made. Those are reported
    again when that object changes. When it is gone, its last state counts: a TrainJob does not end
    because its JobSet does.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        kinds: Iterable[OwnerKind],
        on_change: Callable[[Object | None, Object | None], None],
        on_trouble: TroubleHandler | None = None,
    ) -> None:
        self._client, self._clock, self._on_change = client, clock, on_change
        self._on_trouble = on_trouble
        self._kinds = {(one.group, one.kind): one for one in kinds if one.suspend}
        self._informers: dict[tuple[str, str], Informer] = {}
        self._made: dict[str, Made] = {}
        self._missing_s: dict[tuple[str, str], float] = {}

    async def begin(self, needed: Set[tuple[str, str]]) -> None:
        """Wait until all objects have been seen, so that none is wrongly taken for gone.

        ``needed`` holds API groups and kinds of which some objects existed.
        """
        backoff = Backoff(base_s=RETRY_MIN_S, cap_s=RETRY_MAX_S)
        until_s = self._clock.monotonic_s() + DOUBT_S
        while True:
            try:
                await self._look()
                is_patient = self._clock.monotonic_s() < until_s
                # A starting server serves few kinds: without this wait, their objects would be
                # taken for gone.
                if not is_patient or needed & self._kinds.keys() <= self._informers.keys():
                    break
            except (ApiUnavailable, ApiError) as error:
                extra = {"action": "begin", "error": str(error)}
                logger.warning("kinds of owners not read; tried again", extra=extra)
            await self._clock.sleep(backoff.next_delay_s())
        for informer in self._informers.values():
            await informer.synced.wait()

    async def run(self) -> None:
        """Follow each definition that appears, until cancelled."""
        while True:
            await self._clock.sleep(ASK_EVERY_S)
            try:
                await self._look()
            except (ApiUnavailable, ApiError) as error:
                extra = {"action": "discover", "error": str(error)}
                logger.warning("kinds of owners not read; tried again", extra=extra)
            except Exception:
                # A defect in one definition must not end the observation of the others.
                logger.exception("kinds of owners not read; tried again")

    async def relist(self) -> None:
        """Read all objects again.

        Raises
        ------
        ApiUnavailable, ApiError
            They cannot be read, or not within ``DOUBT_S`` seconds.
        """
        await self._look()
        try:
            async with asyncio.timeout(DOUBT_S):
                await asyncio.gather(*(one.relist() for one in self._informers.values()))
        except TimeoutError:
            raise ApiUnavailable("what can be suspended was not read in time") from None

    async def stop(self) -> None:
        """Stop all informers."""
        for informer in self._informers.values():
            await informer.stop()

    async def _look(self) -> None:
        served = await find_served(self._client, self._kinds.keys())
        await self._forget_missing({(one.group, one.kind) for one in served})
        for resource in served:
            key = (resource.group, resource.kind)
            if key not in self._informers and await self._may_read(resource):
                reduce = partial(_reduce, entry=self._kinds[key], api_version=resource.api_version)
                self._informers[key] = Informer(
                    self._client,
                    resource,
                    on_change=partial(self._see, self._kinds[key]),
                    transform=reduce,
                    carry=carry,
                    on_trouble=self._on_trouble,
                    retry_cap_s=5.0,
                )
                self._informers[key].start()

    def _see(self, entry: OwnerKind, old: Object | None, new: Object | None) -> None:
        """Report a changed object, and its maker if that depends on it."""
        found = new or old
        assert found is not None, "an informer tells of an object, old or new"
        uid = found["metadata"]["uid"]
        # Before ``_made`` is dropped: the last report must still include it.
        self._on_change(self._told(old), self._told(new))
        if new is None:
            self._made.pop(uid, None)
        maker = controller_owner(found)
        above = self._kind_of(maker)
        if maker is None or above is None or above.templates_in != (entry.group, entry.kind):
            return
        stored = self._find(above, found["metadata"]["namespace"], maker)
        if new is not None:
            # Stored before the report, because the maker may be listed after what it has made.
            before, now = self._made.get(maker["uid"]), tell_made(new, entry)
            self._made[maker["uid"]] = now
            if stored is not None:
                self._on_change({**stored, "made": before}, {**stored, "made": now})
        # Keep the last state while the maker exists: it does not end with what it has made.
        elif stored is None:
            self._made.pop(maker["uid"], None)

    def _find(self, entry: OwnerKind, namespace: str, maker: Mapping[str, Any]) -> Object | None:
        informer = self._informers.get((entry.group, entry.kind))
        stored = None if informer is None else informer.get(namespace, maker["name"])
        return stored if stored and stored["metadata"]["uid"] == maker["uid"] else None

    def _told(self, owner: Object | None) -> Object | None:
        """Return an object together with the state of what it has made."""
        made = None if owner is None else self._made.get(owner["metadata"]["uid"])
        return owner if owner is None or made is None else {**owner, "made": made}

    def _kind_of(self, maker: Mapping[str, Any] | None) -> OwnerKind | None:
        if maker is None:
            return None
        return self._kinds.get((maker["apiVersion"].rpartition("/")[0], maker["kind"]))

    async def _forget_missing(self, served: Set[tuple[str, str]]) -> None:
        now_s = self._clock.monotonic_s()
        missing = self._informers.keys() - served
        self._missing_s = {key: self._missing_s.get(key, now_s) for key in missing}
        for key, since_s in list(self._missing_s.items()):
            # Not at once: a restarting API server briefly lacks kinds, and its objects are not
            # gone.
            if now_s - since_s >= DOUBT_S:
                informer = self._informers.pop(key)
                await informer.stop()
                informer.clear()

    async def _may_read(self, resource: ApiResource) -> bool:
        try:
            await self._client.request("GET", resource.path(), query={"limit": "1"})
        except ApiError as error:
            extra = {"action": "discover", "resource": resource.key, "error": str(error)}
            logger.warning("may not be read: what is suspended of it waits on", extra=extra)
            return False
        return True


def _reduce(stored: Mapping[str, Any], *, entry: OwnerKind, api_version: str) -> Object:
    meta = {key: value for key, value in stored["metadata"].items() if key != "managedFields"}
    return assemble_owner({**stored, "metadata": meta}, entry, api_version)
