"""The webhook configuration: which objects are asked about, and which never."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from localcluster.kinds.webhook_config import CONDITION_VARIABLES
from localcluster.types.cel import compile_expression

from fluxqueue.kube.webhook_configuration import WebhookConfiguration, WebhookEndpoint
from fluxqueue.workload.owner_kind_settings import parse_owner_kinds
from fluxqueue.workload.submitter import Submitters

CA = b"-----BEGIN CERTIFICATE-----\n"
URL = WebhookEndpoint(url="https://127.0.0.1:9443/")


def _build(
    endpoint: WebhookEndpoint = URL, **options: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    configuration = WebhookConfiguration(endpoint, CA, **options).build()
    assert configuration["kind"] == "MutatingWebhookConfiguration"
    _, _, _, jobs, pods, *_ = configuration["webhooks"]
    return jobs, pods


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Label selectors as the API server reads them: NotIn holds for an absent key."""
    for expression in selector["matchExpressions"]:
        value, operator = labels.get(expression["key"]), expression["operator"]
        is_in = value is not None if operator == "DoesNotExist" else value in expression["values"]
        if is_in is not (operator == "In"):
            return False
    return True


def _namespace(name: str, **labels: str) -> dict[str, str]:
    return {"kubernetes.io/metadata.name": name, **labels}


def test_asks_only_on_creation_of_jobs_and_pods() -> None:
    (jobs,), (pods,) = (webhook["rules"] for webhook in _build())
    assert (jobs["apiGroups"], jobs["resources"], jobs["operations"]) == (
        ["batch"],
        ["jobs"],
        ["CREATE"],
    )
    assert (pods["apiGroups"], pods["resources"], pods["operations"]) == (
        [""],
        ["pods"],
        ["CREATE"],
    )


@pytest.mark.parametrize("is_opt_in", [False, True])
@pytest.mark.parametrize(
    ("name", "label", "expected"),
    [
        ("user", None, {False: True, True: False}),
        ("user", "true", {False: True, True: True}),
        ("user", "false", {False: False, True: False}),
        ("kube-system", "true", {False: False, True: False}),
        ("kube-public", None, {False: False, True: False}),
        ("kube-node-lease", None, {False: False, True: False}),
        ("own", "true", {False: False, True: False}),
    ],
)
def test_chooses_namespaces(
    name: str, label: str | None, expected: dict[bool, bool], is_opt_in: bool
) -> None:
    labels = _namespace(name, **({"fluxqueue/managed": label} if label else {}))
    for webhook in _build(is_opt_in=is_opt_in, own_namespace="own"):
        assert _selects(webhook["namespaceSelector"], labels) is expected[is_opt_in]


def test_objects_opt_out_by_label() -> None:
    for webhook in _build():
        assert _selects(webhook["objectSelector"], {})
        assert not _selects(webhook["objectSelector"], {"fluxqueue/managed": "false"})


def test_pods_of_jobs_are_left_out_before_anything_of_them_is_read() -> None:
    """A condition has the API server take the whole pod to pieces. A selector reads labels."""
    of_a_job = {"batch.kubernetes.io/controller-uid": "3c1e", "fluxqueue/pod-group": "mpi"}
    jobs, pods = _build()
    assert not _selects(pods["objectSelector"], of_a_job)
    assert _selects(jobs["objectSelector"], of_a_job)


GROUP, MARKED = {"fluxqueue/pod-group": "mpi"}, {"fluxqueue/managed": "true"}


@pytest.mark.parametrize("scheduler", ["fluence", "fluxnetes", "FluxionScheduler"])
def test_who_names_a_scheduler_of_before_reaches_us(scheduler: str) -> None:
    """It would wait for ever for one that is not there."""
    meta = {"ownerReferences": [{"kind": "ReplicaSet"}]}
    assert _is_asked(meta, scheduler)


