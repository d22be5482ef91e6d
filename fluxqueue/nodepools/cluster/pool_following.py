"""Keep discovered FluxNodePools in step with what they were discovered from.

The leading controller runs it if ``FLUXQUEUE_FOLLOW_POOLS`` is set. It is level-based: each round
reads pools and sources, and asks ``following`` for the difference. It writes
under the resourceVersion that it read, so a change that comes meanwhile wins. If a source
cannot be read, the round changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.errors import Conflict, FluxQueueError, NotFound
from fluxqueue.fluxjob.times import from_rfc3339
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.resources import FLUX_NODE_POOLS
from fluxqueue.nodepools.cluster.pool_sources import read_pool_sources
from fluxqueue.nodepools.proposals.following import PoolChange, follow, source_of
from fluxqueue.process.endpoint import Heartbeats
from fluxqueue.workload.autoscaling import STATUS_NAME, STATUS_NAMESPACE
from fluxqueue.workload.objects import Object

logger = logging.getLogger(__name__)

INTERVAL_S = 60.0
LOOP = "pools"
PATIENCE_S = 900.0
"""Longest time (seconds) of a round, with the time-outs and retries of many requests."""

SAMPLE_MAX, SETTLED_S = 3, 180
"""The nodes of each pool whose pods are read, and their least age in seconds.

The pods of DaemonSets come to a new node after a while. Without them, the node looks larger.
"""


class PoolFollower:
    """Changes and removes discovered pools: ``run`` repeatedly, or ``look`` once."""

    def __init__(
        self, client: KubeClient, clock: Clock, heartbeats: Heartbeats | None = None
    ) -> None:
        self._client, self._clock = client, clock
        self._heartbeats = heartbeats or Heartbeats()

    async def run(self) -> None:
        """Look until cancelled. A round that fails is repeated."""
        try:
            while True:
                self._heartbeats.beat(LOOP, within_s=PATIENCE_S)
                try:
                    await self.look()
                except FluxQueueError as error:
                    logger.info("not read", extra={"action": LOOP, "error": str(error)})
                except Exception:
                    logger.exception("pools not followed")
                await self._clock.sleep(INTERVAL_S)
        finally:
            self._heartbeats.stop(LOOP)

    async def look(self) -> None:
        """Compare all pools that have a source with it.

        Raises
        ------
        ApiUnavailable, ApiError
            The API server cannot be reached or refuses.
        """
        listed = (await self._client.list(FLUX_NODE_POOLS)).items
        pools = [one for one in listed if source_of(one)]
        if not pools:
            return
        now_s = self._clock.now_s()
        place = STATUS_NAMESPACE, STATUS_NAME
        sources = await read_pool_sources(
            self._client, place, lambda nodes: _sample(nodes, pools, now_s)
        )
        if sources.notes:
            # What is not read must not look as if it were gone.
            extra = {"action": LOOP, "error": "; ".join(sources.notes)}
            logger.warning("pools do not follow their sources", extra=extra)
            return
        proposals = sources.proposals()
        for pool in pools:
            given = sources.given(source_of(pool), pool["spec"], proposals)
            change = follow(pool, given, now_s)
            if change is not None:
                await self._apply(pool, change)

    async def _apply(self, pool: Object, change: PoolChange) -> None:
        meta = pool["metadata"]
        name, version = meta["name"], meta["resourceVersion"]
        extra = {"action": LOOP, "pool": name, "source": source_of(pool), "why": change.why}
        try:
            if change.is_removed:
                await self._client.delete(
                    FLUX_NODE_POOLS, None, name, uid=meta["uid"], version=version
                )
                logger.warning("node pool removed", extra=extra)
                return
            await self._client.patch(
                FLUX_NODE_POOLS, None, name, _under(change.patch, version), kind=PatchKind.MERGE
            )
        except (Conflict, NotFound):
            return  # the next round sees what has changed
        extra["fields"] = ", ".join(change.fields)
        logger.warning("node pool follows its source", extra=extra)


def _under(patch: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Return a patch that only applies to this version of the object."""
    return {**patch, "metadata": {**patch["metadata"], "resourceVersion": version}}


def _sample(nodes: Sequence[Object], pools: Sequence[Object], now_s: int) -> list[Object]:
    """Return a few nodes of each pool that are not new."""
    found: dict[str, Object] = {}
    settled = [one for one in nodes if _age_s(one, now_s) >= SETTLED_S]
    settled.sort(key=lambda one: str(one["metadata"]["name"]))
    for pool in pools:
        labels = (pool["spec"].get("node") or {}).get("labels") or {}
        own = [one for one in settled if labels.items() <= _labels(one).items()]
        found |= {one["metadata"]["name"]: one for one in own[:SAMPLE_MAX]}
    return list(found.values())


def _labels(node: Object) -> Mapping[str, Any]:
    return node["metadata"].get("labels") or {}


def _age_s(node: Object, now_s: int) -> float:
    try:
        return now_s - from_rfc3339(str(node["metadata"].get("creationTimestamp")))
    except ValueError:
        return 0.0
