"""FluxQueues as the controller sees them: complete present states with resolved namespaces.

Part of ``watches``. ``flusher`` owns the loop and the transaction. The matcher does not know the
labels of namespaces, so selectors are resolved here. This repeats whenever a namespace or a queue
changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.controller.observing.quarantine import said
from fluxqueue.db.store.queues import QueueSeen
from fluxqueue.errors import ApiError, ApiUnavailable, Conflict, InvalidInput, InvalidSettings
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.events import Involved, build_event, tell_event
from fluxqueue.kube.informer import Informer, TroubleHandler
from fluxqueue.kube.resources import FLUXQUEUES, NAMESPACES
from fluxqueue.objects import Object
from fluxqueue.policy.label_selector import is_selected
from fluxqueue.policy.queue_rules import DEFAULT_QUEUE, read_rules

logger = logging.getLogger(__name__)

RETRY_CAP_S = 5.0


def trim_namespace(namespace: Object) -> Object:
    """Keep name and labels."""
    meta = namespace["metadata"]
    kept = ("name", "uid", "resourceVersion", "labels")
    return {"metadata": {key: meta[key] for key in kept if key in meta}}


def trim_queue(queue: Object) -> Object:
    """Keep the spec. The counts in the status change all the time and have no effect here."""
    meta = queue["metadata"]
    kept = ("name", "uid", "resourceVersion", "generation")
    return {
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": queue.get("spec") or {},
    }


@dataclass(slots=True)
class QueueWatch:
    """Follows FluxQueues and namespaces. ``mark`` receives the names of queues to be written."""

    client: KubeClient
    mark: Callable[[str], None]
    clock: Clock
    policy: str
    """Policy of the queue ``default`` if it has to be created."""
    on_trouble: TroubleHandler | None = None
    queues: Informer = field(init=False)
    namespaces: Informer = field(init=False)

    def __post_init__(self) -> None:
        """Make the informers. ``Watches`` starts and stops them."""
        self.queues = Informer(
            self.client,
            FLUXQUEUES,
            on_change=self._on_queue,
            transform=trim_queue,
            on_trouble=self.on_trouble,
            retry_cap_s=RETRY_CAP_S,
        )
        self.namespaces = Informer(
            self.client,
            NAMESPACES,
            on_change=self._on_namespace,
            transform=trim_namespace,
            on_trouble=self.on_trouble,
            retry_cap_s=RETRY_CAP_S,
        )

    def _on_queue(self, old: Object | None, new: Object | None) -> None:
        queue = new or old
        assert queue is not None, "an informer tells of an object, old or new"
        if old is None or new is None or _asked(old) != _asked(new):
            self.mark(queue["metadata"]["name"])

    def _on_namespace(self, old: Object | None, new: Object | None) -> None:
        if _labels(old) != _labels(new) or old is None or new is None:
            for queue in self.queues.items():
                if "selector" in (queue["spec"].get("allowedNamespaces") or {}):
                    self.mark(queue["metadata"]["name"])

    def see(self, names: Iterable[str]) -> tuple[list[QueueSeen], list[str]]:
        """Return those of the queues ``names`` that exist, and the names of those that are gone."""
        found = {name: self.queues.get("", name) for name in names}
        seen = [self._see_one(queue) for queue in found.values() if queue is not None]
        return seen, [name for name, queue in found.items() if queue is None]

    def names(self) -> set[str]:
        """Return the names of all queues."""
        return {queue["metadata"]["name"] for queue in self.queues.items()}

    def _see_one(self, queue: Object) -> QueueSeen:
        meta, spec = queue["metadata"], queue["spec"]
        rules, namespaces, fault = None, None, None
        try:
            rules = read_rules(meta["name"], spec)
            namespaces = self._allowed(spec)
        except (InvalidInput, InvalidSettings) as error:
            fault = str(error)
        except Exception as error:
            # A defect of one queue must not affect the others. Its former spec stays in force.
            logger.exception("queue cannot be read", extra={"queue": meta["name"]})
            fault = said(error)
        return QueueSeen(
            name=meta["name"],
            uid=meta["uid"],
            generation=int(meta.get("generation") or 0),
            spec=spec,
            namespaces=namespaces,
            rules=rules if fault is None else None,
            fault=fault,
        )

    def _allowed(self, spec: Mapping[str, Any]) -> list[str] | None:
        allowed = spec.get("allowedNamespaces")
        if not allowed:
            return None
        names = set(allowed.get("names") or ())
        selector = allowed.get("selector")
        if selector is not None:
            names |= {
                namespace["metadata"]["name"]
                for namespace in self.namespaces.items()
                if is_selected(selector, _labels(namespace) or {})
            }
        return sorted(names)

    async def ensure_default(self) -> None:
        """Create the FluxQueue ``default`` if there is none. It can be changed like any other.

        A refusal is only logged, because the queue works without its object too.
        """
        if self.queues.get("", DEFAULT_QUEUE) is not None:
            return
        body = {
            "apiVersion": FLUXQUEUES.api_version,
            "kind": FLUXQUEUES.kind,
            "metadata": {"name": DEFAULT_QUEUE},
            "spec": {"policy": self.policy},
        }
        try:
            made = await self.client.create(FLUXQUEUES, None, body)
        except Conflict:
            return
        except (ApiError, ApiUnavailable) as error:
            logger.warning("queue default not made", extra={"error": str(error)})
            return
        self.queues.observe(trim_queue(made))

    async def tell_faults(self, seen: Iterable[QueueSeen]) -> None:
        """Emit an Event for each unusable spec."""
        for one in seen:
            if one.fault is not None:
                await self._tell_fault(one)

    async def _tell_fault(self, queue: QueueSeen) -> None:
        logger.warning("queue cannot be used", extra={"queue": queue.name, "error": queue.fault})
        about = Involved(FLUXQUEUES.api_version, FLUXQUEUES.kind, "", queue.name, queue.uid)
        event = build_event(
            about,
            key=f"fault/{queue.generation}",
            reason="InvalidQueue",
            message=f"its former spec stays in force: {queue.fault}",
            at_s=self.clock.now_s(),
            is_warning=True,
        )
        await tell_event(self.client, event)  # the row and the log have it too


def _asked(queue: Object) -> tuple[Any, ...]:
    meta = queue["metadata"]
    return meta["uid"], meta.get("generation"), queue["spec"]


def _labels(namespace: Object | None) -> Mapping[str, str] | None:
    return None if namespace is None else namespace["metadata"].get("labels") or {}