def _is_asked(meta: dict[str, Any], scheduler: str = "default-scheduler") -> bool:
    """Whether the API server calls us for a Pod."""
    jobs, pods = _build()
    assert "matchConditions" not in jobs
    env = {"object": {"metadata": meta, "spec": {"schedulerName": scheduler}}}
    return all(
        compile_expression(one["expression"], CONDITION_VARIABLES)(env)
        for one in pods["matchConditions"]
    )


@pytest.mark.parametrize(
    ("meta", "is_asked"),
    [
        ({}, True),
        ({"ownerReferences": [{"kind": "ReplicaSet"}], "labels": MARKED}, True),
        ({"ownerReferences": [{"kind": "Job"}], "labels": MARKED}, False),
        ({"labels": {"a": "b"}}, True),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}}, False),
        *(
            ({"ownerReferences": [{"kind": kind}]}, False)
            for kind in ("ReplicaSet", "DaemonSet", "Job", "Node")
        ),
        ({"ownerReferences": [{"kind": "ReplicaSet"}], "labels": GROUP}, True),
        ({"ownerReferences": [{"kind": "ReplicaSet"}], "annotations": GROUP}, True),
        (
            {
                "ownerReferences": [{"kind": "MPIJob"}],
                "labels": {"pod-group.scheduling.sigs.k8s.io": "x"},
            },
            True,
        ),
        # Those of Jobs were marked in their template.
        ({"ownerReferences": [{"kind": "Job"}], "labels": GROUP}, False),
    ],
)
def test_pods_of_controllers_and_nodes_reach_us_only_if_they_ask_to_be_queued(
    meta: dict[str, Any], is_asked: bool
) -> None:
    assert _is_asked(meta) is is_asked


def test_fails_closed_unless_told_otherwise() -> None:
    assert [w["failurePolicy"] for w in _build()] == ["Fail", "Fail"]
    assert [w["failurePolicy"] for w in _build(pods_failure_policy="Ignore")] == ["Fail", "Ignore"]
    for webhook in _build():
        assert webhook["sideEffects"] == "None"
        assert webhook["reinvocationPolicy"] == "IfNeeded"
        assert webhook["timeoutSeconds"] == 5
        assert webhook["admissionReviewVersions"] == ["v1"]


def test_calls_a_url_or_a_service() -> None:
    bundle = base64.b64encode(CA).decode()
    for webhook in _build():
        assert webhook["clientConfig"] == {
            "url": "https://127.0.0.1:9443/mutate",
            "caBundle": bundle,
        }
    for webhook in _build(WebhookEndpoint(service="fluxqueue-webhook", namespace="own")):
        assert webhook["clientConfig"] == {
            "service": {
                "name": "fluxqueue-webhook",
                "namespace": "own",
                "path": "/mutate",
                "port": 443,
            },
            "caBundle": bundle,
        }


@pytest.mark.parametrize(
    ("user", "old", "new", "is_asked"),
    [
        ("alice", {"hold": False}, {"hold": True}, True),
        ("alice", {"hold": True}, {"hold": True}, False),
        ("system:serviceaccount:queue:controller", {"size": 1}, {"size": 2}, False),
    ],
)
def test_changes_of_a_fluxjobs_spec_by_others_reach_us(
    user: str, old: dict[str, Any], new: dict[str, Any], is_asked: bool
) -> None:
    own = ["system:serviceaccount:queue:controller"]
    webhook = WebhookConfiguration(URL, CA, own_users=own).build()["webhooks"][-2]
    (rule,) = webhook["rules"]
    assert (rule["resources"], rule["operations"]) == (["fluxjobs"], ["UPDATE"])
    env = {
        "object": {"spec": new},
        "oldObject": {"spec": old},
        "request": {"userInfo": {"username": user}},
    }
    assert is_asked is all(
        compile_expression(one["expression"], CONDITION_VARIABLES)(env)
        for one in webhook["matchConditions"]
    )


