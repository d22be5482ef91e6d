"""FluxNodePools that are proposed from objects of Karpenter and cluster-autoscaler."""

from __future__ import annotations

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.nodepools.pool import is_pool_name, read_node_pool
from fluxqueue.nodepools.proposals.cluster_autoscaler import (
    propose_cluster_autoscaler,
    read_node_groups,
)
from fluxqueue.nodepools.proposals.karpenter import propose_karpenter
from fluxqueue.nodepools.proposals.proposal import (
    PoolProposal,
    amounts_of,
    object_name,
    render,
    shape_of,
    with_own_names,
)
from tests.support.nodepool_objects import GPU, claim, node_pool, present


def only(proposals: list[PoolProposal]) -> PoolProposal:
    """The one proposal, whose spec the reader accepts."""
    (one,) = proposals
    assert one.spec is not None, one.notes
    read_node_pool(one.name, one.spec)
    return one


def test_a_node_pool_of_karpenter_gives_the_shape_of_its_claims() -> None:
    """Labels that all nodes share, the smallest allocatable less DaemonSets, and the limits."""
    claims = [
        claim("gpu", "g5.16", 1, took_s=100),
        claim("gpu", "g5.16", 2, took_s=140, cpu="15880m"),
        claim("other", "c7", 1),
    ]
    pool = node_pool("gpu", limits={"cpu": "100", GPU: "20"}, weight=7)
    one = only(propose_karpenter([pool], claims, [present("ip-g5.16-1")]))
    assert one.spec == {
        "node": {
            "labels": {
                "karpenter.sh/nodepool": "gpu",
                "team": "hpc",
                "karpenter.sh/capacity-type": "spot",
                "node.kubernetes.io/instance-type": "g5.16",
            },
            "allocatable": {"cpu": "15380m", "memory": "60Gi", GPU: "4", "pods": "108"},
            "taints": [{"key": GPU, "value": "true", "effect": "NoSchedule"}],
        },
        "max": 5,
        "provisioningTime": "140s",
        "priority": 7,
        "provider": {"placeholder": {}},
    }
    assert one.name == "gpu"
    assert any("limits.nvidia.com/gpu" in note for note in one.notes)
    assert any("pricePerHour" in note for note in one.notes)


def test_each_instance_type_is_a_pool_of_its_own() -> None:
    """What cannot be known is said, and nothing is proposed for it."""
    claims = [claim("any", kind, 1) for kind in ("m7.large", "c7.xlarge")]
    both = propose_karpenter([node_pool("any")], claims, [])
    assert [one.name for one in both] == ["any-c7-xlarge", "any-m7-large"]
    assert all("no limit is set" in " ".join(one.notes) for one in both)
    assert all("what DaemonSets take" in " ".join(one.notes) for one in both)
    (empty,) = propose_karpenter([node_pool("empty")], claims, [])
    assert empty.spec is None
    (static,) = propose_karpenter([node_pool("any", replicas=3)], claims, [])
    assert static.spec is None
    going = {**node_pool("any"), "metadata": {"name": "any", "deletionTimestamp": "now"}}
    assert propose_karpenter([going], claims, []) == []


STATUS = """
time: 2026-05-01 10:00:00 +0000 UTC
autoscalerStatus: Running
nodeGroups:
- name: https://www.googleapis.com/compute/v1/projects/p/zones/z-a/instanceGroups/gke-c1-gpu-1a2b-grp
  health: {status: Healthy, minSize: 0, maxSize: 8}
- name: https://www.googleapis.com/compute/v1/projects/p/zones/z-b/instanceGroups/gke-c1-gpu-3c4d-grp
  health: {status: Unhealthy, minSize: 1, maxSize: 8}
- name: unknown-asg
  health: {status: Healthy, minSize: 0, maxSize: 3}
- name: MachineDeployment/infra/metal
  health: {status: Healthy, minSize: 0, maxSize: 3}
"""


def test_node_groups_of_cluster_autoscaler_are_matched_by_labels() -> None:
    """One group for each zone is one pool. A group without nodes has no known shape."""
    groups = read_node_groups({"data": {"status": STATUS}})
    assert [(one.least, one.most) for one in groups] == [(0, 8), (1, 8), (0, 3), (0, 3)]
    nodes = [
        present("a", labels={"cloud.google.com/gke-nodepool": "gpu"}),
        present("b", labels={"cloud.google.com/gke-nodepool": "static"}),
        present("c", labels={"node.cluster.x-k8s.io/pool": "metal"}),
    ]
    machines, pool, unknown = propose_cluster_autoscaler(groups, nodes)
    assert only([pool]).spec == {
        "node": {
            "labels": {"cloud.google.com/gke-nodepool": "gpu"},
            "allocatable": {"cpu": "15500m", "memory": "60Gi", "pods": "108"},
        },
        "min": 1,
        "max": 16,
        "provisioningTime": "5m",
        "provider": {"placeholder": {}},
    }
    assert any("not healthy" in note for note in pool.notes)
    assert only([machines]).spec["node"]["labels"] == {"node.cluster.x-k8s.io/pool": "metal"}  # type: ignore[index]
    assert (unknown.name, unknown.spec) == ("unknown-asg", None)


def test_a_status_that_is_none_has_no_groups() -> None:
    for status in ({}, {"data": {"status": "a: [b"}}, {"data": {"status": "nodeGroups: 7"}}):
        assert read_node_groups(status) == []


def test_the_output_is_yaml_with_comments() -> None:
    """Each document can be applied. Those that cannot are comments alone."""
    claims = [claim("any", "m7", 1)]
    proposals = propose_karpenter([node_pool("any"), node_pool("empty")], claims, [])
    text = render(proposals, ["read at noon"])
    documents = [one for one in yaml.safe_load_all(text) if one is not None]
    assert [one["metadata"]["name"] for one in documents] == ["any"]
    assert "# From Karpenter NodePool empty." in text
    assert text.startswith("# read at noon\n---\n")


amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", GPU, "pods", "ephemeral-storage"]), st.integers(0, 1 << 44)
)


@settings(max_examples=200)
@given(amounts=amounts)
def test_a_shape_never_promises_more_than_there_is(amounts: dict[str, int]) -> None:
    """Written as quantities and read again, it is at most a mebibyte less."""
    again = amounts_of(shape_of(amounts))
    for name, amount in amounts.items():
        assert 0 <= amount - again.get(name, 0) < (1 << 20 if name.endswith(("ory", "age")) else 1)


def test_objects_of_odd_shapes_are_left_out() -> None:
    """Nothing is proposed, and nothing fails."""
    assert propose_karpenter([{"metadata": {"name": "a"}}], [{"metadata": {}}], [])[0].spec is None


def test_a_long_name_stays_one_of_a_pool_and_its_own() -> None:
    """Two of them that begin alike stay apart."""
    names = [object_name("team", "n" * 60, end) for end in ("a", "b")]
    assert all(is_pool_name(name) for name in (*names, object_name("A.b", "c_d")))
    assert names[0] != names[1]


@given(st.lists(st.sampled_from(["gpu", "gpu-2", "n" * 40, "n" * 38]), max_size=9))
def test_each_proposal_gets_a_valid_name_of_its_own(names: list[str]) -> None:
    """Two sources may describe pools of one name, and the names of pools are short."""
    found = with_own_names([PoolProposal(name, "a test", "test", None) for name in names])
    assert len({one.name for one in found}) == len(names)
    assert all(is_pool_name(one.name) for one in found)
