"""Where the volumes of a pod let it run: PersistentVolumes with a place, and classes with places.

``surroundings`` calls it. The answers are constraints on nodes, as kube-scheduler's plugins
VolumeBinding and VolumeZone check them. What is not known by now is left to kube-scheduler. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Protocol

from fluxqueue.fluxjob.exclusive_use import claim_use
from fluxqueue.fluxjob.request import NodeRequirement, Operator
from fluxqueue.jobspec.constraint import MATCH_EXPRESSIONS, Constraint
from fluxqueue.workload.constraints import read_node_selector
from fluxqueue.workload.objects import Object
from fluxqueue.workload.pod_bounds import VOLUMES
from fluxqueue.workload.quantity import to_base_units

STATIC = "kubernetes.io/no-provisioner"
"""Provisioner of a StorageClass with volumes that an administrator makes."""

_ONE_POD = "ReadWriteOncePod"
_AT_FIRST_CONSUMER = "WaitForFirstConsumer"
_ZONE_LABELS = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)


class Storage(Protocol):
    """The objects of the cluster that volumes refer to. What is unknown is absent."""

    def claim(self, namespace: str, name: str) -> Object | None:
        """Return a PersistentVolumeClaim."""
        ...

    def volume(self, name: str) -> Object | None:
        """Return a PersistentVolume."""
        ...

    def volumes_of_class(self, storage_class: str) -> Sequence[Object]:
        """Return the PersistentVolumes of a StorageClass."""
        ...

    def storage_class(self, name: str) -> Object | None:
        """Return a StorageClass."""
        ...

    def limited_drivers(self) -> Set[str]:
        """Return the CSI drivers with a limit of volumes on some nodes."""
        ...


LIMIT_PREFIX = "attachable-volumes-csi-"
"""Begin of the name under which the volumes of a driver are counted as a resource of nodes."""
UNLIMITED = 1 << 20
"""The volumes of a driver that a node without a limit takes."""


def volume_limits(csi_node: Object | None) -> dict[str, int]:
    """Return the limits of a CSINode by driver. Drivers without a limit are left out."""
    spec = (csi_node or {}).get("spec") or {}
    counts = {
        str(one.get("name")): (one.get("allocatable") or {}).get("count")
        for one in spec.get("drivers") or ()
    }
    return {name: int(count) for name, count in counts.items() if count is not None}


def with_limits(limits: Mapping[str, int], drivers: Set[str]) -> dict[str, int]:
    """Return the volumes that a node takes as resources, for all limited ``drivers``."""
    return {LIMIT_PREFIX + name: limits.get(name, UNLIMITED) for name in drivers}


def attached_volumes(
    spec: Mapping[str, Any], namespace: str, storage: Storage, *, is_alone: bool
) -> tuple[dict[str, int], bool]:
    """Count the volumes of a pod by resource, and tell whether some are left uncounted.

    Claims that several pods share are one volume on each node, so they are not counted unless the
    pod ``is_alone``.
    """
    drivers = storage.limited_drivers()
    if not drivers:
        return {}, False
    found: dict[str, set[str]] = {}
    is_left = False
    for number, claim in enumerate(_claims(spec, namespace, storage)):
        its = {} if claim is None else claim.get("spec") or {}
        name = (claim or {}).get("metadata", {}).get("name")
        driver = _driver(its, storage)
        if driver not in drivers:
            continue
        if name is not None and not is_alone:
            is_left = True
            continue
        # The claims that only this pod gets have no name yet.
        key = f"new {number}" if name is None else str(its.get("volumeName") or name)
        found.setdefault(LIMIT_PREFIX + driver, set()).add(key)
    return {name: len(keys) for name, keys in found.items()}, is_left


def one_pod_claims(spec: Mapping[str, Any], namespace: str, storage: Storage) -> list[str]:
    """Return the claims of a pod that one pod at a time uses, by their names as resources."""
    found = []
    for name in dict.fromkeys(claim_names(spec)):
        claim = storage.claim(namespace, name) or {}
        if _ONE_POD in ((claim.get("spec") or {}).get("accessModes") or ()):
            found.append(claim_use(namespace, name))
    return found


def _driver(claim_spec: Mapping[str, Any], storage: Storage) -> str:
    """Return the CSI driver of a claim, empty if it is not known."""
    if claim_spec.get("volumeName"):
        volume = storage.volume(str(claim_spec["volumeName"])) or {}
        return str(((volume.get("spec") or {}).get("csi") or {}).get("driver") or "")
    found = storage.storage_class(str(claim_spec.get("storageClassName") or "")) or {}
    return str(found.get("provisioner") or "")


def has_claims(spec: Mapping[str, Any]) -> bool:
    """Tell whether a pod has volumes that can bind it to places."""
    return any(
        volume.keys() & {"persistentVolumeClaim", "ephemeral"}
        for volume in spec.get("volumes") or ()
    )


def claim_names(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the claims that a pod refers to."""
    for volume in spec.get("volumes") or ():
        name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if name:
            yield str(name)


