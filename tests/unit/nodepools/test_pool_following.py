"""Discovered FluxNodePools follow their source, except in what the administrator has changed."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from fluxqueue.fluxjob.times import to_rfc3339
from fluxqueue.nodepools.cluster.pool_sources import PoolSources
from fluxqueue.nodepools.proposals.following import GONE_S, follow, source_of
from fluxqueue.workload.labels import DISCOVERED_SPEC, SOURCE_MISSING
from tests.support.nodepool_objects import GPU, claim, node_pool, present

NOW = 1_800_000_000


def karpenter(**spec: Any) -> PoolSources:
    """One NodePool with one node."""
    found = PoolSources()
    found.node_pools = [node_pool("gpu", **{"limits": {"cpu": "64"}, **spec})]
    found.node_claims = [claim("gpu", "g5.16", 1)]
    found.nodes = [present("ip-g5.16-1")]
    return found


def discovered(sources: PoolSources) -> dict[str, Any]:
    """The FluxNodePool as it is created."""
    (one,) = sources.proposals()
    return copy.deepcopy(one.manifest())


def applied(pool: dict[str, Any], sources: PoolSources, now_s: int = NOW) -> dict[str, Any] | None:
    """The pool after one round, None if it was removed."""
    given = sources.given(source_of(pool), pool["spec"], sources.proposals())
    change = follow(pool, given, now_s)
    if change is None:
        return pool
    return None if change.is_removed else merged(pool, change.patch)


def merged(value: Any, patch: Any) -> Any:
    """A merge patch, as API servers apply it."""
    if not isinstance(patch, dict):
        return patch
    found = dict(value) if isinstance(value, dict) else {}
    for key, new in patch.items():
        if new is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), new)
    return found


def test_a_pool_in_step_stays_as_it_is() -> None:
    """Also if its nodes took another time, which fluxqueue measures itself."""
    pool = discovered(karpenter())
    later = karpenter()
    later.node_claims = [claim("gpu", "g5.16", 1, took_s=300)]
    assert follow(pool, later.given(source_of(pool), {}, later.proposals()), NOW) is None


def test_limits_taints_labels_and_shape_follow() -> None:
    """What the source has lost is lost here, too."""
    pool = discovered(karpenter(weight=7))
    source = karpenter(limits={"cpu": "160"})
    template = source.node_pools[0]["spec"]["template"]
    template["metadata"]["labels"] = {"team": "physics"}
    template["spec"]["taints"] = []
    source.nodes = [present("ip-g5.16-1", permanent={"cpu": 1500, "pods": 2})]
    pool = applied(pool, source) or {}
    spec = pool["spec"]
    assert (spec["max"], spec["priority"], spec["node"]["taints"]) == (10, 0, [])
    assert spec["node"]["labels"]["team"] == "physics"
    assert spec["node"]["allocatable"]["cpu"] == "14390m"
    assert applied(pool, source) == pool, "the next round finds nothing to do"


def test_what_the_administrator_has_changed_stays() -> None:
    """All other fields follow. A field that is set back follows again."""
    pool = discovered(karpenter())
    pool["spec"] |= {"max": 2, "pricePerHour": "3.10", "provisioningTime": "9m"}
    pool["spec"]["provider"] = {"placeholder": {"priorityClassName": "low"}}
    source = karpenter(limits={"cpu": "160"}, weight=3)
    pool = applied(pool, source) or {}
    assert (pool["spec"]["max"], pool["spec"]["priority"]) == (2, 3)
    assert (pool["spec"]["pricePerHour"], pool["spec"]["provisioningTime"]) == ("3.10", "9m")
    assert pool["spec"]["provider"] == {"placeholder": {"priorityClassName": "low"}}
    pool["spec"]["max"] = json.loads(pool["metadata"]["annotations"][DISCOVERED_SPEC])["max"]
    pool = applied(pool, karpenter(limits={"cpu": "32"}, weight=3)) or {}
    assert pool["spec"]["max"] == 2
    assert (applied(pool, karpenter(limits={"cpu": "48"}, weight=3)) or {})["spec"]["max"] == 3


def test_a_pool_without_nodes_still_follows() -> None:
    """Its shape stays. The limits are divided by it."""
    pool = discovered(karpenter())
    shape = pool["spec"]["node"]["allocatable"]
    empty = karpenter(limits={GPU: "8"})
    empty.node_claims, empty.nodes = [], []
    pool = applied(pool, empty) or {}
    assert pool["spec"]["max"] == 2
    assert pool["spec"]["node"]["allocatable"] == shape


def test_a_pool_whose_source_is_gone_is_removed_after_a_while() -> None:
    """Not if the source comes back in time, and not if the administrator has changed it."""
    pool = discovered(karpenter())
    missing = applied(pool, PoolSources()) or {}
    assert missing["metadata"]["annotations"][SOURCE_MISSING] == to_rfc3339(NOW)
    assert missing["spec"] == pool["spec"]
    assert applied(missing, PoolSources(), NOW + GONE_S - 1) == missing
    assert applied(missing, karpenter(), NOW + 60) == pool
    assert applied(missing, PoolSources(), NOW + GONE_S) is None
    edited = copy.deepcopy(missing)
    edited["spec"]["max"] = 1
    assert applied(edited, PoolSources(), NOW + 10 * GONE_S) == edited
    priced = copy.deepcopy(missing)
    priced["spec"] |= {"pricePerHour": "3.10", "provider": {"placeholder": {"image": "pause"}}}
    assert applied(priced, PoolSources(), NOW + GONE_S) is None, "no source says a price"


def _type(operator: str, value: str) -> dict[str, Any]:
    return {"key": "node.kubernetes.io/instance-type", "operator": operator, "values": [value]}


@pytest.mark.parametrize(
    ("change", "is_gone"),
    [
        ({"replicas": 3}, True),
        (_type("In", "g6.16"), True),
        (_type("NotIn", "g5.16"), True),
        (_type("In", "g5.16"), False),
    ],
)
def test_a_node_pool_that_brings_no_such_nodes_is_gone(
    change: dict[str, Any], is_gone: bool
) -> None:
    """Its nodes went. It has fixed replicas now, or permits other instance types only."""
    pool = discovered(karpenter())
    source = karpenter()
    spec = source.node_pools[0]["spec"]
    if "key" in change:
        spec["template"]["spec"]["requirements"].append(change)
    else:
        spec |= change
    source.node_claims = []
    given = source.given(source_of(pool), pool["spec"], source.proposals())
    assert (given is None) == is_gone


OLD_NODES = [present("old-1", labels={"eks.amazonaws.com/nodegroup": "old"})]


def groups(most: int, name: str = "eks-old-7f") -> dict[str, Any]:
    """The status of cluster-autoscaler with one node group."""
    one = {"name": name, "health": {"minSize": 0, "maxSize": most}}
    return {"data": {"status": json.dumps({"nodeGroups": [one]})}}


def test_node_groups_of_cluster_autoscaler_are_followed() -> None:
    """Also while they have no node. A group that the status does not name is gone."""

    pool = discovered(PoolSources(status=groups(9), nodes=OLD_NODES))
    changed = applied(pool, PoolSources(status=groups(4)))
    assert changed is not None
    assert changed["spec"] == pool["spec"] | {"max": 4}
    gone = applied(pool, PoolSources(status=groups(4, "eks-new-7f"), nodes=OLD_NODES))
    assert SOURCE_MISSING in (gone or {})["metadata"]["annotations"]


def test_what_does_not_fit_the_fields_that_stay_is_left() -> None:
    """A maximum below the minimum of the administrator would make the pool invalid."""
    pool = discovered(PoolSources(status=groups(5), nodes=OLD_NODES))
    pool["spec"]["min"] = 3
    assert applied(pool, PoolSources(status=groups(2), nodes=OLD_NODES)) == pool


def test_a_pool_with_spoilt_notes_is_left_alone() -> None:
    pool = discovered(karpenter())
    for text in ("", "{", "[]"):
        pool["metadata"]["annotations"][DISCOVERED_SPEC] = text
        assert applied(pool, PoolSources()) == pool
