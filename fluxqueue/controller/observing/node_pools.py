"""FluxNodePools as the controller sees them: each with its spec, and whether it is valid.

Part of ``watches``. ``flusher`` owns the loop and the transaction. The worker that matches obeys
the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fluxqueue.clock import Clock
from fluxqueue.controller.observing.quarantine import said
from fluxqueue.controller.observing.queues import trim_queue
from fluxqueue.controller.observing.sharing_policies import RETRY_CAP_S, check_storable
from fluxqueue.db.store.node_pools import NodePoolSeen
from fluxqueue.errors import InvalidInput
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.events import Involved, build_event, tell_event
from fluxqueue.kube.informer import Informer, TroubleHandler
from fluxqueue.kube.resources import FLUX_NODE_POOLS
from fluxqueue.objects import Object
from fluxqueue.policy.node_pool import read_node_pool

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class NodePoolWatch:
    """Follows FluxNodePools. ``mark`` receives the names of those to be written."""

    client: KubeClient
    mark: Callable[[str], None]
    clock: Clock
    on_trouble: TroubleHandler | None = None
    pools: Informer = field(init=False)

    def __post_init__(self) -> None:
        """Make the informer. ``Watches`` starts and stops it."""
        self.pools = Informer(
            self.client,
            FLUX_NODE_POOLS,
            on_change=self._on_pool,
            transform=trim_queue,
            on_trouble=self.on_trouble,
            retry_cap_s=RETRY_CAP_S,
        )

    def _on_pool(self, old: Object | None, new: Object | None) -> None:
        pool = new or old
        assert pool is not None, "an informer tells of an object, old or new"
        if old is None or new is None or _asked(old) != _asked(new):
            self.mark(pool["metadata"]["name"])

    def see(self, names: Iterable[str]) -> tuple[list[NodePoolSeen], list[str]]:
        """Return those of the pools ``names`` that exist, and the names of the others."""
        found = {name: self.pools.get("", name) for name in names}
        seen = [self._see_one(one) for one in found.values() if one is not None]
        return seen, [name for name, one in found.items() if one is None]

    def names(self) -> set[str]:
        """Return the names of all pools."""
        return {one["metadata"]["name"] for one in self.pools.items()}

    def _see_one(self, pool: Object) -> NodePoolSeen:
        meta, spec = pool["metadata"], pool["spec"]
        fault = None
        try:
            check_storable(spec)
            read_node_pool(meta["name"], spec)
        except InvalidInput as error:
            fault = str(error)
        except Exception as error:
            # A defect of one pool must not affect the others. Its former spec stays in force.
            logger.exception("node pool cannot be read", extra={"pool": meta["name"]})
            fault = said(error)
        # Without a fault only: a spec that no row can hold would fail the writing of all others.
        kept = spec if fault is None else {}
        return NodePoolSeen(
            meta["name"], meta["uid"], int(meta.get("generation") or 0), kept, fault
        )

    async def tell_faults(self, seen: Iterable[NodePoolSeen]) -> None:
        """Emit an Event for each unusable spec."""
        for one in seen:
            if one.fault is None:
                continue
            extra = {"pool": one.name, "error": one.fault}
            logger.warning("node pool cannot be used", extra=extra)
            about = Involved(
                FLUX_NODE_POOLS.api_version, FLUX_NODE_POOLS.kind, "", one.name, one.uid
            )
            event = build_event(
                about,
                key=f"fault/{one.generation}",
                reason="InvalidNodePool",
                message=f"its former spec stays in force if it had one: {one.fault}",
                at_s=self.clock.now_s(),
                is_warning=True,
            )
            await tell_event(self.client, event)  # the row and the log have it too


def _asked(pool: Object) -> tuple[object, ...]:
    meta = pool["metadata"]
    return meta["uid"], meta.get("generation"), pool["spec"]
