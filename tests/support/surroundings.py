"""Surroundings of pods that a test writes down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import Taint
from fluxqueue.workload.domains import DomainQuery, count_domains
from fluxqueue.workload.objects import Object
from fluxqueue.workload.own_pods import Domains


@dataclass
class KnownSurroundings:
    """Implements ``workload.surroundings.Surroundings``: objects by namespace and name."""

    limits: Mapping[str, Sequence[Object]] = field(default_factory=dict)
    runtimes: Mapping[str, Object] = field(default_factory=dict)
    claims: Mapping[str, Object] = field(default_factory=dict)
    volumes: Mapping[str, Object] = field(default_factory=dict)
    classes: Mapping[str, Object] = field(default_factory=dict)
    drivers: frozenset[str] = frozenset()
    templates: Mapping[str, Object] = field(default_factory=dict)
    resource_claims: Mapping[str, Object] = field(default_factory=dict)
    device_classes: Mapping[str, str] = field(default_factory=dict)
    nodes: Sequence[NodeFact] = ()
    takes: Mapping[str, Mapping[str, int] | None] = field(default_factory=dict)
    taints: Mapping[str, Sequence[Taint]] = field(default_factory=dict)
    doubtful: frozenset[str] = frozenset()

    def limit_ranges(self, namespace: str) -> Sequence[Object]:
        """Return the LimitRanges of a namespace."""
        return self.limits.get(namespace, ())

    def runtime_class(self, name: str) -> Object | None:
        """Return a RuntimeClass."""
        return self.runtimes.get(name)

    def claim(self, namespace: str, name: str) -> Object | None:
        """Return a PersistentVolumeClaim, whatever its namespace."""
        return self.claims.get(name)

    def volume(self, name: str) -> Object | None:
        """Return a PersistentVolume."""
        return self.volumes.get(name)

    def volumes_of_class(self, storage_class: str) -> Sequence[Object]:
        """Return the PersistentVolumes of a StorageClass."""
        return [
            one
            for one in self.volumes.values()
            if one["spec"].get("storageClassName") == storage_class
        ]

    def storage_class(self, name: str) -> Object | None:
        """Return a StorageClass."""
        return self.classes.get(name)

    def limited_drivers(self) -> frozenset[str]:
        """Return the CSI drivers with a limit."""
        return self.drivers

    def claim_template(self, namespace: str, name: str) -> Object | None:
        """Return a ResourceClaimTemplate, whatever its namespace."""
        return self.templates.get(name)

    def resource_claim(self, namespace: str, name: str) -> Object | None:
        """Return a ResourceClaim, whatever its namespace."""
        return self.resource_claims.get(name)

    def device_resource(self, device_class: str) -> str | None:
        """Return the resource name of a DeviceClass."""
        return self.device_classes.get(device_class)

    def device_takes(self, device_class: str) -> Mapping[str, int] | None:
        """Return what a device of a class takes of its node."""
        return self.takes.get(device_class, {})

    def device_taints(self, device_class: str) -> Sequence[Taint]:
        """Return the taints of devices of a class."""
        return self.taints.get(device_class, ())

    def is_doubtful(self, resource: str) -> bool:
        """Return whether some devices of a resource cannot be counted."""
        return resource in self.doubtful

    def domains(self, query: DomainQuery) -> Domains:
        """Return the values of a label on nodes."""
        return count_domains(query, self.nodes)