def volume_constraints(
    spec: Mapping[str, Any], namespace: str, storage: Storage
) -> tuple[list[Constraint], list[str]]:
    """Return the constraints of a pod's volumes, and names of what is left to kube-scheduler.

    Raises
    ------
    InvalidInput
        A node selector of a volume cannot be read.
    """
    found: list[Constraint] = []
    left: dict[str, None] = {}
    for claim in _claims(spec, namespace, storage):
        constraint = None if claim is None else _of_claim(claim, storage)
        if constraint is None:
            left[VOLUMES] = None
        else:
            found.append(constraint)
    return [one for one in found if one != _ANYWHERE], list(left)


_ANYWHERE = Constraint()


def _claims(spec: Mapping[str, Any], namespace: str, storage: Storage) -> Iterator[Object | None]:
    """Yield each claim of a pod, None for one that does not exist."""
    for name in claim_names(spec):
        yield storage.claim(namespace, name)
    for volume in spec.get("volumes") or ():
        template = (volume.get("ephemeral") or {}).get("volumeClaimTemplate")
        if template:
            # Each pod gets a claim of its own, which is bound to nothing yet.
            yield {"metadata": {}, "spec": template.get("spec") or {}}


def _of_claim(claim: Object, storage: Storage) -> Constraint | None:
    """Return the constraint of one claim, None if it is not known yet."""
    spec = claim.get("spec") or {}
    if spec.get("volumeName"):
        volume = storage.volume(str(spec["volumeName"]))
        return None if volume is None else _of_volume(volume)
    storage_class = storage.storage_class(str(spec.get("storageClassName") or ""))
    if storage_class is None or storage_class.get("volumeBindingMode") != _AT_FIRST_CONSUMER:
        return None
    options = [_of_volume(one) for one in _candidates(claim, storage)]
    if storage_class.get("provisioner") != STATIC:
        options.append(_of_class(storage_class))
    return _any_of(options) if options else None


def _of_volume(volume: Object) -> Constraint:
    spec = volume.get("spec") or {}
    parts = []
    required = (spec.get("nodeAffinity") or {}).get("required")
    if required is not None:
        where = "spec.nodeAffinity.required"
        parts.append(read_node_selector(required, where))
    for key, value in ((volume.get("metadata") or {}).get("labels") or {}).items():
        if key in _ZONE_LABELS:
            values = tuple(str(value).split("__"))
            # A node without any zone is in each.
            absent = _expression(key, Operator.DOES_NOT_EXIST)
            there = _expression(key, Operator.IN, values)
            parts.append(Constraint("or", operands=(absent, there)))
    if len(parts) < 2:
        return parts[0] if parts else _ANYWHERE
    return Constraint("and", operands=tuple(parts))


def _of_class(storage_class: Object) -> Constraint:
    """Return where new volumes of a class can be: its allowed topologies."""
    terms = []
    for term in storage_class.get("allowedTopologies") or ():
        requirements = tuple(
            NodeRequirement(one["key"], Operator.IN, tuple(one.get("values") or ()))
            for one in term.get("matchLabelExpressions") or ()
        )
        terms.append(Constraint(MATCH_EXPRESSIONS, requirements=requirements))
    return _any_of(terms) if terms else _ANYWHERE


def _candidates(claim: Object, storage: Storage) -> Iterator[Object]:
    """Yield the volumes that exist and could be bound to a claim."""
    spec, meta = claim.get("spec") or {}, claim.get("metadata") or {}
    wanted = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    for volume in storage.volumes_of_class(str(spec.get("storageClassName") or "")):
        its = volume.get("spec") or {}
        owner = its.get("claimRef")
        is_its = owner is None or (
            bool(meta.get("name"))
            and (owner.get("namespace"), owner.get("name"))
            == (meta.get("namespace"), meta.get("name"))
        )
        has_modes = set(spec.get("accessModes") or ()) <= set(its.get("accessModes") or ())
        has_mode = (its.get("volumeMode") or "Filesystem") == (
            spec.get("volumeMode") or "Filesystem"
        )
        size = (its.get("capacity") or {}).get("storage")
        is_large = wanted is None or (size is not None and _units(size) >= _units(wanted))
        if is_its and has_modes and has_mode and is_large:
            yield volume


def _units(quantity: Any) -> int:
    return to_base_units("storage", quantity, where="storage")


def _any_of(options: Sequence[Constraint]) -> Constraint:
    if _ANYWHERE in options:
        return _ANYWHERE
    unique = tuple(dict.fromkeys(options))
    return unique[0] if len(unique) == 1 else Constraint("or", operands=unique)


def _expression(key: str, operator: Operator, values: tuple[str, ...] = ()) -> Constraint:
    return Constraint(MATCH_EXPRESSIONS, requirements=(NodeRequirement(key, operator, values),))
