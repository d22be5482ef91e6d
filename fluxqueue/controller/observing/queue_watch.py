"""FluxQueues as the controller sees them: complete present states with resolved namespaces.

Part of ``watches``. ``flusher`` owns the loop and the transaction. The matcher does not know the
labels of namespaces, so selectors are resolved here. This repeats whenever a namespace or a queue
changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.controller.observing.rule_watch import (
    RETRY_CAP_S,
    SpecKind,
    SpecWatch,
    trim_spec,
)
from fluxqueue.db.store.queues import QueueSeen
from fluxqueue.errors import ApiError, ApiUnavailable, Conflict
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.informer import Informer, TroubleHandler
from fluxqueue.kube.resources import FLUXQUEUES, NAMESPACES
from fluxqueue.policy.label_selector import is_selected
from fluxqueue.policy.queue_rules import DEFAULT_QUEUE, read_rules
from fluxqueue.workload.objects import Object

logger = logging.getLogger(__name__)

DEFAULT_GRACE_MAX_S = 600
"""The longest grace of pods that the queue ``default`` takes when it is made, in seconds."""


def trim_namespace(namespace: Object) -> Object:
    """Keep name, labels and the time of its deletion."""
    meta = namespace["metadata"]
    kept = ("name", "uid", "resourceVersion", "labels", "deletionTimestamp")
    return {"metadata": {key: meta[key] for key in kept if key in meta}}


KIND = SpecKind(
    resource=FLUXQUEUES,
    word="queue",
    field="queue",
    reason="InvalidQueue",
    effect="its former spec stays in force",
)


class QueueWatch(SpecWatch[QueueSeen]):
    """Follow FluxQueues and namespaces.

    Parameters
    ----------
    mark : receives the names of queues that must be written.
    default : spec of the queue ``default`` if it has to be created.
    """

    def __init__(
        self,
        client: KubeClient,
        mark: Callable[[str], None],
        clock: Clock,
        default: Mapping[str, str],
        *,
        on_trouble: TroubleHandler | None = None,
    ) -> None:
        super().__init__(client, mark, clock, KIND, self._see_queue, on_trouble=on_trouble)
        self._default = default
        # ``Watches`` starts and stops it.
        self.namespaces = Informer(
            client,
            NAMESPACES,
            on_change=self._on_namespace,
            transform=trim_namespace,
            on_trouble=on_trouble,
            retry_cap_s=RETRY_CAP_S,
        )

    def _on_namespace(self, old: Object | None, new: Object | None) -> None:
        if _labels(old) != _labels(new) or old is None or new is None:
            for queue in self.objects.items():
                if "selector" in (queue["spec"].get("allowedNamespaces") or {}):
                    self._mark(queue["metadata"]["name"])

    def _see_queue(self, queue: Object) -> QueueSeen:
        meta, spec = queue["metadata"], queue["spec"]
        name = meta["name"]
        found, fault = KIND.attempt(name, lambda: (read_rules(name, spec), self._allowed(spec)))
        rules, namespaces = found or (None, None)
        return QueueSeen(
            name=name,
            uid=meta["uid"],
            generation=int(meta.get("generation") or 0),
            spec=spec,
            namespaces=namespaces,
            rules=rules,
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
        if self.objects.get("", DEFAULT_QUEUE) is not None:
            return
        body = {
            "apiVersion": FLUXQUEUES.api_version,
            "kind": FLUXQUEUES.kind,
            "metadata": {"name": DEFAULT_QUEUE},
            "spec": {
                **self._default,
                "limits": {"perJob": {"graceSeconds": DEFAULT_GRACE_MAX_S}},
            },
        }
        try:
            made = await self._client.create(FLUXQUEUES, None, body)
        except Conflict:
            return
        except (ApiError, ApiUnavailable) as error:
            logger.warning("queue default not made", extra={"error": str(error)})
            return
        self.objects.observe(trim_spec(made))


def _labels(namespace: Object | None) -> Mapping[str, str] | None:
    return None if namespace is None else namespace["metadata"].get("labels") or {}
