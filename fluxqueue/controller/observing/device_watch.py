"""DeviceClasses, ResourceSlices and claims: devices of nodes and pods, if the cluster has DRA.

Part of ``watches``. Discovery finds the API group ``resource.k8s.io`` when a term begins and at
each resync. Without it nothing is watched. DeviceTaintRules are an option of that group. What
cannot be counted is reported on its DeviceClass.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fluxqueue.clock import Clock
from fluxqueue.controller.observing.surroundings_watch import any_spec
from fluxqueue.controller.observing.zones import SYNC_S
from fluxqueue.errors import ApiError, ApiUnavailable, NotFound
from fluxqueue.fluxjob.node import CAPACITY_MAX, NodeFact
from fluxqueue.fluxjob.request import Taint
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.events import Involved, build_event, tell_event
from fluxqueue.kube.informer import Informer, TroubleHandler
from fluxqueue.kube.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ApiResource,
)
from fluxqueue.workload.device_claims import (
    claim_owner,
    counted_as,
    extended_resources,
    is_always_counted,
    named_claims,
    templates_of,
)
from fluxqueue.workload.devices import (
    DeviceAmounts,
    DeviceClassFact,
    DeviceId,
    DeviceSlice,
    DeviceTaintRule,
    allocated_devices,
    count_devices,
    newest,
    read_class,
    read_slice,
    read_taint_rule,
)
from fluxqueue.workload.objects import Object

logger = logging.getLogger(__name__)

NOTHING = DeviceAmounts()


@dataclass(slots=True)
class DeviceWatch:
    """Follows the objects, if they are served. ``mark`` receives the names of nodes to be written.

    ``nodes`` returns the names of all nodes. ``is_ours`` tells whether a pod (UID) has a slot: that
    counts its devices. ``touch`` receives a test for the workloads that a change may touch.
    """

    client: KubeClient
    clock: Clock
    mark: Callable[[str], None]
    nodes: Callable[[], Iterable[str]]
    is_ours: Callable[[str], bool]
    touch: Callable[[Callable[[Object], bool]], None]
    on_trouble: TroubleHandler | None = None
    _informers: tuple[Informer, ...] = ()
    _classes: dict[str, DeviceClassFact] = field(default_factory=dict)
    _slices: dict[str, DeviceSlice] = field(default_factory=dict)
    _on_node: dict[str | None, dict[str, DeviceSlice]] = field(default_factory=dict)
    _in_pool: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    _generations: dict[tuple[str, str], int] = field(default_factory=dict)
    _claims: dict[str, list[DeviceId]] = field(default_factory=dict)
    _taken: dict[DeviceId, dict[str, str | None]] = field(default_factory=dict)
    _told: dict[str, str] = field(default_factory=dict)
    _rule_informer: Informer | None = None
    _rules: dict[str, DeviceTaintRule] = field(default_factory=dict)
    _taints: Counter[Taint] = field(default_factory=Counter)
    _rare: dict[str, Sequence[Object]] = field(default_factory=dict)
    _taking: set[str] = field(default_factory=set)

    async def look(self) -> None:
        """Start to follow the objects if they are served now, stop if they no longer are."""
        try:
            is_served = await self._is_served()
        except (ApiError, ApiUnavailable) as error:
            logger.warning("discovery failed", extra={"action": "devices", "error": str(error)})
            return
        if not is_served:
            await self.stop()
        elif not self._informers:
            await self._start()
        if is_served:
            await self._look_for_rules()
        await self._tell_doubts()

    async def _is_served(self) -> bool:
        try:
            group = await self.client.request("GET", f"/apis/{RESOURCE_SLICES.group}")
        except NotFound:
            return False
        versions = {one["version"] for one in group.get("versions") or ()}
        return RESOURCE_SLICES.version in versions

    async def _look_for_rules(self) -> None:
        """Start to follow DeviceTaintRules if they are served now, stop if they no longer are."""
        try:
            served = await self._rules_served()
        except (ApiError, ApiUnavailable) as error:
            logger.warning("discovery failed", extra={"action": "devices", "error": str(error)})
            return
        if self._rule_informer is not None and self._rule_informer.resource != served:
            await self._stop_rules()
        if served is None or self._rule_informer is not None:
            return
        informer = self._rule_informer = Informer(
            self.client, served, on_change=self._on_rule, on_trouble=self.on_trouble
        )
        informer.start()
        try:
            await asyncio.wait_for(informer.synced.wait(), SYNC_S)
        except TimeoutError:
            logger.warning("no rules of devices yet", extra={"action": "devices"})

    async def _rules_served(self) -> ApiResource | None:
        """Return the best version of DeviceTaintRules that is served.

        A version of the group may be served without them.
        """
        for one in DEVICE_TAINT_RULES:
            try:
                answer = await self.client.request("GET", f"/apis/{one.group}/{one.version}")
            except NotFound:
                continue
            if any(found["name"] == one.plural for found in answer.get("resources") or ()):
                return one
        return None

    async def _stop_rules(self) -> None:
        informer, self._rule_informer = self._rule_informer, None
        if informer is not None:
            await informer.stop()
        for name in list(self._rules):
            self._change_rule(name, None)

    async def _start(self) -> None:
        handlers = (
            (DEVICE_CLASSES, self._on_class),
            (RESOURCE_SLICES, self._on_slice),
            (RESOURCE_CLAIMS, self._on_claim),
            (RESOURCE_CLAIM_TEMPLATES, self._on_template),
        )
        self._informers = tuple(
            Informer(self.client, resource, on_change=handler, on_trouble=self.on_trouble)
            for resource, handler in handlers
        )
        for informer in self._informers:
            informer.start()
        try:
            async with asyncio.timeout(SYNC_S):
                for informer in self._informers:
                    await informer.synced.wait()
        except TimeoutError:
            # It may be forbidden, which must not stop the observation of everything else.
            logger.warning("no devices yet", extra={"action": "devices"})

    async def stop(self) -> None:
        """Stop, and mark the nodes that had devices."""
        await self._stop_rules()
        informers, self._informers = self._informers, ()
        for informer in informers:
            await informer.stop()
        had = {node for one in self._slices.values() for node in self._reached(one)}
        for kept in (self._classes, self._slices, self._on_node, self._claims, self._taken):
            kept.clear()
        for kept_too in (self._in_pool, self._generations, self._taints, self._rare, self._taking):
            kept_too.clear()
        for node in had:
            self.mark(node)

    # --- what a node has -------------------------------------------------------------------------

    def on(self, fact: NodeFact) -> NodeFact:
        """Return the fact of a node with its devices.

        A resource that the node advertises itself is served by its device plugin, not by a class.
        """
        found = self._count(fact.name) if self._slices else NOTHING
        amounts = {
            name: min(amount, CAPACITY_MAX)
            for name, amount in found.capacity.items()
            if not fact.capacity.get(name)
        }
        if not amounts:
            return fact
        unusable = {name: n for name, n in found.unusable.items() if name in amounts}
        return replace(fact, capacity={**fact.capacity, **amounts}, unusable=unusable)

    def _count(self, node: str) -> DeviceAmounts:
        reached = (*self._of(node).values(), *self._of(None).values())
        devices = list(newest(reached, self._generations))
        taken = {one.id for one in devices if self._is_taken(one.id)}
        tainted = {one.id for one in devices if self._rules and self._rule_taints(one.id)}
        return count_devices(list(self._classes.values()), devices, taken, tainted)

    def _rule_taints(self, device: DeviceId) -> list[Taint]:
        """Return the taints of a device by rules."""
        return [rule.taint for rule in self._rules.values() if rule.meets(device)]

    def _is_taken(self, device: DeviceId) -> bool:
        """Return whether a claim holds a device that no slot counts."""
        return any(
            owner is None or not self.is_ours(owner) or not self._is_counted(uid)
            for uid, owner in self._taken.get(device, {}).items()
        )

    def _is_counted(self, claim: str) -> bool:
        """Return whether the slot of a pod counts the devices of its claim."""
        return all(counted_as(one, self) is not None for one in self._rare.get(claim, ()))

    def _of(self, node: str | None) -> Mapping[str, DeviceSlice]:
        return self._on_node.get(node, {})

    # --- what claims of pods refer to ------------------------------------------------------------

    def claim_template(self, namespace: str, name: str) -> Object | None:
        """Return a ResourceClaimTemplate."""
        return self._informers[3].get(namespace, name) if self._informers else None

    def resource_claim(self, namespace: str, name: str) -> Object | None:
        """Return a ResourceClaim."""
        return self._informers[2].get(namespace, name) if self._informers else None

    def device_resource(self, device_class: str) -> str | None:
        """Return the resource name under which devices of a class are counted."""
        found = self._classes.get(device_class)
        return None if found is None else found.resource

    def device_takes(self, device_class: str) -> Mapping[str, int] | None:
        """Return the most that a device of a class takes of its node. None if that is unknown."""
        found, most = self._classes.get(device_class), dict[str, int]()
        if found is None:
            return most
        # Most clusters have no such device, and then none is looked at.
        for name in self._taking:
            for device in self._slices[name].devices:
                if device.takes == () or not found.may_have(device):
                    continue
                if device.takes is None:
                    return None
                for resource, amount in device.takes:
                    most[resource] = max(most.get(resource, 0), amount)
        return most

    def device_taints(self, device_class: str) -> set[Taint]:
        """Return the taints that some devices of a class have."""
        found = self._classes.get(device_class)
        # Most clusters have none, and then no device is looked at.
        if found is None or not (self._taints or self._rules):
            return set()
        return {
            taint
            for one in self._slices.values()
            for device in one.devices
            if found.may_have(device)
            for taint in (*device.taints, *self._rule_taints(device.id))
        }

    def is_doubtful(self, resource: str) -> bool:
        """Return whether some of the devices that serve a resource cannot be counted.

        The answer is that of the last look, because a look reads all devices.
        """
        return bool(self._told) and any(
            resource in one.resources for name, one in self._classes.items() if name in self._told
        )

    # --- changes ---------------------------------------------------------------------------------

    def _on_class(self, old: Object | None, new: Object | None) -> None:
        one = new or old
        assert one is not None, "an informer tells of an object, old or new"
        name, before = one["metadata"]["name"], self._classes.get(one["metadata"]["name"])
        if new is None:
            self._classes.pop(name, None)
        else:
            self._classes[name] = read_class(new)
        if self._classes.get(name) != before:
            for node in {node for one in self._slices.values() for node in self._reached(one)}:
                self.mark(node)
            self._touch_claiming()

    def _touch_claiming(self) -> None:
        """Have all workloads read again that ask for devices by claims.

        Whether claims with tolerations are counted may have changed as well.
        """
        self._mark_nodes_of(device for uid in self._rare for device in self._claims.get(uid, ()))
        self.touch(lambda workload: any_spec(workload, lambda spec: "resourceClaims" in spec))

    def _on_rule(self, old: Object | None, new: Object | None) -> None:
        one = new or old
        assert one is not None, "an informer tells of an object, old or new"
        self._change_rule(one["metadata"]["name"], None if new is None else read_taint_rule(new))

    def _change_rule(self, name: str, now: DeviceTaintRule | None) -> None:
        before = self._rules.pop(name, None)
        if now is not None:
            self._rules[name] = now
        if before == now:
            return
        rules = [one for one in (before, now) if one is not None]
        meant = [
            one for one in self._slices.values() if any(rule.reaches(one.pool) for rule in rules)
        ]
        for node in {node for one in meant for node in self._reached(one)}:
            self.mark(node)
        self._touch_claiming()

    def _on_template(self, old: Object | None, new: Object | None) -> None:
        meta = (new or old or {})["metadata"]
        if (old or {}).get("spec") != (new or {}).get("spec"):
            self.touch(
                lambda workload: (
                    workload["metadata"].get("namespace") == meta["namespace"]
                    and any_spec(workload, lambda spec: meta["name"] in templates_of(spec))
                )
            )

    def _on_slice(self, old: Object | None, new: Object | None) -> None:
        one = new or old
        assert one is not None, "an informer tells of an object, old or new"
        name = one["metadata"]["name"]
        before = self._slices.pop(name, None)
        now = None if new is None else read_slice(new)
        if before is not None:
            self._on_node[before.node].pop(name, None)
            self._in_pool[before.pool].discard(name)
        if now is not None:
            self._slices[name] = now
            self._on_node.setdefault(now.node, {})[name] = now
            self._in_pool.setdefault(now.pool, set()).add(name)
        if before == now:
            return
        changed = [one for one in (before, now) if one is not None]
        known = frozenset(self._taints)
        self._taints.subtract(_taints_of(before))
        self._taints.update(_taints_of(now))
        self._taints = +self._taints
        took = name in self._taking
        takes = now is not None and any(device.takes != () for device in now.devices)
        (self._taking.add if takes else self._taking.discard)(name)
        if known != frozenset(self._taints) or took or takes:
            self._touch_claiming()
        for pool in {one.pool for one in changed}:
            generations = [self._slices[one].generation for one in self._in_pool[pool]]
            self._generations[pool] = max(generations, default=0)
        for node in {node for one in changed for node in self._reached(one)}:
            self.mark(node)

    def _on_claim(self, old: Object | None, new: Object | None) -> None:
        one = new or old
        assert one is not None, "an informer tells of an object, old or new"
        uid = one["metadata"]["uid"]
        before = self._claims.pop(uid, [])
        now = [] if new is None else allocated_devices(new)
        if now:
            self._claims[uid] = now
        self._rare.pop(uid, None)
        rare = [request for request in _requests(one) if not is_always_counted(request)]
        if now and rare:
            self._rare[uid] = rare
        if before == now:
            return
        owner, meta = claim_owner(one), one["metadata"]
        for device in before:
            self._taken[device].pop(uid, None)
            if not self._taken[device]:
                del self._taken[device]
        for device in now:
            self._taken.setdefault(device, {})[uid] = owner
        if owner is None:
            self.touch(
                lambda workload: (
                    workload["metadata"].get("namespace") == meta.get("namespace")
                    and any_spec(workload, lambda spec: meta["name"] in named_claims(spec))
                )
            )
        self._mark_nodes_of((*before, *now))

    def _mark_nodes_of(self, devices: Iterable[DeviceId]) -> None:
        for pool in {device[:2] for device in devices}:
            for slice_name in self._in_pool.get(pool, ()):
                for node in self._reached(self._slices[slice_name]):
                    self.mark(node)

    def _reached(self, one: DeviceSlice) -> Iterable[str]:
        return self.nodes() if one.node is None else (one.node,)

    # --- what cannot be counted ------------------------------------------------------------------

    async def _tell_doubts(self) -> None:
        """Emit an Event on each class that is left to kube-scheduler, once."""
        doubts = {name: why for name in self._classes if (why := self._doubt(name))}
        for name, why in doubts.items():
            if self._told.get(name) != why:
                logger.warning("devices not counted", extra={"class": name, "error": why})
                await self._tell(name, why)
        changed = self._told.keys() ^ doubts.keys()
        self._told = doubts
        served = {
            resource
            for name in changed & self._classes.keys()
            for resource in self._classes[name].resources
        }
        if served:
            self._touch_claiming()
            self.touch(
                lambda workload: any_spec(
                    workload, lambda spec: not served.isdisjoint(extended_resources(spec))
                )
            )

    def _doubt(self, name: str) -> str:
        one = self._classes[name]
        if one.doubt:
            return one.doubt
        devices = [
            (held, device)
            for held in self._slices.values()
            for device in held.devices
            if one.may_have(device)
        ]
        if any(one.has(device) is None for _, device in devices):
            return "its selector cannot be evaluated for some of the devices"
        if any(not device.is_whole for _, device in devices):
            return "claims share some of its devices, or parts of them"
        if any(held.node is None for held, _ in devices):
            return "several nodes can reach some of its devices"
        return ""

    async def _tell(self, name: str, why: str) -> None:
        obj = next((o for o in self._informers[0].items() if o["metadata"]["name"] == name), None)
        if obj is None:
            return
        about = Involved.of(obj, api_version=DEVICE_CLASSES.api_version, kind=DEVICE_CLASSES.kind)
        event = build_event(
            about,
            key=f"not-counted/{why}",
            reason="DevicesNotCounted",
            message=f"kube-scheduler alone decides on devices of this class: {why}",
            at_s=self.clock.now_s(),
            is_warning=True,
        )
        await tell_event(self.client, event)


def _taints_of(found: DeviceSlice | None) -> list[Taint]:
    devices = () if found is None else found.devices
    return [taint for device in devices for taint in device.taints]


def _requests(claim: Object) -> Sequence[Object]:
    devices = (claim.get("spec") or {}).get("devices") or {}
    return [one for one in devices.get("requests") or () if isinstance(one, dict)]
