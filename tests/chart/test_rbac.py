"""The rights of each part equal a written list: one too many fails as one too few does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fluxqueue.checking import both_sides
from fluxqueue.kube.resources import ApiResource
from tests.chart.rendering import EVERYTHING, NAMESPACE, RELEASE, Document, merged, render

FLUX = "jobs.converged-computing.org"

Rule = tuple[str, str, tuple[str, ...], tuple[str, ...]]
"""API group, resource, names (none: all), verbs."""


def _flatten(document: Document) -> set[Rule]:
    return {
        (group, resource, tuple(rule.get("resourceNames", ())), tuple(sorted(rule["verbs"])))
        for rule in document["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def _rights(account: str, values: dict[str, Any] | None = None) -> dict[str, set[Rule]]:
    """Collect what an account may do through its bindings: ``*`` everywhere, else by namespace."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
    return _rights_of_subject(subject, values)


def _rights_of_group(name: str, values: dict[str, Any]) -> dict[str, set[Rule]]:
    subject = {"kind": "Group", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
    return _rights_of_subject(subject, values)


def _rights_of_subject(
    subject: dict[str, str], values: dict[str, Any] | None
) -> dict[str, set[Rule]]:
    documents = render(values)
    roles = {
        (one["kind"], one["metadata"]["name"]): one for one in documents if "Role" in one["kind"]
    }
    found: dict[str, set[Rule]] = {}
    for one in documents:
        subjects = one.get("subjects") if one["kind"].endswith("Binding") else None
        if subjects and subject in subjects:
            where = one["metadata"].get("namespace", "*")
            role = roles[one["roleRef"]["kind"], one["roleRef"]["name"]]
            found.setdefault(where, set()).update(_flatten(role))
    return found


SEES = ("list", "watch")
LEASE: set[Rule] = {
    ("coordination.k8s.io", "leases", (), ("create",)),
    ("coordination.k8s.io", "leases", ("fluxqueue-controller",), ("get", "update")),
}
OWNERS = {
    ("apps", "deployments"),
    ("apps", "replicasets"),
    ("apps", "statefulsets"),
    ("jobset.x-k8s.io", "jobsets"),
    ("leaderworkerset.x-k8s.io", "leaderworkersets"),
    ("kubeflow.org", "mpijobs"),
    ("kubeflow.org", "pytorchjobs"),
    ("kubeflow.org", "tfjobs"),
    ("kubeflow.org", "xgboostjobs"),
    ("kubeflow.org", "paddlejobs"),
    ("kubeflow.org", "jaxjobs"),
    ("ray.io", "rayclusters"),
    ("ray.io", "rayjobs"),
    ("flux-framework.org", "miniclusters"),
    ("sparkoperator.k8s.io", "sparkapplications"),
    ("trainer.kubeflow.org", "trainjobs"),
    ("argoproj.io", "workflows"),
}
"""What makes pods: read, one by one, where its pods ask to be queued."""
SUSPENDED = {
    *((group, resource) for group, resource in OWNERS if group in {"kubeflow.org", "ray.io"}),
    ("jobset.x-k8s.io", "jobsets"),
    ("trainer.kubeflow.org", "trainjobs"),
}
"""What of it may wait suspended: followed, and released."""
WHICH_CLUSTER: Rule = ("", "namespaces", ("kube-system",), ("get",))
CONTROLLER: set[Rule] = {
    WHICH_CLUSTER,
    *((group, resource, (), ("get",)) for group, resource in OWNERS - SUSPENDED),
    *((group, resource, (), ("get", *SEES)) for group, resource in SUSPENDED),
    ("", "pods", (), SEES),
    ("", "nodes", (), SEES),
    ("", "namespaces", (), SEES),
    ("batch", "jobs", (), SEES),
    ("scheduling.k8s.io", "priorityclasses", (), SEES),
    ("kueue.x-k8s.io", "workloadpriorityclasses", (), SEES),
    ("", "limitranges", (), SEES),
    ("node.k8s.io", "runtimeclasses", (), SEES),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", (), SEES),
    ("", "persistentvolumeclaims", (), SEES),
    ("", "persistentvolumes", (), SEES),
    ("storage.k8s.io", "storageclasses", (), SEES),
    ("storage.k8s.io", "csinodes", (), SEES),
    ("topology.node.k8s.io", "noderesourcetopologies", (), SEES),
    ("karpenter.sh", "nodepools", (), ("list",)),
    *(
        ("resource.k8s.io", one, (), SEES)
        for one in (
            *("deviceclasses", "resourceslices"),
            *("resourceclaims", "resourceclaimtemplates", "devicetaintrules"),
        )
    ),
    ("scheduling.x-k8s.io", "podgroups", (), SEES),
    ("scheduling.sigs.k8s.io", "podgroups", (), SEES),
    ("scheduling.k8s.io", "podgroups", (), SEES),
    ("scheduling.k8s.io", "workloads", (), SEES),
    (FLUX, "fluxjobs", (), ("create", "delete", "get", "list", "patch", "watch")),
    (FLUX, "fluxqueues", (), ("create", "list", "watch")),
    (FLUX, "resourcesharingpolicies", (), SEES),
    (FLUX, "fluxreservations", (), SEES),
    (FLUX, "fluxnodepools", (), SEES),
    (FLUX, "placementreviews", (), ("delete", "list", "watch")),
    (FLUX, "placementreviews/status", (), ("patch",)),
    ("", "events", (), ("create",)),
    ("", "pods", (), ("get",)),
    ("batch", "jobs", (), ("get", "patch")),
    ("apiextensions.k8s.io", "customresourcedefinitions", (f"fluxjobs.{FLUX}",), ("get",)),
}
AUTOSCALER = {"kube-system": {("", "configmaps", ("cluster-autoscaler-status",), ("get",))}}
WORKER: set[Rule] = {
    WHICH_CLUSTER,
    *((group, resource, (), ("delete", "get", "patch")) for group, resource in SUSPENDED),
    ("batch", "jobs", (), ("delete", "get", "patch")),
    ("", "pods", (), ("delete", "get", "patch")),
    (FLUX, "fluxjobs", (), ("get",)),
    (FLUX, "fluxqueues", (), ("get",)),
    (FLUX, "fluxjobs/status", (), ("patch", "update")),
    (FLUX, "fluxqueues/status", (), ("patch",)),
    (FLUX, "resourcesharingpolicies", (), ("get",)),
    (FLUX, "fluxreservations", (), ("get",)),
    (FLUX, "fluxreservations/status", (), ("patch",)),
    (FLUX, "fluxnodepools", (), ("get",)),
    (FLUX, "fluxnodepools/status", (), ("patch",)),
    (FLUX, "resourcesharingpolicies/status", (), ("patch",)),
    ("scheduling.k8s.io", "priorityclasses", (), ("get",)),
    ("kueue.x-k8s.io", "workloadpriorityclasses", (), ("get",)),
    ("", "limitranges", (), ("list",)),
    ("node.k8s.io", "runtimeclasses", (), ("get",)),
    ("", "persistentvolumeclaims", (), ("get",)),
    ("", "persistentvolumes", (), ("get", "list")),
    ("storage.k8s.io", "storageclasses", (), ("get",)),
    (FLUX, "placementreviews", (), ("get",)),
    (FLUX, "placementreviews/status", (), ("patch",)),
    ("authorization.k8s.io", "subjectaccessreviews", (), ("create",)),
    ("", "events", (), ("create",)),
    ("", "events", (), ("list",)),
}


def test_controller() -> None:
    """It sees the cluster and makes FluxJobs. Its certificates are one Secret and one caBundle."""
    assert (
        _rights(f"{RELEASE}-controller")
        == {
            "*": CONTROLLER
            | {
                (
                    "admissionregistration.k8s.io",
                    "mutatingwebhookconfigurations",
                    (RELEASE,),
                    ("get", "patch"),
                )
            },
            NAMESPACE: LEASE
            | {
                ("", "secrets", (), ("create",)),
                ("", "secrets", (f"{RELEASE}-webhook-certificate",), ("get", "update")),
            },
        }
        | AUTOSCALER
    )


def test_check_can_be_run_in_a_pod_of_the_controller() -> None:
    """As docs/admin/operations.md says: what the check lists, the controller may list."""
    asked = {
        (one.group, one.plural) for one in vars(both_sides).values() if isinstance(one, ApiResource)
    }
    assert len(asked) >= 4
    assert asked <= {(rule[0], rule[1]) for rule in CONTROLLER if "list" in rule[3]}


def test_controller_beside_cert_manager() -> None:
    """A controller that makes no certificates touches no Secret and no webhook."""
    values = {"certificates": {"provider": "cert-manager"}}
    expected = {"*": CONTROLLER, NAMESPACE: LEASE} | AUTOSCALER
    assert _rights(f"{RELEASE}-controller", values) == expected


def test_controller_follows_sources_of_pools_on_request_only() -> None:
    """It reads what autoscalers have stored, and changes FluxNodePools."""
    values = {"certificates": {"provider": "cert-manager"}, "nodePools": {"follow": True}}
    pools = (FLUX, "fluxnodepools", (), SEES)
    added = {
        (FLUX, "fluxnodepools", (), ("delete", "list", "patch", "watch")),
        ("karpenter.sh", "nodeclaims", (), ("list",)),
    }
    expected = {"*": CONTROLLER - {pools} | added, NAMESPACE: LEASE} | AUTOSCALER
    assert _rights(f"{RELEASE}-controller", values) == expected


PLACEHOLDERS = {NAMESPACE: {("", "pods", (), ("create", "list"))}}
"""For FluxNodePools, in its own namespace only."""


def test_worker() -> None:
    assert _rights(f"{RELEASE}-worker") == {"*": WORKER} | PLACEHOLDERS


def test_worker_scales_what_is_named_only() -> None:
    """Of a resource that FluxNodePools name, it may use the scale subresource."""
    values = {"nodePools": {"scale": [{"group": "cluster.x-k8s.io", "resource": "machinesets"}]}}
    expected = WORKER | {
        ("cluster.x-k8s.io", "machinesets/scale", (), ("get", "patch")),
        ("cluster.x-k8s.io", "machines", (), ("patch",)),
        ("", "nodes", (), ("get", "patch")),
    }
    assert _rights(f"{RELEASE}-worker", values) == {"*": expected} | PLACEHOLDERS


@pytest.mark.parametrize("kind", ["provisioningRequests", "capacityBuffers"])
def test_worker_creates_objects_of_an_autoscaler_on_request_only(kind: str) -> None:
    """In its own namespace, with the templates that they refer to."""
    values = {"nodePools": {kind: True}}
    verbs = ("create", "delete", "list")
    expected = PLACEHOLDERS[NAMESPACE] | {
        ("autoscaling.x-k8s.io", kind.lower(), (), verbs),
        ("", "podtemplates", (), verbs),
    }
    assert _rights(f"{RELEASE}-worker", values) == {"*": WORKER, NAMESPACE: expected}


def test_worker_protects_nodes_on_request_only() -> None:
    """It lists them to find the annotations of a worker that died."""
    values = {"nodePools": {"protect": "waiting"}}
    expected = WORKER | {("", "nodes", (), ("get", "list", "patch"))}
    assert _rights(f"{RELEASE}-worker", values) == {"*": expected} | PLACEHOLDERS


def test_worker_makes_pod_groups_on_request_only() -> None:
    values = {"settings": {"FLUXQUEUE_BIND_GANGS": "group"}}
    expected = WORKER | {("scheduling.k8s.io", "podgroups", (), ("create", "get", "patch"))}
    assert _rights(f"{RELEASE}-worker", values) == {"*": expected} | PLACEHOLDERS


def test_worker_taints_nodes_on_request_only() -> None:
    values = {"sharingPolicies": {"taintNodes": True}}
    expected = WORKER | {("", "nodes", (), ("get", "patch"))}
    assert _rights(f"{RELEASE}-worker", values) == {"*": expected} | PLACEHOLDERS


VIEW = {"view": {"enabled": True}}


def test_the_view_server_reads_nothing_of_the_cluster() -> None:
    """It asks for the user and what the user may see."""
    assert _rights(f"{RELEASE}-view") == {}, "it is off by default"
    assert _rights(f"{RELEASE}-view", VIEW) == {
        "*": {
            WHICH_CLUSTER,
            ("authentication.k8s.io", "tokenreviews", (), ("create",)),
            ("authorization.k8s.io", "subjectaccessreviews", (), ("create",)),
        }
    }


def test_everybody_finds_and_reaches_the_view_server() -> None:
    """A logged-in user may read where it is, and connect to it: to nothing else."""
    everybody = "system:authenticated"
    finds = ("", "configmaps", ("fluxqueue-view",), ("get",))
    proxied = ("", "services/proxy", (f"https:{RELEASE}-view:https",), ("get",))
    assert _rights_of_group(everybody, VIEW) == {"kube-public": {finds}, NAMESPACE: {proxied}}
    own_way = {"view": {"enabled": True, "url": "https://queue.example.org"}}
    assert _rights_of_group(everybody, own_way) == {"kube-public": {finds}}
    assert _rights_of_group(everybody, {}) == {}


@pytest.mark.parametrize("part", ["webhook", "postgres"])
def test_others_have_no_rights(part: str) -> None:
    assert _rights(f"{RELEASE}-{part}", EVERYTHING) == {}


DEFINITIONS = (
    "fluxjobs",
    "fluxnodepools",
    "fluxqueues",
    "fluxreservations",
    "placementreviews",
    "resourcesharingpolicies",
)


def test_hooks() -> None:
    definitions = tuple(f"{one}.{FLUX}" for one in DEFINITIONS)
    resource = ("apiextensions.k8s.io", "customresourcedefinitions")
    assert _rights(f"{RELEASE}-crds") == {
        "*": {(*resource, (), ("create",)), (*resource, definitions, ("patch",))}
    }
    assert _rights(f"{RELEASE}-uninstall") == {
        "*": {
            (
                "admissionregistration.k8s.io",
                "mutatingwebhookconfigurations",
                (RELEASE,),
                ("delete",),
            ),
            ("", "pods", (), ("list", "patch")),
            ("batch", "jobs", (), ("list", "patch")),
            *((group, resource, (), ("list", "patch")) for group, resource in SUSPENDED),
            (FLUX, "fluxjobs", (), ("list",)),
        },
        NAMESPACE: {("", "secrets", (f"{RELEASE}-webhook-certificate",), ("delete", "get"))},
    }


def test_the_hook_releases_nodes_where_they_are_protected() -> None:
    values = {"nodePools": {"protect": "running"}}
    before, after = (_rights(f"{RELEASE}-uninstall", one)["*"] for one in ({}, values))
    assert after - before == {("", "nodes", (), ("list", "patch"))}


def test_the_test_may_act_in_its_own_namespace_only() -> None:
    assert _rights(f"{RELEASE}-test", {"test": {"namespace": "users"}}) == {
        "users": {
            ("batch", "jobs", (), ("create", "delete", "get")),
            (FLUX, "fluxjobs", (), ("get",)),
        }
    }


OF_ADMINISTRATORS = ("fluxnodepools", "fluxqueues", "fluxreservations", "resourcesharingpolicies")


def test_people_get_the_rights_that_go_with_what_they_may_already() -> None:
    """Users with edit rights on a namespace steer it there. Priorities and queues take an operator.
    All users may ask, and read what they know the name of."""
    reads = {(FLUX, "placementreviews", (), ("create", "delete", "get"))} | {
        (FLUX, resource, (), ("get", "list", "watch"))
        for resource in ("fluxjobs", *OF_ADMINISTRATORS)
    }
    steers = {(FLUX, "fluxjobs", (), ("delete", "patch", "update"))}
    operates = {(FLUX, "fluxjobs", (), ("delete", "operate", "patch", "update"))}
    changes = ("create", "delete", "patch", "update")
    writes = {(FLUX, one, (), changes) for one in OF_ADMINISTRATORS}
    roles = {one["metadata"]["name"]: one for one in render() if one["kind"] == "ClusterRole"}
    for role, of, expected in (
        ("viewer", "view", reads),
        ("user", "edit", reads | steers),
        ("operator", "admin", reads | operates | writes),
    ):
        found = roles[f"{RELEASE}-{role}"]
        assert _flatten(found) == expected
        label = f"rbac.authorization.k8s.io/aggregate-to-{of}"
        assert found["metadata"]["labels"][label] == "true"


FLAGS = merged(
    EVERYTHING,
    {
        "certificates": {"provider": "self"},
        "nodePools": {
            "follow": True,
            "protect": "waiting",
            "scale": [{"group": "cluster.x-k8s.io", "resource": "machinesets"}],
            "provisioningRequests": True,
            "capacityBuffers": True,
        },
        "sharingPolicies": {"taintNodes": True},
    },
)
"""Every flag that adds rights."""
PARTS = {"controller": "controller", "worker": "worker", "view": "view server"}
PARTS |= {"uninstall": "removal hook", "crds": "hook for definitions"}
PAGE = Path(__file__).parents[2] / "docs" / "admin" / "security.md"


@pytest.mark.parametrize(("part", "title"), PARTS.items())
def test_the_page_names_every_right(part: str, title: str) -> None:
    """Each resource, by its kind in singular or plural."""
    said = re.split(rf"\n\*\*The {title}\*\*", PAGE.read_text(encoding="utf-8"))[1]
    said = re.sub(r"[\s`]", "", re.split(r"\n\*\*The |\nSome rights", said)[0]).lower()
    named = {
        resource.partition("/")[0][:-1]
        for rules in _rights(f"{RELEASE}-{part}", FLAGS).values()
        for group, resource, *_ in rules
        # The page of groups names its kinds, and ``nodePools.scale`` its own.
        if (group, resource) not in OWNERS and not resource.endswith("/scale")
    }
    assert named
    assert [one for one in sorted(named) if one not in said] == []


def test_what_no_part_may_do() -> None:
    """Secrets of others, bindings, impersonation, roles. New pods and Jobs are of our namespace."""
    for part in PARTS:
        for place, rules in _rights(f"{RELEASE}-{part}", FLAGS).items():
            for group, resource, names, verbs in rules:
                assert group != "rbac.authorization.k8s.io", part
                assert resource not in {"pods/binding", "bindings", "pods/exec"}, part
                assert not {"impersonate", "bind", "escalate"} & set(verbs), part
                if resource == "secrets":
                    assert place == NAMESPACE, part
                    assert names or verbs == ("create",), part
                if resource in {"pods", "jobs"} and "create" in verbs:
                    assert place == NAMESPACE, part


def test_no_wildcard_anywhere() -> None:
    for document in render(EVERYTHING):
        for rule in document.get("rules", ()) if "Role" in document["kind"] else ():
            assert "*" not in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}


def test_rights_of_hooks_and_tests_go_with_them() -> None:
    """A right that is needed for a minute exists for a minute."""
    for document in render():
        name = document["metadata"]["name"]
        if name in {f"{RELEASE}-crds", f"{RELEASE}-uninstall", f"{RELEASE}-test"}:
            notes = document["metadata"]["annotations"]
            policy = notes["helm.sh/hook-delete-policy"].split(",")
            assert "before-hook-creation" in policy
            assert ("hook-succeeded" in policy) == (document["kind"] != "Pod")


def test_kinds_that_an_administrator_adds_may_be_read() -> None:
    added = [{"kind": "Gang", "group": "example.org", "resource": "gangs"}]
    rights = _rights("fluxqueue-controller", {"ownerKinds": added})["*"]
    assert ("example.org", "gangs", (), ("get",)) in rights
    added[0]["suspend"] = "spec.suspend"
    rights = _rights("fluxqueue-controller", {"ownerKinds": added})["*"]
    assert ("example.org", "gangs", (), ("get", "list", "watch")) in rights
    rights = _rights("fluxqueue-worker", {"ownerKinds": added})["*"]
    assert ("example.org", "gangs", (), ("delete", "get", "patch")) in rights
