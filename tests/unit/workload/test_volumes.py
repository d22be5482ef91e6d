"""Where the volumes of a pod let it run."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.jobspec.constraint import all_of
from fluxqueue.workload.volumes import (
    attached_volumes,
    one_pod_claims,
    volume_constraints,
    volume_limits,
    with_limits,
)
from tests.support.surroundings import KnownSurroundings

ZONE = "topology.kubernetes.io/zone"
VOLUMES = "volumes that are bound to places"

Obj = dict[str, Any]


def required(*terms: Obj) -> Obj:
    """A node affinity of a volume: one of the terms, each of labels and their values."""
    return {
        "required": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {"key": key, "operator": "In", "values": values}
                        for key, values in term.items()
                    ]
                }
                for term in terms
            ]
        }
    }


def volume(name: str, *, labels: Obj | None = None, **spec: Any) -> Obj:
    """A PersistentVolume of 10Gi."""
    whole = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Gi"}, **spec}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": whole}


def claim(name: str = "data", **spec: Any) -> Obj:
    """A PersistentVolumeClaim of 5Gi."""
    whole = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "5Gi"}},
        **spec,
    }
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": whole}


def storage_class(provisioner: str = "csi.example.org", **more: Any) -> Obj:
    """A StorageClass that binds at the first consumer."""
    mode = {"volumeBindingMode": "WaitForFirstConsumer"}
    return {"metadata": {"name": "fast"}, "provisioner": provisioner, **mode, **more}


def places(
    around: KnownSurroundings, *claims: str, **ephemeral: Obj
) -> tuple[list[str], list[str]]:
    """Which of the nodes a, b (zone z1) and c (zone z2) a pod may use, and what is left."""
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    volumes += [
        {"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
        for name, spec in ephemeral.items()
    ]
    found, left = volume_constraints({"volumes": volumes}, "ns", around)
    whole = all_of(found)
    nodes = {"a": "z1", "b": "z1", "c": "z2"}
    may = [
        name
        for name, zone in nodes.items()
        if whole is None or whole.matches(name, -1, {ZONE: zone, "host": name})
    ]
    return may, left


LOCAL = volume("disk", nodeAffinity=required({"host": ["b"]}))
ZONAL = volume("zonal", nodeAffinity=required({ZONE: ["z1"]}))


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (LOCAL, ["b"]),
        (ZONAL, ["a", "b"]),
        (volume("two", nodeAffinity=required({"host": ["a"]}, {ZONE: ["z2"]})), ["a", "c"]),
        (volume("any"), ["a", "b", "c"]),
        (volume("old", labels={ZONE: "z2"}), ["c"]),
        (volume("regional", labels={ZONE: "z1__z2"}), ["a", "b", "c"]),
        (volume("no", nodeAffinity=required({"host": []})), []),
    ],
)
def test_a_bound_volume_keeps_its_pods_where_it_is(bound: Obj, expected: list[str]) -> None:
    """By its node affinity, or by the zone labels that older volumes have."""
    name = bound["metadata"]["name"]
    around = KnownSurroundings(claims={"data": claim(volumeName=name)}, volumes={name: bound})
    assert places(around, "data") == (expected, [])


def test_several_volumes_must_all_be_there() -> None:
    around = KnownSurroundings(
        claims={"one": claim("one", volumeName="disk"), "two": claim("two", volumeName="zonal")},
        volumes={"disk": LOCAL, "zonal": ZONAL},
    )
    assert places(around, "one", "two") == (["b"], [])


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ({}, ["a", "b", "c"]),
        (
            {"allowedTopologies": [{"matchLabelExpressions": [{"key": ZONE, "values": ["z2"]}]}]},
            ["c"],
        ),
    ],
)
def test_a_new_volume_goes_where_its_class_permits(of: Obj, expected: list[str]) -> None:
    """Of a claim that waits for its first consumer, and of a claim that each pod gets."""
    around = KnownSurroundings(
        claims={"data": claim(storageClassName="fast")}, classes={"fast": storage_class(**of)}
    )
    assert places(around, "data") == (expected, [])
    assert places(around, scratch=claim(storageClassName="fast")["spec"]) == (expected, [])


def test_a_class_without_provisioner_offers_the_volumes_that_are_there() -> None:
    """Those that are large enough, of the mode, and not another's."""
    local = {"storageClassName": "fast"}
    there = {
        "a": volume("a", nodeAffinity=required({"host": ["a"]}), **local),
        "b": volume(
            "b", nodeAffinity=required({"host": ["b"]}), **local, capacity={"storage": "1Gi"}
        ),
        "c": volume(
            "c",
            nodeAffinity=required({"host": ["c"]}),
            **local,
            claimRef={"namespace": "ns", "name": "other"},
        ),
    }
    classes = {"fast": storage_class("kubernetes.io/no-provisioner")}
    claims = {"data": claim(storageClassName="fast")}
    around = KnownSurroundings(claims=claims, volumes=there, classes=classes)
    assert places(around, "data") == (["a"], [])
    # More volumes may come: never say never.
    nothing = KnownSurroundings(claims=claims, classes=classes)
    assert places(nothing, "data") == (["a", "b", "c"], [VOLUMES])


