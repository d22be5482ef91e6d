"""Watches of what pods refer to: LimitRanges and RuntimeClasses.

Part of ``watches``. ``workload.surroundings`` reads them to complete workloads. When one changes,
the workloads that it may touch are marked, so that those that wait ask for their new size.

They never stop the observation of everything else: what cannot be listed counts as absent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.informer import ChangeHandler, Informer, TroubleHandler
from fluxqueue.kube.resources import LIMIT_RANGES, RUNTIME_CLASSES, ApiResource
from fluxqueue.objects import Object
from fluxqueue.workload.kinds import kind_of

logger = logging.getLogger(__name__)

SYNC_S = 10.0
"""How long (seconds) the first lists are awaited. They may be forbidden."""

RELIST_S = 60.0
"""How long (seconds) a resync waits for these lists."""

IsTouched = Callable[[Object], bool]


class SurroundingsWatch:
    """Implements ``workload.surroundings.Surroundings`` from informers.

    ``mark`` receives a function that tells whether a workload is touched by a change.
    """

    def __init__(
        self, client: KubeClient, mark: Callable[[IsTouched], None], on_trouble: TroubleHandler
    ) -> None:
        self._client, self._mark, self._on_trouble = client, mark, on_trouble
        self._limits = self._informer(LIMIT_RANGES, self._on_limit_range)
        self._runtimes = self._informer(RUNTIME_CLASSES, self._on_runtime_class)
        self._limits_of: dict[str, dict[str, Object]] = {}
        self._is_begun = False

    @property
    def informers(self) -> tuple[Informer, ...]:
        """Return all informers."""
        return self._limits, self._runtimes

    def _informer(self, resource: ApiResource, on_change: ChangeHandler) -> Informer:
        return Informer(self._client, resource, on_change=on_change, on_trouble=self._on_trouble)

    async def begin(self) -> None:
        """Start, and wait for the first lists, but not for ever."""
        for informer in self.informers:
            informer.start()
        lists = asyncio.gather(*(one.synced.wait() for one in self.informers))
        try:
            await asyncio.wait_for(lists, SYNC_S)
        except TimeoutError:
            lacking = [one.resource.key for one in self.informers if not one.synced.is_set()]
            logger.warning("not listed yet", extra={"action": "surroundings", "of": lacking})
        # Before that nothing was read with them.
        self._is_begun = True

    async def relist(self) -> None:
        """Read again what could be read before, unless it takes too long."""
        listed = [one for one in self.informers if one.synced.is_set()]
        with suppress(TimeoutError):
            # A right that was taken away must not stop the resync.
            await asyncio.wait_for(asyncio.gather(*(one.relist() for one in listed)), RELIST_S)

    async def stop(self) -> None:
        """Stop all informers."""
        for informer in self.informers:
            await informer.stop()

    # --- what is asked ------------------------------------------------------------------------

    def limit_ranges(self, namespace: str) -> Sequence[Object]:
        """Return the LimitRanges of a namespace."""
        return list(self._limits_of.get(namespace, {}).values())

    def runtime_class(self, name: str) -> Object | None:
        """Return a RuntimeClass."""
        return self._runtimes.get("", name)

    # --- what changes -------------------------------------------------------------------------

    def _on_limit_range(self, old: Object | None, new: Object | None) -> None:
        namespace, name = _place(old, new)
        its = self._limits_of.setdefault(namespace, {})
        if new is not None:
            its[name] = new
        else:
            its.pop(name, None)
        if not its:
            del self._limits_of[namespace]
        if (old or {}).get("spec") != (new or {}).get("spec"):
            self._tell(lambda workload: workload["metadata"].get("namespace") == namespace)

    def _on_runtime_class(self, old: Object | None, new: Object | None) -> None:
        _, name = _place(old, new)
        self._tell(lambda workload: _names_runtime(workload, name))

    def _tell(self, is_touched: IsTouched) -> None:
        if self._is_begun:
            self._mark(is_touched)


def _place(old: Object | None, new: Object | None) -> tuple[str, str]:
    obj = new or old
    assert obj is not None, "an informer tells of an object, old or new"
    return str(obj["metadata"].get("namespace") or ""), str(obj["metadata"]["name"])


def _names_runtime(workload: Object, name: str) -> bool:
    try:
        specs = kind_of(workload).pod_specs(workload)
        return any(spec.get("runtimeClassName") == name for spec in specs)
    except Exception:  # noqa: BLE001  it is reported when it is read
        return True
