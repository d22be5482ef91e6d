"""Watches: start, resync and stop the informers for all followed objects of the cluster.

Part of ``observer``. Each informer reports changes to ``event_router``. Questions about nodes,
queues and PriorityClasses are answered from the last seen state. Watches make no decisions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from fluxqueue.clock import Clock
from fluxqueue.controller.observing.autoscalers import AutoscalerWatch
from fluxqueue.controller.observing.batch_jobs import BatchJobs
from fluxqueue.controller.observing.device_watch import DeviceWatch
from fluxqueue.controller.observing.event_router import EventRouter
from fluxqueue.controller.observing.quarantine import NODE, PRIORITY_CLASS, Quarantine
from fluxqueue.controller.observing.queue_watch import QueueWatch
from fluxqueue.controller.observing.read_workload import trim_pod
from fluxqueue.controller.observing.rule_watch import RULE_KINDS, RuleWatch
from fluxqueue.controller.observing.surroundings_watch import SurroundingsWatch
from fluxqueue.controller.observing.suspended_owners import SuspendedOwners
from fluxqueue.controller.observing.workload_classes import WorkloadClassWatch
from fluxqueue.controller.observing.zones import ZoneWatch
from fluxqueue.errors import ApiError, ApiUnavailable
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.informer import Carry, ChangeHandler, Informer, Transform
from fluxqueue.kube.resources import NODES, PODS, PRIORITY_CLASSES, ApiResource
from fluxqueue.workload import labels
from fluxqueue.workload.node_object import node_fact
from fluxqueue.workload.objects import Object
from fluxqueue.workload.observed_pod import carry_kill
from fluxqueue.workload.owner_kinds import OwnerKinds

logger = logging.getLogger(__name__)

Read = TypeVar("Read")

RETRY_MIN_S, RETRY_MAX_S = 0.2, 5.0


class Watches:
    """The informers of the controller.

    Parameters
    ----------
    marking : receives every change.
    troubles : receives objects that cannot be read.
    default_queue : spec of the queue ``default`` if it has to be created.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        owner_kinds: OwnerKinds,
        router: EventRouter,
        *,
        quarantine: Quarantine,
        default_queue: Mapping[str, str],
    ) -> None:
        self._client, self._clock, self._quarantine = client, clock, quarantine
        self.queues = QueueWatch(
            client, router.mark_queue, clock, default_queue, on_trouble=self._on_trouble
        )
        self.queues.namespaces.add_handler(router.on_namespace)
        self.rules = tuple(
            RuleWatch(
                client,
                partial(router.mark_rule, kind.dirty),
                clock,
                kind,
                on_trouble=self._on_trouble,
            )
            for kind in RULE_KINDS
        )
        self._zones = ZoneWatch(client, router.mark_node)
        self._workload_classes = WorkloadClassWatch(client)
        self._jobs = BatchJobs(
            client,
            clock,
            is_known=router.is_awaited,
            on_change=router.on_job,
            on_trouble=self._on_trouble,
        )
        self._suspended = SuspendedOwners(
            client, clock, owner_kinds, router.on_suspended, on_trouble=self._on_trouble
        )
        nodes = self._nodes = self._informer(NODES, router.on_node)
        self.surroundings = SurroundingsWatch(
            client, nodes.items, router.mark_touched, router.mark_node, self._on_trouble
        )
        nodes.add_handler(self.surroundings.on_node)
        router.foreign.volumes_of = self.surroundings.volumes_of
        self._devices = self.surroundings.devices = DeviceWatch(
            client,
            clock,
            router.mark_node,
            self.node_names,
            router.is_managed_pod,
            self.surroundings.touch,
            on_trouble=self._on_trouble,
        )
        self._autoscalers = AutoscalerWatch(client, clock, self._nodes.items)
        self._classes = self._informer(PRIORITY_CLASSES)
        self._informers = (
            self.queues.objects,
            self.queues.namespaces,
            *(one.objects for one in self.rules),
            self._jobs.informer,
            self._informer(PODS, router.on_pod, trim_pod, carry_kill),
            self._nodes,
            self._classes,
        )

    def _informer(
        self,
        resource: ApiResource,
        on_change: ChangeHandler | None = None,
        transform: Transform | None = None,
        carry: Carry | None = None,
    ) -> Informer:
        return Informer(
            self._client,
            resource,
            on_change=on_change,
            transform=transform,
            carry=carry,
            on_trouble=self._on_trouble,
            retry_cap_s=RETRY_MAX_S,
        )

    def _on_trouble(self, resource: ApiResource, obj: Object, error: Exception | None) -> None:
        """Report that an object cannot be read, or that it can be read again."""
        self._quarantine.tell_of(resource, obj, error)

    async def begin(self, suspended: Set[tuple[str, str]]) -> None:
        """Start all informers and wait until each has seen all of its objects.

        ``suspended`` holds the API groups and kinds of suspendable objects that rows refer to.
        """
        # Before the pods, which belong to the objects that are held by their suspension.
        await self._suspended.begin(suspended)
        # Before the informers: a BatchJob that lost its label would be taken for gone.
        await insist(self._clock, self._jobs.look, "BatchJobs")
        for informer in self._informers:
            informer.start()
        await asyncio.gather(
            self._zones.look(),
            self._workload_classes.look(),
            self._autoscalers.look(),
            self._devices.look(),
            self.surroundings.begin(),
        )
        # Wait for all: what is not listed yet would be taken for gone by the first resync.
        for informer in self._informers:
            await informer.synced.wait()

    async def run(self) -> None:
        """Follow kinds that are served later, until cancelled. Call it after ``begin``."""
        await self._suspended.run()

    async def read_anew(self) -> None:
        """Read everything from the API server again.

        Raises
        ------
        ApiUnavailable, ApiError
            Something cannot be read.
        """
        await asyncio.gather(*(one.relist() for one in self._informers))
        await self._jobs.look()
        await self._suspended.relist()
        await self.surroundings.relist()
        await self._zones.look()
        await self._workload_classes.look()
        await self._autoscalers.look()
        await self._devices.look()

    async def stop(self) -> None:
        """Stop all informers."""
        await self._suspended.stop()
        await self._jobs.stop()
        for informer in self._informers:
            with suppress(asyncio.CancelledError):
                await informer.stop()
        await self.surroundings.stop()
        await self._zones.stop()
        await self._workload_classes.stop()
        await self._devices.stop()

    def nodes(self, names: Iterable[str]) -> tuple[list[NodeFact], list[str]]:
        """Return those of the nodes ``names`` that exist, and the names of those that are gone.

        A node that cannot be read is in neither list. Its row stays as it is.
        """
        present: list[NodeFact] = []
        gone: list[str] = []
        for name in names:
            node = self._nodes.get("", name)
            if node is None:
                gone.append(name)
                self._quarantine.clear(NODE, name)
                continue
            try:
                fact = self._devices.on(node_fact(node, self._zones.of(name)))
                volumes = self.surroundings.volumes_on(name)
                present.append(replace(fact, capacity={**fact.capacity, **volumes}))
            except Exception as error:  # noqa: BLE001  one node must not hide the others
                self._quarantine.note(NODE, name, error, node, type_of=("v1", "Node"))
            else:
                self._quarantine.clear(NODE, name)
        return present, gone

    def node_names(self) -> set[str]:
        """Return the names of all nodes."""
        return {node["metadata"]["name"] for node in self._nodes.items()}

    def autoscaler(self) -> str:
        """Return the names of the programs that add nodes to the cluster, or nothing."""
        return self._autoscalers.found

    def hosts(self) -> dict[str, str]:
        """Return the node names by hostname label."""
        named = (
            ((node["metadata"].get("labels") or {}).get(labels.HOSTNAME), node["metadata"]["name"])
            for node in self._nodes.items()
        )
        return {host: name for host, name in named if host is not None}

    def class_values(self) -> dict[str, int]:
        """Return the values of PriorityClasses by name, and of WorkloadPriorityClasses.

        The empty name has the value that pods without a class get: that of the global default.
        Of several global defaults the API server takes the lowest.
        """
        found: dict[str, int] = self._workload_classes.values()
        defaults: list[int] = []
        for item in self._classes.items():
            name = item["metadata"]["name"]
            try:
                found[name] = int(item["value"])
                if item.get("globalDefault"):
                    defaults.append(found[name])
            except Exception as error:  # noqa: BLE001  it counts as absent
                at = (PRIORITY_CLASSES.api_version, PRIORITY_CLASSES.kind)
                self._quarantine.note(PRIORITY_CLASS, name, error, item, type_of=at)
            else:
                self._quarantine.clear(PRIORITY_CLASS, name)
        return found | ({"": min(defaults)} if defaults else {})


async def insist(clock: Clock, read: Callable[[], Awaitable[Read]], what: str) -> Read:
    """Read until the API server answers."""
    pause = RETRY_MIN_S
    while True:
        try:
            return await read()
        except (ApiUnavailable, ApiError) as error:
            extra = {"action": "begin", "what": what, "error": str(error)}
            logger.warning("not read; tried again", extra=extra)
            await clock.sleep(pause)
            pause = min(2 * pause, RETRY_MAX_S)
