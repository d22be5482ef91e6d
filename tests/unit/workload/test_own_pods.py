"""How the pods of one workload bind each other, and the shape that this gives to its request."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.jobspec import Jobspec, Resource
from fluxqueue.workload.constraints import ignored
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.kinds.pod_group import POD_GROUP
from fluxqueue.workload.labels import HOSTNAME, JOBID
from fluxqueue.workload.objects import Object
from fluxqueue.workload.own_pods import host_ports, selects
from fluxqueue.workload.pod_bounds import bounds_of
from fluxqueue.workload.site import DEFAULT_SITE
from fluxqueue.workload.surroundings import complete
from tests.support.pod_groups import group, member
from tests.support.surroundings import KnownSurroundings

ZONE, RACK = "topology.kubernetes.io/zone", "topology.kubernetes.io/rack"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
INDEX = "batch.kubernetes.io/job-completion-index"
MINE = {"matchLabels": {"app": "x"}}

Obj = dict[str, Any]


def nodes(zones: int, each: int = 2, **labels: str) -> list[NodeFact]:
    """Nodes in so many zones, with equal racks in each."""
    return [
        NodeFact(
            f"n{zone}-{n}",
            f"n{zone}-{n}",
            {},
            {ZONE: f"z{zone}", RACK: f"r{n}", HOSTNAME: f"n{zone}-{n}", **labels},
        )
        for zone in range(zones)
        for n in range(each)
    ]


def a_job(pods: int, *, wishes: Obj | None = None, labels: Obj | None = None, **spec: Any) -> Obj:
    """A BatchJob of so many pods with these fields, labelled app=x."""
    return {
        "kind": "Job",
        "metadata": {
            "name": "j",
            "namespace": "ns",
            "uid": "u",
            "annotations": {f"fluxqueue/{key}": value for key, value in (wishes or {}).items()},
        },
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "template": {
                "metadata": {"labels": {"app": "x"} if labels is None else labels},
                "spec": {"containers": [{"name": "c"}], **spec},
            },
        },
    }


def apart(key: str = HOSTNAME, **term: Any) -> Obj:
    """Required anti-affinity to pods labelled app=x."""
    whole = {"labelSelector": MINE, "topologyKey": key, **term}
    return {"affinity": {"podAntiAffinity": {REQUIRED: [whole]}}}


def together(key: str, **term: Any) -> Obj:
    """Required affinity to pods labelled app=x."""
    whole = {"labelSelector": MINE, "topologyKey": key, **term}
    return {"affinity": {"podAffinity": {REQUIRED: [whole]}}}


def spread(key: str, skew: int = 1, **more: Any) -> Obj:
    """A required topology spread of pods labelled app=x."""
    return {
        "topologyKey": key,
        "maxSkew": skew,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": MINE,
        **more,
    }


def read(body: Object, there: list[NodeFact]) -> tuple[str, list[str], Jobspec]:
    """The tree of its request in short, what is left, and the request."""
    done = complete(body, KnownSurroundings(nodes=there), DEFAULT_SITE.levels)
    request = BATCH_JOB.to_request(done)
    return (
        " + ".join(map(short, request.resources)),
        ignored(BATCH_JOB.pod_spec(done)),
        request,
    )


def short(one: Resource) -> str:
    """``zone[2]{slot[3]}``."""
    inside = "" if one.is_slot else "{" + " + ".join(map(short, one.with_)) + "}"
    return f"{one.type}[{one.count.minimum}]{inside}"


@pytest.mark.parametrize(
    ("pods", "spec", "expected"),
    [
        (3, apart(), "node[3]{slot[1]}"),
        (1, apart(), "slot[1]"),
        (2, apart(ZONE), "zone[2]{slot[1]}"),
        # More than there are: that is never possible, also for kube-scheduler.
        (9, apart(ZONE), "zone[9]{slot[1]}"),
        (4, together(ZONE), "zone[1]{slot[4]}"),
        (4, together(HOSTNAME), "node[1]{slot[4]}"),
        (
            3,
            {"affinity": {**together(ZONE)["affinity"], **apart()["affinity"]}},
            "zone[1]{node[3]{slot[1]}}",
        ),
        (2, {"topologySpreadConstraints": [spread(ZONE)]}, "zone[2]{slot[1]}"),
        (6, {"topologySpreadConstraints": [spread(ZONE)]}, "zone[3]{slot[2]}"),
        (3, {"topologySpreadConstraints": [spread(ZONE, minDomains=3)]}, "zone[3]{slot[1]}"),
        (6, {"topologySpreadConstraints": [spread(ZONE, minDomains=1)]}, "zone[3]{slot[2]}"),
        (
            6,
            {
                "topologySpreadConstraints": [
                    spread(ZONE, minDomains=2, nodeAffinityPolicy="Ignore")
                ]
            },
            "zone[3]{slot[2]}",
        ),
        (8, {"topologySpreadConstraints": [spread(ZONE)]}, "zone[3]{slot[2]} + zone[2]{slot[1]}"),
        (
            8,
            {"topologySpreadConstraints": [spread(HOSTNAME)]},
            "node[4]{slot[1]} + node[2]{slot[2]}",
        ),
        (
            6,
            {"topologySpreadConstraints": [spread(ZONE), spread(HOSTNAME)]},
            "zone[3]{node[2]{slot[1]}}",
        ),
        (
            3,
            {"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 1}]}]},
            "node[3]{slot[1]}",
        ),
        (
            2,
            {"containers": [{"name": "c", "ports": [{"containerPort": 1}]}], "hostNetwork": True},
            "node[2]{slot[1]}",
        ),
    ],
)
def test_rules_among_own_pods_become_a_shape(pods: int, spec: Obj, expected: str) -> None:
    """There are three zones of two nodes each. Nothing is left to kube-scheduler."""
    assert read(a_job(pods, **spec), nodes(3))[:2] == (expected, [])


@pytest.mark.parametrize(
    ("spec", "left"),
    [
        (apart(labelSelector={"matchLabels": {"app": "web"}}), "pod anti-affinity"),
        (together(ZONE, labelSelector={"matchLabels": {"app": "db"}}), "pod affinity"),
        (apart(namespaces=["other"]), "pod anti-affinity"),
        (apart(namespaceSelector={"matchLabels": {"team": "a"}}), "pod anti-affinity"),
        (apart("example.org/row"), "pod anti-affinity"),
        (apart(mismatchLabelKeys=["app"]), "pod anti-affinity"),
        (apart(labelSelector=None), "pod anti-affinity"),
        # Each pod selects itself alone, so these say nothing about the others.
        (apart(ZONE, matchLabelKeys=[INDEX]), "pod anti-affinity"),
        (together(ZONE, matchLabelKeys=["jobset.sigs.k8s.io/job-key"]), "pod affinity"),
        (
            {"topologySpreadConstraints": [spread(ZONE, matchLabelKeys=["app", INDEX])]},
            "topology spread constraints",
        ),
        # Pods that name their nodes see one zone each, and so may not share a node.
        (
            {"topologySpreadConstraints": [spread(ZONE, minDomains=2)]},
            "topology spread constraints",
        ),
        (
            {"topologySpreadConstraints": [spread(ZONE, minDomains=3, nodeTaintsPolicy="Honor")]},
            "topology spread constraints",
        ),
        ({"topologySpreadConstraints": [spread(ZONE, 2)]}, "topology spread constraints"),
        (
            {"topologySpreadConstraints": [spread(ZONE, minDomains=4)]},
            "topology spread constraints",
        ),
        ({"topologySpreadConstraints": [spread("row")]}, "topology spread constraints"),
        (
            {
                "topologySpreadConstraints": [
                    spread(ZONE, labelSelector={"matchLabels": {"a": "b"}})
                ]
            },
            "topology spread constraints",
        ),
    ],
)
def test_what_has_no_exact_shape_is_left(spec: Obj, left: str) -> None:
    """And the FluxJob says so."""
    assert read(a_job(4, **spec), nodes(3))[:2] == ("slot[4]", [left])


@pytest.mark.parametrize(
    "term",
    [
        {"namespaces": ["ns", "other"]},
        {"namespaceSelector": {}},
        {"matchLabelKeys": ["app"]},
        {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}},
        {"labelSelector": {}},
    ],
)
def test_terms_that_select_the_pod_itself(term: Obj) -> None:
    """In its namespace, or in all."""
    assert read(a_job(2, **apart(**term)), nodes(1))[0] == "node[2]{slot[1]}"


@pytest.mark.parametrize("key", ["job-name", "batch.kubernetes.io/controller-uid"])
def test_labels_of_the_job_controller_are_those_of_all_pods(key: str) -> None:
    """Also of a Job that is not stored yet, as in a review."""
    value = {"job-name": "j"}.get(key, "u")
    selector = {"matchLabels": {key: value}}
    body = a_job(2, **apart(labelSelector=selector), labels={})
    assert read(body, nodes(1))[:2] == ("node[2]{slot[1]}", [])
    body = a_job(2, **apart(matchLabelKeys=[key]))
    assert read(body, nodes(1))[:2] == ("node[2]{slot[1]}", [])


def test_labels_that_members_of_a_group_do_not_share_decide_nothing() -> None:
    """Each pod of a set has a name of its own. A rule about it is no rule among them."""
    pods = [
        member(f"web-{n}", meta={"labels": {"app": "x", "web": str(n)}}, **apart(ZONE))
        for n in range(4)
    ]
    whole = group(*pods, least=4, most=4)
    whole["metadata"]["namespace"] = "ns"
    found = complete(whole, KnownSurroundings(nodes=nodes(3)), DEFAULT_SITE.levels)
    assert short(POD_GROUP.to_request(found).resources[0]) == "zone[4]{slot[1]}"
    (term,) = apart(ZONE, labelSelector={"matchLabels": {"web": "0"}})["affinity"][
        "podAntiAffinity"
    ][REQUIRED]
    own = apart(ZONE, matchLabelKeys=["web"])["affinity"]["podAntiAffinity"][REQUIRED][0]
    for one in (term, own):
        for pod in pods:
            pod["spec"]["affinity"]["podAntiAffinity"][REQUIRED] = [one]
        found = complete(whole, KnownSurroundings(nodes=nodes(3)), DEFAULT_SITE.levels)
        assert short(POD_GROUP.to_request(found).resources[0]) == "slot[4]"
        assert ignored(POD_GROUP.pod_spec(found)) == ["pod anti-affinity"]


def test_nodes_without_the_label_permit_anything() -> None:
    """An anti-affinity by zone does not hold on a node without a zone."""
    bare = NodeFact("bare", "bare", {}, {HOSTNAME: "bare"})
    assert read(a_job(2, **apart(ZONE)), [*nodes(2), bare])[0] == "slot[2]"
    # The pods cannot be there.
    body = a_job(2, **apart(ZONE), nodeSelector={"pool": "a"})
    assert read(body, [*nodes(2, pool="a"), bare])[0] == "zone[2]{slot[1]}"
    # An affinity keeps them away from it.
    assert read(a_job(2, **together(ZONE)), [*nodes(2), bare])[0] == "zone[1]{slot[2]}"


def test_a_rule_about_a_label_keeps_pods_on_nodes_that_have_it() -> None:
    """Also a single pod, and also a rule that is left."""
    for spec in (
        {"topologySpreadConstraints": [spread(ZONE)]},
        {"topologySpreadConstraints": [spread(ZONE, 2)]},
        together(ZONE, labelSelector={"matchLabels": {"app": "db"}}),
    ):
        where = read(a_job(1, **spec), nodes(2))[2].where.constraint
        assert where is not None
        assert where.matches("n", -1, {ZONE: "z0"})
        assert not where.matches("n", -1, {RACK: "r0"})
    assert read(a_job(1, **apart(ZONE)), nodes(2))[2].where.constraint is None


def test_a_name_that_is_used_in_several_places_is_no_place() -> None:
    """Racks of one name in two zones are one domain for kube-scheduler, and two places here."""
    assert read(a_job(2, **together(RACK)), nodes(2))[:2] == ("slot[2]", ["pod affinity"])
    assert read(a_job(2, **together(RACK)), nodes(1))[:2] == ("rack[1]{slot[2]}", [])


def test_pods_that_are_divided_above_are_not_together_below() -> None:
    """What remains of contradicting rules is left."""
    rules = [spread(ZONE)]
    body = a_job(3, topologySpreadConstraints=rules, **together(HOSTNAME))
    assert read(body, nodes(3))[:2] == ("zone[3]{slot[1]}", ["pod affinity"])


def test_the_node_that_a_release_wrote_is_no_rule_of_the_author() -> None:
    """Otherwise a released Job would seem to ask for something else."""
    rules = [spread(HOSTNAME), spread(ZONE, 2)]
    body = a_job(4, topologySpreadConstraints=rules)
    pinned = a_job(4, topologySpreadConstraints=rules, nodeSelector={HOSTNAME: "n0-0"})
    meta = pinned["spec"]["template"]["metadata"]
    meta["labels"] = {**meta["labels"], JOBID: "7"}
    assert BATCH_JOB.pinned_node(pinned) == "n0-0"
    around, levels = KnownSurroundings(nodes=nodes(3)), DEFAULT_SITE.levels
    first, later = (
        bounds_of(BATCH_JOB.pod_spec(complete(one, around, levels))) for one in (body, pinned)
    )
    assert first is not None
    assert first == later


def test_zones_that_pods_cannot_use_are_no_domains_unless_the_author_says_so() -> None:
    """By default kube-scheduler leaves out nodes that the selector excludes."""
    there = [*nodes(2, pool="a"), *nodes(5)]
    one = spread(ZONE)
    body = a_job(4, topologySpreadConstraints=[one], nodeSelector={"pool": "a"})
    assert read(body, there)[0] == "zone[2]{slot[2]}"
    one["nodeAffinityPolicy"] = "Ignore"
    assert read(body, there)[0] == "zone[4]{slot[1]}"


def test_two_even_rules_without_an_exact_shape_keep_the_upper_one() -> None:
    """How many nodes a zone has is not known to the request."""
    rules = [spread(ZONE), spread(HOSTNAME)]
    shape, left, request = read(a_job(9, topologySpreadConstraints=rules), nodes(3))
    assert (shape, left) == ("zone[3]{slot[3]}", ["topology spread constraints"])
    assert request.match_policy == "spread"


@pytest.mark.parametrize(
    "wishes",
    [{"spread": "node"}, {"within": "zone"}],
)
def test_the_author_s_own_shape_wins(wishes: Obj) -> None:
    """What it does not say is left."""
    _, left, request = read(a_job(2, wishes=wishes, **apart(ZONE)), nodes(3))
    assert left == ["pod anti-affinity"]
    plain = BATCH_JOB.to_request(a_job(2, wishes=wishes))
    assert request.resources == plain.resources


def test_labels_that_come_later_decide_nothing() -> None:
    """Only labels that a pod surely has make a selector match."""
    pod = {"metadata": {"labels": {"a": "1", "fluxqueue/jobid": "7"}}}
    assert selects({"matchLabels": {"a": "1"}}, pod)
    assert not selects({"matchLabels": {"a": "1", "b": "2"}}, pod)
    assert not selects({"matchLabels": {"fluxqueue/jobid": "7"}}, pod)
    assert not selects({"matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]}, pod)
    assert selects({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["2"]}]}, pod)
    assert not selects(None, pod)


def test_ports_of_containers_that_stay() -> None:
    """An init container has ended before the others begin."""
    port = [{"containerPort": 1, "hostPort": 9, "protocol": "UDP"}]
    init = {"initContainers": [{"name": "i", "ports": port}]}
    assert host_ports(init) == frozenset()
    sidecar = {"initContainers": [{"name": "i", "ports": port, "restartPolicy": "Always"}]}
    assert host_ports(sidecar) == {("UDP", 9, "0.0.0.0")}