@pytest.mark.parametrize(
    "around",
    [
        KnownSurroundings(),
        KnownSurroundings(claims={"data": claim(volumeName="unseen")}),
        KnownSurroundings(claims={"data": claim(storageClassName="fast")}),
        KnownSurroundings(
            claims={"data": claim(storageClassName="fast")},
            classes={"fast": storage_class(volumeBindingMode="Immediate")},
        ),
    ],
)
def test_what_is_not_known_by_now_is_left(around: KnownSurroundings) -> None:
    """A claim that must be made or bound, or a volume that is not seen yet."""
    assert places(around, "data") == (["a", "b", "c"], [VOLUMES])


def test_claims_for_one_pod_are_named_once() -> None:
    """By the namespace, too. Their volume binds the pod to its place as any other."""
    one = claim(volumeName="disk", accessModes=["ReadWriteOncePod"])
    around = KnownSurroundings(
        claims={"data": one, "many": claim("many", volumeName="disk")}, volumes={"disk": LOCAL}
    )
    assert places(around, "data") == (["b"], [])
    volumes = [{"persistentVolumeClaim": {"claimName": name}} for name in ("data", "many", "data")]
    spec = {"volumes": [*volumes, {"persistentVolumeClaim": {"claimName": "missing"}}]}
    assert one_pod_claims(spec, "ns", around) == ["one-pod-claim:ns:data"]


def test_a_claim_that_each_pod_gets_is_shared_by_none() -> None:
    """Though it is for one pod at a time, any number of pods run together."""
    own = {"spec": {"accessModes": ["ReadWriteOncePod"], "storageClassName": "fast"}}
    spec = {"volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": own}}]}
    assert one_pod_claims(spec, "ns", KnownSurroundings(classes={"fast": storage_class()})) == []


LIMITED = KnownSurroundings(
    claims={
        "one": claim("one", volumeName="csi"),
        "two": claim("two", storageClassName="fast"),
        "nfs": claim("nfs", volumeName="disk"),
    },
    volumes={"csi": volume("csi", csi={"driver": "csi.example.org"}), "disk": LOCAL},
    classes={"fast": storage_class()},
    drivers=frozenset({"csi.example.org"}),
)


def attached(*claims: str, ephemeral: int = 0, is_alone: bool) -> tuple[dict[str, int], bool]:
    """The volumes of a pod with these claims, and with so many of its own."""
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    own = {"volumeClaimTemplate": {"spec": claim(storageClassName="fast")["spec"]}}
    volumes += [{"name": f"e{number}", "ephemeral": own} for number in range(ephemeral)]
    return attached_volumes({"volumes": volumes}, "ns", LIMITED, is_alone=is_alone)


def test_volumes_of_a_limited_driver_are_counted() -> None:
    """Each volume once. Those that several pods share are one on each node, and are left."""
    name = "attachable-volumes-csi-csi.example.org"
    assert attached("one", "two", "nfs", is_alone=True) == ({name: 2}, False)
    assert attached("one", "one", ephemeral=2, is_alone=True) == ({name: 3}, False)
    assert attached("one", ephemeral=2, is_alone=False) == ({name: 2}, True)
    assert attached("nfs", is_alone=False) == ({}, False)


def test_a_node_without_a_limit_takes_any_number() -> None:
    """A driver that is limited on one node only does not exclude the others."""
    drivers = [{"name": "a", "allocatable": {"count": 3}}, {"name": "b"}]
    limits = volume_limits({"spec": {"drivers": drivers}})
    assert limits == {"a": 3}
    assert volume_limits(None) == {}
    found = with_limits(limits, frozenset({"a", "c"}))
    assert found == {"attachable-volumes-csi-a": 3, "attachable-volumes-csi-c": 1 << 20}
