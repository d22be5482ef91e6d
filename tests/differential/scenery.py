"""Random clusters: nodes with zones, racks, pools, taints and devices, and what pods refer to."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.workload.devices import (
    DeviceAmounts,
    count_devices,
    read_class,
    read_slice,
)
from fluxqueue.workload.labels import HOSTNAME
from fluxqueue.workload.volumes import volume_limits
from tests.support.surroundings import KnownSurroundings

Obj = dict[str, Any]

ZONE, RACK = "topology.kubernetes.io/zone", "topology.kubernetes.io/rack"
DRIVER = "csi.example.org"
POOLS = ("blue", "green")
TAINT = {"key": "example.org/team", "value": "a", "effect": "NoSchedule"}


@dataclass
class Scenery:
    """The objects of one cluster, by what they are."""

    nodes: list[Obj]
    runtimes: list[Obj]
    limits: list[Obj]
    csi_nodes: list[Obj]
    claims: list[Obj] = field(default_factory=list)
    volumes: list[Obj] = field(default_factory=list)
    device_classes: list[Obj] = field(default_factory=list)
    slices: list[Obj] = field(default_factory=list)

    @property
    def device_resource(self) -> str | None:
        """The extended resource that its devices serve, None without devices."""
        return self.device_classes[0]["spec"]["extendedResourceName"] if self.slices else None

    def devices_of(self, node: str) -> DeviceAmounts:
        """The devices of a node, counted as the controller does."""
        slices = [read_slice(one) for one in self.slices if one["spec"]["nodeName"] == node]
        devices = [device for one in slices for device in one.devices]
        classes = [read_class(one) for one in self.device_classes]
        return count_devices(classes, devices, set())

    def known(self, namespace: str) -> KnownSurroundings:
        """What the controller would know of it."""
        return KnownSurroundings(
            limits={namespace: self.limits},
            runtimes=_by_name(self.runtimes),
            claims=_by_name(self.claims),
            volumes=_by_name(self.volumes),
            drivers=frozenset(driver for one in self.csi_nodes for driver in volume_limits(one)),
        )


def _by_name(objects: list[Obj]) -> Mapping[str, Obj]:
    return {one["metadata"]["name"]: one for one in objects}


def random_scenery(
    dice: random.Random, tag: str, *, nodes: int, has_devices: bool = False
) -> Scenery:
    """A cluster of so many nodes. ``tag`` makes names unique."""
    has_bare, has_own_racks = dice.random() < 0.2, dice.random() < 0.6
    made = [
        _node(dice, f"{tag}-{number}", has_bare=has_bare, has_own_racks=has_own_racks)
        for number in range(nodes)
    ]
    runtime = {
        "metadata": {"name": f"{tag}-box"},
        "handler": "box",
        "overhead": {"podFixed": {"cpu": "300m", "memory": "64Mi"}},
        "scheduling": {
            "nodeSelector": {"pool": dice.choice(POOLS)},
            "tolerations": [{"key": TAINT["key"], "operator": "Exists"}],
        },
    }
    limited = [_csi_node(dice, node) for node in made if dice.random() < 0.3]
    scenery = Scenery(made, [runtime], _limits(dice), limited)
    for number in range(4):
        _add_volume(dice, scenery, f"{tag}-disk-{number}", f"data-{number}", "ReadWriteMany")
    for number in range(2):
        _add_volume(dice, scenery, f"{tag}-one-{number}", f"one-{number}", "ReadWriteOncePod")
    if has_devices:
        _add_devices(dice, scenery, tag)
    return scenery


def _add_devices(dice: random.Random, scenery: Scenery, tag: str) -> None:
    """A class of devices, which some nodes have. Some of the devices are tainted.

    DeviceTaintRules are not drawn: the kube-scheduler of 1.36 panics when one exists, because its
    tracker reads v1alpha3 and is given v1beta2.
    """
    driver = f"{tag}.example.org"
    selectors = [{"cel": {"expression": f"device.driver == '{driver}'"}}]
    spec = {"selectors": selectors, "extendedResourceName": f"{driver}/device"}
    scenery.device_classes.append({"metadata": {"name": f"{tag}-device"}, "spec": spec})
    for node in scenery.nodes:
        if dice.random() < 0.6:
            continue
        name = node["metadata"]["name"]
        devices = []
        for number in range(dice.randint(1, 3)):
            effect = dice.choice(("NoSchedule", "NoExecute", "", ""))
            taints = {"taints": [{"key": "example.org/broken", "effect": effect}]} if effect else {}
            devices.append({"name": f"d-{number}", **taints})
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        body = {"driver": driver, "nodeName": name, "pool": pool, "devices": devices}
        scenery.slices.append({"metadata": {"name": f"{name}-devices"}, "spec": body})


def _node(dice: random.Random, name: str, *, has_bare: bool, has_own_racks: bool) -> Obj:
    labels = {HOSTNAME: name, "pool": dice.choice(POOLS), "size": str(dice.randint(1, 9))}
    if not has_bare or dice.random() < 0.8:
        zone, rack = f"z{dice.randint(0, 2)}", f"r{dice.randint(0, 3)}"
        # Some sites use a name of a rack in each zone.
        labels |= {ZONE: zone, RACK: f"{zone}-{rack}" if has_own_racks else rack}
    allocatable = {
        "cpu": str(dice.choice((2, 4, 8))),
        "memory": f"{dice.choice((4, 8, 16))}Gi",
        "pods": str(dice.choice((4, 20, 110))),
        "ephemeral-storage": "100Gi",
    }
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [_taint(dice)]} if dice.random() < 0.2 else {},
        "status": {"capacity": allocatable, "allocatable": allocatable, "conditions": [ready]},
    }


def _taint(dice: random.Random) -> Obj:
    """A taint that keeps pods away, or one that only makes a node less wanted."""
    effects = ("NoSchedule", "NoSchedule", "NoExecute", "PreferNoSchedule")
    return {**TAINT, "effect": dice.choice(effects)}


def _csi_node(dice: random.Random, node: Obj) -> Obj:
    """How many volumes a node takes."""
    name = node["metadata"]["name"]
    driver = {"name": DRIVER, "nodeID": name, "allocatable": {"count": dice.randint(1, 2)}}
    return {"metadata": {"name": name}, "spec": {"drivers": [driver]}}


def _limits(dice: random.Random) -> list[Obj]:
    """Sometimes defaults for containers, from any of the fields that lead to them."""
    kind = dice.choice(("none", "none", "request", "limit", "max", "bounds"))
    if kind == "none":
        return []
    item: Obj = {
        "bounds": {"max": {"cpu": "2"}, "min": {"memory": "32Mi"}},
        "request": {"defaultRequest": {"cpu": "350m", "memory": "96Mi"}},
        "limit": {"default": {"cpu": "3"}, "defaultRequest": {"cpu": "450m"}},
        "max": {"max": {"memory": "4Gi"}, "defaultRequest": {"memory": "192Mi"}},
    }[kind]
    return [{"metadata": {"name": "defaults"}, "spec": {"limits": [{"type": "Container", **item}]}}]


def _add_volume(dice: random.Random, scenery: Scenery, name: str, claim: str, mode: str) -> None:
    """A bound volume of a node, of a zone, or of two zones."""
    node = dice.choice(scenery.nodes)
    keys: list[tuple[str, list[str]]] = [(HOSTNAME, [node["metadata"]["name"]])]
    keys += [(ZONE, ["z1"]), (ZONE, ["z0", "z2"])]
    key, values = dice.choice(keys)
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": values}]}
    spec = {"accessModes": [mode], "storageClassName": ""}
    scenery.volumes.append(
        {
            "metadata": {"name": name},
            "spec": {
                **spec,
                "capacity": {"storage": "1Gi"},
                "csi": {"driver": DRIVER, "volumeHandle": name},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
            },
        }
    )
    scenery.claims.append(
        {
            "metadata": {"name": claim},
            "spec": {
                **spec,
                "volumeName": name,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
    )
