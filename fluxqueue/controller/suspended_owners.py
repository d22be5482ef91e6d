"""What makes pods and can be suspended, watched: JobSets, MPIJobs, …, as the table has them.

Part of ``watches``. Their definitions may be installed, or not, at any time: they are found by
discovery, now and then. Those that are not ours are not kept.
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
from fluxqueue.kube.informer import Informer
from fluxqueue.kube.resources import Resource
from fluxqueue.objects import Object
from fluxqueue.workload.kinds.suspended_owner import assemble_owner
from fluxqueue.workload.owner_kinds import OwnerKind

logger = logging.getLogger(__name__)


ASK_EVERY_S = 10.0
RETRY_MIN_S, RETRY_MAX_S = 0.2, 5.0
DOUBT_S = 30.0
"""A server that is just starting does not serve all definitions at once: what is needed, or was
served before, is missing only after so long."""


class SuspendedOwners:
    """The objects that there are of the kinds in ``kinds`` that can be suspended.

    ``on_change`` is told of each, in the form of ``kinds.suspended_owner``, as an informer does.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        kinds: Iterable[OwnerKind],
        on_change: Callable[[Object | None, Object | None], None],
    ) -> None:
        self._client, self._clock, self._on_change = client, clock, on_change
        self._kinds = {(one.group, one.kind): one for one in kinds if one.suspend}
        self._informers: dict[tuple[str, str], Informer] = {}
        self._missing_s: dict[tuple[str, str], float] = {}

    async def begin(self, needed: Set[tuple[str, str]]) -> None:
        """Have seen all there are: nobody may take one for gone that was not looked for.

        ``needed``: API groups and kinds of which there were some.
        """
        backoff = Backoff(base_s=RETRY_MIN_S, cap_s=RETRY_MAX_S)
        until_s = self._clock.monotonic_s() + DOUBT_S
        while True:
            try:
                await self._look()
                is_patient = self._clock.monotonic_s() < until_s
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

    async def relist(self) -> None:
        """Read all of them anew.

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
        """Follow none any more."""
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
                    on_change=self._on_change,
                    transform=reduce,
                    retry_cap_s=5.0,
                )
                self._informers[key].start()

    async def _forget_missing(self, served: Set[tuple[str, str]]) -> None:
        now_s = self._clock.monotonic_s()
        missing = self._informers.keys() - served
        self._missing_s = {key: self._missing_s.get(key, now_s) for key in missing}
        for key, since_s in list(self._missing_s.items()):
            if now_s - since_s >= DOUBT_S:
                informer = self._informers.pop(key)
                await informer.stop()
                informer.clear()

    async def _may_read(self, resource: Resource) -> bool:
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