@pytest.mark.parametrize(
    "endpoint", [WebhookEndpoint(), WebhookEndpoint(url="https://x", service="y")]
)
def test_needs_exactly_one_endpoint(endpoint: WebhookEndpoint) -> None:
    with pytest.raises(ValueError, match="either url or service"):
        WebhookConfiguration(endpoint, CA).build()


ALL_ASK = {"fluxqueue/sets": "managed"}


def _owners_and_sets(**options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    owners, _, sets, *_ = WebhookConfiguration(URL, CA, **options).build()["webhooks"]
    return owners, sets


def test_what_makes_pods_is_asked_about_where_it_is_labelled() -> None:
    owners, _ = _owners_and_sets()
    assert _selects(owners["objectSelector"], MARKED)
    assert not _selects(owners["objectSelector"], {})
    rules = {(one["apiGroups"][0], one["resources"][0]): one for one in owners["rules"]}
    assert rules["apps", "deployments"]["operations"] == ["CREATE", "UPDATE"]
    assert rules["flux-framework.org", "miniclusters"]["operations"] == ["CREATE"]
    # An edit must not pass by what admission alone writes on what waits suspended.
    assert rules["ray.io", "rayjobs"]["operations"] == ["CREATE", "UPDATE"]


def test_what_can_be_suspended_is_asked_about_in_namespaces_with_managed_sets() -> None:
    _, suspended, *_ = WebhookConfiguration(URL, CA).build()["webhooks"]
    assert suspended["clientConfig"]["url"] == "https://127.0.0.1:9443/mutate/all-ask"
    assert not _selects(suspended["namespaceSelector"], _namespace("user"))
    assert _selects(suspended["namespaceSelector"], _namespace("user", **ALL_ASK))
    asked = {one["resources"][0] for one in suspended["rules"]}
    assert {"jobsets", "mpijobs", "rayjobs"} <= asked
    assert not asked & {"deployments", "miniclusters", "leaderworkersets"}


def test_what_an_administrator_adds_is_asked_about() -> None:
    text = '[{"kind": "Gang", "group": "example.org", "resource": "gangs"}]'
    owners, _ = _owners_and_sets(owner_kinds=parse_owner_kinds(text))
    assert ["gangs"] in [one["resources"] for one in owners["rules"]]


def test_all_that_controllers_make_is_asked_about_where_the_namespace_says_so() -> None:
    _, sets = _owners_and_sets(own_namespace="own")
    assert sets["clientConfig"]["url"] == "https://127.0.0.1:9443/mutate/all-ask"
    for name, expected in (("user", True), ("own", False), ("kube-system", False)):
        assert _selects(sets["namespaceSelector"], _namespace(name, **ALL_ASK)) is expected
    assert not _selects(sets["namespaceSelector"], _namespace("user"))
    refused = _namespace("user", **ALL_ASK, **{"fluxqueue/managed": "false"})
    assert not _selects(sets["namespaceSelector"], refused)


@pytest.mark.parametrize(
    ("owners", "expected"),
    [
        (None, False),
        ([{"kind": "ReplicaSet", "controller": True}], True),
        ([{"kind": "ReplicaSet"}], False),
        ([{"kind": "DaemonSet", "controller": True}], False),
        ([{"kind": "Job", "controller": True}], False),
        ([{"kind": "Node", "controller": True}], False),
        ([{"kind": "CronJob", "controller": True}], False),
        ([{"kind": "Service"}, {"kind": "JobSet", "controller": True}], True),
    ],
)
def test_what_nobody_or_a_daemonset_makes_is_not_asked_about_for_that(
    owners: Any, expected: bool
) -> None:
    _, sets = _owners_and_sets()
    (condition,) = sets["matchConditions"]
    meta = {} if owners is None else {"ownerReferences": owners}
    judge = compile_expression(condition["expression"], CONDITION_VARIABLES)
    assert judge({"object": {"metadata": meta}}) is expected


def test_every_question_reaches_us_and_none_that_did_not_is_taken() -> None:
    """Admission records the user that asks, in each namespace."""
    webhook = WebhookConfiguration(URL, CA).build()["webhooks"][-1]
    assert webhook["name"].startswith("placementreviews.")
    (rule,) = webhook["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["placementreviews"])
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["namespaceSelector"] == webhook["objectSelector"] == {}
    assert "matchConditions" not in webhook


ACCOUNTS = Submitters(frozenset({"kube:rs", "kube:deploy"}), frozenset({"gitops"}))
ALSO_TEMPLATES = ("cronjobs", "templates", "set-templates")


def _webhook(name: str, **options: Any) -> dict[str, Any]:
    found = WebhookConfiguration(URL, CA, submitters=ACCOUNTS, **options).build()["webhooks"]
    return next(one for one in found if one["name"].partition(".")[0] == name)


def test_templates_are_asked_about_where_somebody_hands_them_on() -> None:
    """Without the policies no account does, and admission writes no submitter into a template."""
    for submitters in (None, Submitters(), Submitters(accounts=frozenset({"gitops"}))):
        found = WebhookConfiguration(URL, CA, submitters=submitters).build()["webhooks"]
        names = {one["name"].partition(".")[0] for one in found}
        assert not names & set(ALSO_TEMPLATES)
    for name in ALSO_TEMPLATES:
        webhook = _webhook(name)
        for rule in webhook["rules"]:
            assert rule["operations"] == ["CREATE", "UPDATE"]
            assert not [one for one in rule["resources"] if "/" in one]
        assert not _selects(webhook["objectSelector"], {"fluxqueue/managed": "false"})
    assert _webhook("cronjobs", jobs_failure_policy="Ignore")["failurePolicy"] == "Ignore"
    assert _webhook("templates", pods_failure_policy="Ignore")["failurePolicy"] == "Ignore"


def _reaches_us(name: str, user: str, old: Any, new: Any) -> bool:
    env = {"object": new, "oldObject": old, "request": {"userInfo": {"username": user}}}
    return all(
        compile_expression(one["expression"], CONDITION_VARIABLES)(env)
        for one in _webhook(name).get("matchConditions", ())
    )


def _set(labels: dict[str, str] | None = None, replicas: int = 1, **spec: Any) -> dict[str, Any]:
    meta = {} if labels is None else {"metadata": {"labels": labels}}
    return {"spec": {"replicas": replicas, "template": {**meta, "spec": spec}}}


@pytest.mark.parametrize(
    ("user", "old", "new", "is_asked"),
    [
        ("alice", None, _set(MARKED), True),
        ("alice", None, _set({"a": "b"}, schedulerName="fluence"), True),
        ("alice", None, _set(), False),
        ("alice", None, _set({"fluxqueue/managed": "false"}), False),
        ("alice", None, {"spec": {"replicas": 1}}, False),
        ("alice", _set(MARKED), _set(MARKED), False),
        ("alice", _set(MARKED), _set(MARKED, replicas=2), True),
        ("alice", _set(), _set(MARKED), True),
        ("kube:deploy", None, _set(MARKED), False),
        ("gitops", _set(MARKED), _set(MARKED), True),
    ],
)
def test_templates_that_ask_and_change_reach_us(
    user: str, old: Any, new: Any, is_asked: bool
) -> None:
    assert _reaches_us("templates", user, old, new) is is_asked


@pytest.mark.parametrize("name", ["cronjobs", "set-templates"])
def test_where_all_are_queued_templates_need_not_ask(name: str) -> None:
    assert _reaches_us(name, "alice", None, _set())
    assert not _reaches_us(name, "alice", _set(), _set())
    assert not _reaches_us(name, "kube:rs", None, _set())
    is_for_sets = "fluxqueue/sets" in str(_webhook(name)["namespaceSelector"])
    assert is_for_sets is (name == "set-templates")
