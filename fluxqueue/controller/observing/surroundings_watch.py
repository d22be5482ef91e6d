"""Watches of what pods refer to, and of webhooks that change them.

They are LimitRanges, RuntimeClasses, claims, volumes, StorageClasses and CSINodes.

Part of ``watches``. ``workload.surroundings`` reads them to complete workloads. When one changes,
the workloads that it may touch are marked, so that those that wait ask for their new size.

They never stop the observation of everything else: what cannot be listed counts as absent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from fluxqueue.fluxjob.request import Taint
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.informer import ChangeHandler, Informer, Transform, TroubleHandler
from fluxqueue.kube.resources import (
    CLAIMS,
    CSI_NODES,
    LIMIT_RANGES,
    MUTATING_WEBHOOKS,
    RUNTIME_CLASSES,
    STORAGE_CLASSES,
    VOLUMES,
    ApiResource,
)
from fluxqueue.process.pacing import LATER_S
from fluxqueue.workload.device_claims import DeviceObjects
from fluxqueue.workload.domains import DomainQuery, count_domains
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.kinds.table import kind_of
from fluxqueue.workload.node_object import placed_node
from fluxqueue.workload.objects import Object
from fluxqueue.workload.own_pods import Domains, concerns
from fluxqueue.workload.surroundings import changes_pods
from fluxqueue.workload.volumes import (
    attached_volumes,
    claim_names,
    has_claims,
    one_pod_claims,
    volume_limits,
    with_limits,
)

logger = logging.getLogger(__name__)

SYNC_S = 10.0
"""How long (seconds) the first lists are awaited. They may be forbidden."""

RELIST_S = 60.0
"""How long (seconds) a resync waits for these lists."""

QUERIES_MAX = 1000
"""Most answers about node labels that are kept."""
TESTS_MAX = 50
"""Most changes for which each workload is looked at. After more of them all are marked."""
_META = ("name", "namespace", "uid", "resourceVersion", "labels")
_FIELDS = ("spec", "provisioner", "volumeBindingMode", "allowedTopologies")

IsTouched = Callable[[Object], bool]


class SurroundingsWatch:
    """Implements ``workload.surroundings.Surroundings`` from informers.

    Parameters
    ----------
    nodes : returns all Node objects.
    mark : receives a function that tells whether a workload is touched by a change.
    mark_node : receives the names of nodes to be written.
    """

    def __init__(
        self,
        client: KubeClient,
        nodes: Callable[[], Iterable[Object]],
        mark: Callable[[IsTouched], None],
        mark_node: Callable[[str], None],
        on_trouble: TroubleHandler,
    ) -> None:
        self._client, self._mark, self._on_trouble = client, mark, on_trouble
        self._nodes, self._mark_node = nodes, mark_node
        self._limits = self._informer(LIMIT_RANGES, self._on_limit_range)
        self._runtimes = self._informer(RUNTIME_CLASSES, self._on_runtime_class)
        self._claims = self._informer(CLAIMS, self._on_claim, _trim)
        self._volumes = self._informer(VOLUMES, self._on_volume, _trim)
        self._classes = self._informer(STORAGE_CLASSES, self._on_storage_class, _trim)
        self._csi_nodes = self._informer(CSI_NODES, self._on_csi_node, _trim)
        self._webhooks = self._informer(MUTATING_WEBHOOKS, self._on_webhooks, _trim_webhooks)
        self.informers = (
            *(self._limits, self._runtimes),
            *(self._claims, self._volumes, self._classes),
            *(self._csi_nodes, self._webhooks),
        )
        self._limits_of: dict[str, dict[str, Object]] = {}
        self._volumes_of: dict[str, dict[str, Object]] = {}
        self._domains: dict[DomainQuery, Domains] = {}
        self._limits_on: dict[str, dict[str, int]] = {}
        self._drivers: frozenset[str] = frozenset()
        self._pod_changers: set[str] = set()
        self._touched: list[IsTouched] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._is_begun = False
        self.devices: DeviceObjects | None = None
        """What claims of devices refer to. ``watches`` sets it."""

    def _informer(
        self,
        resource: ApiResource,
        on_change: ChangeHandler,
        transform: Transform | None = None,
    ) -> Informer:
        return Informer(
            self._client,
            resource,
            transform=transform,
            on_change=on_change,
            on_trouble=self._on_trouble,
        )

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
        if self._alarm is not None:
            self._alarm.cancel()
        for informer in self.informers:
            await informer.stop()

    # --- what is asked ------------------------------------------------------------------------

    def limit_ranges(self, namespace: str) -> Sequence[Object]:
        """Return the LimitRanges of a namespace."""
        return list(self._limits_of.get(namespace, {}).values())

    def runtime_class(self, name: str) -> Object | None:
        """Return a RuntimeClass."""
        return self._runtimes.get("", name)

    def claim(self, namespace: str, name: str) -> Object | None:
        """Return a PersistentVolumeClaim."""
        return self._claims.get(namespace, name)

    def volume(self, name: str) -> Object | None:
        """Return a PersistentVolume."""
        return self._volumes.get("", name)

    def volumes_of_class(self, storage_class: str) -> Sequence[Object]:
        """Return the PersistentVolumes of a StorageClass."""
        return list(self._volumes_of.get(storage_class, {}).values())

    def storage_class(self, name: str) -> Object | None:
        """Return a StorageClass."""
        return self._classes.get("", name)

    def limited_drivers(self) -> frozenset[str]:
        """Return the CSI drivers with a limit of volumes on some nodes."""
        return self._drivers

    def claim_template(self, namespace: str, name: str) -> Object | None:
        """Return a ResourceClaimTemplate."""
        return None if self.devices is None else self.devices.claim_template(namespace, name)

    def resource_claim(self, namespace: str, name: str) -> Object | None:
        """Return a ResourceClaim."""
        return None if self.devices is None else self.devices.resource_claim(namespace, name)

    def device_resource(self, device_class: str) -> str | None:
        """Return the resource name under which devices of a class are counted."""
        return None if self.devices is None else self.devices.device_resource(device_class)

    def device_takes(self, device_class: str) -> Mapping[str, int] | None:
        """Return the most that a device of a class takes of its node. None if that is unknown."""
        return {} if self.devices is None else self.devices.device_takes(device_class)

    def device_taints(self, device_class: str) -> Collection[Taint]:
        """Return the taints that some devices of a class have."""
        return () if self.devices is None else self.devices.device_taints(device_class)

    def is_doubtful(self, resource: str) -> bool:
        """Return whether some of the devices that serve a resource cannot be counted."""
        return self.devices is not None and self.devices.is_doubtful(resource)

    def volumes_on(self, node: str) -> dict[str, int]:
        """Return the volumes that a node takes, as resources."""
        return with_limits(self._limits_on.get(node, {}), self._drivers)

    def volumes_of(self, pod: Object) -> dict[str, int]:
        """Return the volumes and the claims for one pod of an unmanaged pod, as resources."""
        spec, namespace = pod["spec"], str(pod["metadata"]["namespace"])
        if not has_claims(spec):
            return {}
        claims = one_pod_claims(spec, namespace, self)
        return {
            **attached_volumes(spec, namespace, self, is_alone=True)[0],
            **dict.fromkeys(claims, 1),
        }

    def are_pods_changed(self) -> bool:
        """Return whether webhooks of others may change new pods, or it is not known."""
        return bool(self._pod_changers) or not self._webhooks.synced.is_set()

    def domains(self, query: DomainQuery) -> Domains:
        """Return the values of a label on nodes."""
        found = self._domains.get(query)
        if found is None:
            found = count_domains(query, map(placed_node, self._nodes()))
            if len(self._domains) >= QUERIES_MAX:
                self._domains.clear()
            self._domains[query] = found
        return found

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
            self._tell(lambda workload: _namespace(workload) == namespace)

    def _on_runtime_class(self, old: Object | None, new: Object | None) -> None:
        _, name = _place(old, new)
        self._tell(
            lambda workload: any_spec(
                workload, lambda spec: bool(spec.get("runtimeClassName") == name)
            )
        )

    def _on_claim(self, old: Object | None, new: Object | None) -> None:
        namespace, name = _place(old, new)
        if _content(old) != _content(new):
            self._tell(
                lambda workload: (
                    _namespace(workload) == namespace
                    and any_spec(workload, lambda spec: name in claim_names(spec))
                )
            )

    def _on_volume(self, old: Object | None, new: Object | None) -> None:
        for volume, is_there in ((old, False), (new, True)):
            if volume is None:
                continue
            name, of = str(volume["metadata"]["name"]), str(volume["spec"].get("storageClassName"))
            its = self._volumes_of.setdefault(of, {})
            if is_there:
                its[name] = volume
            else:
                its.pop(name, None)
            if not its:
                del self._volumes_of[of]
        if _content(old) != _content(new):
            # A volume changes little once it is bound, and then its claim changes, too.
            self._tell(lambda workload: any_spec(workload, has_claims))

    def _on_storage_class(self, old: Object | None, new: Object | None) -> None:
        if _content(old) != _content(new):
            self._tell(lambda workload: any_spec(workload, has_claims))

    def _on_webhooks(self, old: Object | None, new: Object | None) -> None:
        _, name = _place(old, new)
        before = bool(self._pod_changers)
        if new is not None and changes_pods(new):
            self._pod_changers.add(name)
        else:
            self._pod_changers.discard(name)
        if before != bool(self._pod_changers):
            self._tell(lambda workload: kind_of(workload) is BATCH_JOB)

    def _on_csi_node(self, old: Object | None, new: Object | None) -> None:
        _, name = _place(old, new)
        before, now = self._limits_on.get(name, {}), volume_limits(new)
        if before == now:
            return
        if now:
            self._limits_on[name] = now
        else:
            del self._limits_on[name]
        drivers = frozenset(driver for limits in self._limits_on.values() for driver in limits)
        if drivers == self._drivers:
            self._mark_node(name)
            return
        self._drivers = drivers
        for node in self._nodes():
            self._mark_node(node["metadata"]["name"])
        self._tell(lambda workload: any_spec(workload, has_claims))

    def on_node(self, old: Object | None, new: Object | None) -> None:
        """Handle the change of a node from ``old`` to ``new``."""
        before, now = (None if one is None else placed_node(one) for one in (old, new))
        if before != now:
            self._domains.clear()
            self._tell(lambda workload: any_spec(workload, concerns))

    def touch(self, is_touched: IsTouched) -> None:
        """Mark workloads that a change of other objects may touch."""
        self._tell(is_touched)

    def _tell(self, is_touched: IsTouched) -> None:
        """Mark what is touched, together with what is touched a moment later."""
        if not self._is_begun:
            return
        self._touched.append(is_touched)
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(LATER_S, self._mark_touched)

    def _mark_touched(self) -> None:
        # Many changes at once would look at each workload many times.
        touched, self._touched, self._alarm = self._touched, [], None
        if len(touched) > TESTS_MAX:
            self._mark(lambda _: True)
        else:
            self._mark(lambda workload: any(test(workload) for test in touched))


def _trim(obj: Object) -> Object:
    """Keep the fields that are read. A status changes often."""
    meta = obj["metadata"]
    kept = {key: meta[key] for key in _META if key in meta}
    return {"metadata": kept, **{key: obj[key] for key in _FIELDS if key in obj}}


def _trim_webhooks(obj: Object) -> Object:
    """Keep which objects each webhook is about. Its certificates are large."""
    meta = obj["metadata"]
    return {
        "metadata": {key: meta[key] for key in _META if key in meta},
        "webhooks": [
            {"name": one.get("name"), "rules": one.get("rules")}
            for one in obj.get("webhooks") or ()
        ],
    }


def _content(obj: Object | None) -> Object | None:
    if obj is None:
        return None
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": ""}}


def _namespace(workload: Object) -> str:
    return str(workload["metadata"].get("namespace") or "")


def _place(old: Object | None, new: Object | None) -> tuple[str, str]:
    obj = new or old
    assert obj is not None, "an informer tells of an object, old or new"
    return str(obj["metadata"].get("namespace") or ""), str(obj["metadata"]["name"])


def any_spec(workload: Object, test: Callable[[Object], bool]) -> bool:
    """Return whether a pod of a workload meets a test of its spec."""
    try:
        return any(map(test, kind_of(workload).pod_specs(workload)))
    except Exception:  # noqa: BLE001  it is reported when it is read
        return True
