"""Values: the schema is in step and refuses what cannot be meant. Every value does something."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import helm_python
import pytest
import yaml

from chart.schema import DOCUMENT, SCHEMA, VALUES, Undescribed, build, with_settings
from chart.schema import render as render_schema
from tests.chart.rendering import (
    CHART,
    EVERYTHING,
    EXTERNAL,
    by_id,
    find,
    ha_values,
    id_of,
    merged,
    nested,
    render,
    render_files,
)


def test_schema_is_in_step_with_values_and_settings() -> None:
    """After a change of values.yaml or of fluxqueue/process/settings.py: python chart/schema.py."""
    assert SCHEMA.read_text(encoding="utf-8") == render_schema(VALUES.read_text(encoding="utf-8"))


def test_documented_settings_are_in_step() -> None:
    """The same command writes the table of docs/reference/settings.md."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == with_settings(text)


@pytest.mark.xdist_group("jsonschema")
def test_schema_is_a_schema_and_takes_the_defaults() -> None:
    import jsonschema  # with it comes a grammar that is compiled at each import

    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(VALUES.read_text(encoding="utf-8")), schema)
    jsonschema.validate(ha_values(), schema)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"controler": {"replicas": 1}}, "controler"),
        ({"controller": {"replica": 1}}, "replica"),
        ({"controller": {"replicas": 0}}, "replicas"),
        ({"controller": {"replicas": "2"}}, "replicas"),
        ({"webhook": {"failurePolicy": {"jobs": "Retry"}}}, "jobs"),
        ({"webhook": {"timeoutSeconds": 31}}, "timeoutSeconds"),
        ({"webhook": {"namespaces": "all"}}, "namespaces"),
        ({"image": {"tag": "latest"}}, "tag"),
        ({"image": {"digest": "sha256:abc"}}, "digest"),
        ({"postgres": {"image": {"tag": "latest"}}}, "tag"),
        ({"postgres": {"image": {"tag": ""}}}, "tag"),
        ({"externalDatabase": {"sslmode": "on"}}, "sslmode"),
        ({"certificates": {"provider": "letsencrypt"}}, "provider"),
        ({"security": {"runAsUser": 0}}, "runAsUser"),
        ({"settings": {"FLUXQUEUE_QUEUE_POLICY": "lifo"}}, "FLUXQUEUE_QUEUE_POLICY"),
        ({"settings": {"FLUXQUEUE_QUEUE_POLICIES": "easy"}}, "FLUXQUEUE_QUEUE_POLICIES"),
        ({"settings": {"FLUXQUEUE_QUEUE_DEPTH": 0}}, "FLUXQUEUE_QUEUE_DEPTH"),
        ({"settings": {"DATABASE_URL": "postgresql://me:secret@db/x"}}, "DATABASE_URL"),
        ({"worker": {"resources": {"limit": {"cpu": 1}}}}, "limit"),
        ({"worker": {"resources": {"limits": {"cpu": "much"}}}}, "cpu"),
        ({"test": {"namespace": ""}}, "namespace"),
    ],
)
def test_schema_refuses(values: dict[str, Any], named: str) -> None:
    """At `helm install`, naming the value: nothing that is misspelt is silently ignored."""
    with pytest.raises(helm_python.HelmValuesError, match=named):
        render_files(values)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"postgres": {"enabled": False}}, "existingSecret"),
        (
            {"postgres": {"enabled": False}, "externalDatabase": {"existingSecret": "queue"}},
            r"externalDatabase\.host",
        ),
        (merged(EXTERNAL, {"externalDatabase": {"caKey": ""}}), "caKey"),
    ],
)
def test_templates_refuse_what_only_together_cannot_be(values: dict[str, Any], named: str) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=named):
        render_files(values)


def test_a_dependency_may_be_told_global_values() -> None:
    """Helm adds this one by itself where the chart is part of another."""
    assert render({"global": {"anything": 1}})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a: 1\n", "a: say what it means"),
        ("# only a remark\na: 1\n", "a: say what it means"),
        ("# -- A map\na: {}\n", "a: say with @schema"),
        ("# -- A list\na: []\n", "a: say with @schema"),
        ("b:\n  a: 1\n", "b.a: say what it means"),
    ],
)
def test_values_must_be_described(text: str, named: str) -> None:
    with pytest.raises(Undescribed, match=named):
        build(text)


# --- every value does something -----------------------------------------------------------------

_POD = {
    "priorityClassName": "urgent",
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "podAnnotations": {"a": "b"},
    "podLabels": {"a": "b"},
    "serviceAccountAnnotations": {"a": "b"},
    "podDisruptionBudget": False,
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "resources": {"limits": {"cpu": "7"}},
    "replicas": 5,
}
_BY_LAST_NAME = {**_POD, "digest": "sha256:" + "0" * 64, "pullPolicy": "Always", "tag": "9.9"}
_CHANGED: dict[str, Any] = {
    "view.url": "https://queue.example.org",
    "ownerKinds": [{"kind": "Gang", "group": "example.org", "resource": "gangs"}],
    "nodePools.scale": [{"group": "example.org", "resource": "machines"}],
    "nodePools.protect": "waiting",
    "aliases": ["my.org/walltime=duration"],
    "queueNames": {"user-queue": "gold"},
    "kueueSuspension": "author",
    "waitGated.namespaces": ["lab"],
    "waitGated.queues": ["slow"],
    "nameOverride": "other",
    "fullnameOverride": "other",
    "commonLabels": {"team": "hpc"},
    "openshift": "yes",
    "imagePullSecrets": [{"name": "registry"}],
    "settings": {"FLUXQUEUE_QUEUE_POLICY": "fcfs"},
    "webhook.failurePolicy.jobs": "Ignore",
    "webhook.failurePolicy.pods": "Ignore",
    "webhook.namespaces": "optOut",
    "webhook.logLevel": "DEBUG",
    "certificates.provider": "cert-manager",
    "certificates.issuerRef": {"name": "corporate", "kind": "ClusterIssuer"},
    "postgres.existingSecret": "mine",
    "postgres.storage.size": "99Gi",
    "postgres.storage.annotations": {"a": "b"},
    "postgres.parameters": {"work_mem": "64MB"},
    "externalDatabase.sslmode": "require",
    "gatePolicy.exemptUsers": ["alice"],
    "gatePolicy.exemptGroups": ["system:masters"],
    "gatePolicy.controllers": ["system:job-maker"],
    "submitter.accounts": ["system:serviceaccount:flux-system:kustomize-controller"],
    "submitter.annotation": "example.org/for-user",
    "webhook.clientCaConfigMap": "webhook-clients",
    "networkPolicy.webhookFrom": [{"ipBlock": {"cidr": "10.0.0.0/28"}}],
    "networkPolicy.metricsFrom": [{"namespaceSelector": {}}],
    "networkPolicy.egressPorts": [443],
    "monitoring.serviceMonitor.labels": {"a": "b"},
    "monitoring.serviceMonitor.interval": "15s",
    "monitoring.prometheusRule.labels": {"a": "b"},
    "monitoring.dashboard.labels": {"a": "b"},
}
_BESIDE = {
    "certificates.issuerRef": {"certificates": {"provider": "cert-manager"}},
    "networkPolicy.": EVERYTHING,
    "monitoring.": EVERYTHING,
    "externalDatabase.": EXTERNAL,
    "view.podDisruptionBudget": {"view": {"enabled": True, "replicas": 2}},
    "view.": {"view": {"enabled": True}},
    "postgres.enabled": {"externalDatabase": EXTERNAL["externalDatabase"]},
}
"""What else must be set so that a value matters."""


def _leaves(schema: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, one in schema["properties"].items():
        path = f"{prefix}{name}"
        if one.get("additionalProperties") is False and path not in _CHANGED:
            if name == "resources":
                yield path, one
            else:
                yield from _leaves(one, f"{path}.")
        elif path != "global":
            yield path, one


_DEFAULTS = yaml.safe_load(VALUES.read_text(encoding="utf-8"))
_LEAVES = dict(_leaves(json.loads(SCHEMA.read_text(encoding="utf-8"))))


def _before(path: str, beside: dict[str, Any]) -> Any:
    found = merged(_DEFAULTS, beside)
    for part in path.split("."):
        found = found[part]
    return found


def _another(path: str, beside: dict[str, Any]) -> Any:
    """Give a value other than the one that is there."""
    last = path.rpartition(".")[2]
    if path in _CHANGED:
        return _CHANGED[path]
    if last in _BY_LAST_NAME:
        return _BY_LAST_NAME[last]
    before = _before(path, beside)
    if isinstance(before, bool):
        return not before
    return before + 1 if isinstance(before, int) else f"x{before}"


@pytest.mark.parametrize("path", _LEAVES)
def test_every_value_does_something(path: str) -> None:
    """No value is decoration: what is rendered with it differs from what is without."""
    beside = next((more for key, more in _BESIDE.items() if path.startswith(key)), {})
    changed = merged(beside, nested(path, _another(path, beside)))
    assert _stable(changed) != _stable(beside), f"{path} changes nothing"


def _stable(values: dict[str, Any]) -> dict[str, str]:
    """Render without the one random thing. The text, because it need not be parsed."""
    files = render_files(values)
    del files["NOTES.txt"]
    return {path: re.sub(r"password: \S{50,}", "", text) for path, text in files.items()}


def test_every_value_of_a_part_reaches_its_pods() -> None:
    """Placement, environment and resources of one part are that part's alone."""
    before = by_id(render())
    for part in ("controller", "worker", "webhook"):
        for name in ("priorityClassName", "nodeSelector", "tolerations", "affinity", "resources"):
            after = by_id(render({part: {name: _POD[name]}}))
            differing = {
                one
                for one in after
                if one[0] in {"Deployment", "StatefulSet"} and after[one] != before[one]
            }
            assert differing == {("Deployment", f"fluxqueue-{part}")}, name


# --- flags: what is there with them and not without ----------------------------------------------

_HOOK = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job")

_VIEW = {
    *((kind, "fluxqueue-view") for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")),
    *((kind, "fluxqueue-view") for kind in ("Role", "RoleBinding", "ConfigMap")),
    *((kind, "fluxqueue-view") for kind in ("Service", "Deployment")),
    ("Service", "fluxqueue-view-metrics"),
}
FLAGS: list[tuple[str, dict[str, Any], dict[str, Any], set[tuple[str, str]]]] = [
    (
        "postgres",
        EXTERNAL,
        {},
        {
            ("Secret", "fluxqueue-postgres"),
            ("ServiceAccount", "fluxqueue-postgres"),
            ("Service", "fluxqueue-postgres"),
            ("StatefulSet", "fluxqueue-postgres"),
        },
    ),
    (
        "postgres secret",
        {"postgres": {"existingSecret": "mine"}},
        {},
        {("Secret", "fluxqueue-postgres")},
    ),
    *[
        (
            f"{part} budget",
            {part: {"podDisruptionBudget": False}},
            {},
            {("PodDisruptionBudget", f"fluxqueue-{part}")},
        )
        for part in ("controller", "worker", "webhook")
    ],
    *[
        (
            f"{part} alone has no budget",
            {part: {"replicas": 1}},
            {},
            {("PodDisruptionBudget", f"fluxqueue-{part}")},
        )
        for part in ("controller", "worker", "webhook")
    ],
    (
        "cert-manager",
        {"uninstall": {"hook": False}},
        {"uninstall": {"hook": False}, "certificates": {"provider": "cert-manager"}},
        {
            ("Issuer", "fluxqueue-self-signed"),
            ("Certificate", "fluxqueue-webhook-ca"),
            ("Issuer", "fluxqueue-webhook-ca"),
            ("Certificate", "fluxqueue-webhook-certificate"),
        },
    ),
    (
        "an issuer of one's own",
        {"certificates": {"provider": "cert-manager", "issuerRef": {"name": "corporate"}}},
        {"certificates": {"provider": "cert-manager"}},
        {
            ("Issuer", "fluxqueue-self-signed"),
            ("Certificate", "fluxqueue-webhook-ca"),
            ("Issuer", "fluxqueue-webhook-ca"),
        },
    ),
    (
        "gate policy",
        {"gatePolicy": {"enabled": False}},
        {},
        {
            (kind, f"fluxqueue-{what}")
            for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
            for what in (
                *("queued-pods", "queued-jobs", "queued-members", "steering", "limits", "graces"),
                *("marked-pods", "marked-jobs", "marked-templates", "marked-owners"),
            )
        }
        | {("ValidatingAdmissionPolicyBinding", "fluxqueue-queued-subresources")},
    ),
    (
        "network policies",
        {},
        {"networkPolicy": {"enabled": True}},
        {
            ("NetworkPolicy", f"fluxqueue-{part}")
            for part in ("controller", "worker", "webhook", "postgres", "hook", "test")
        },
    ),
    (
        "service monitors",
        {},
        {"monitoring": {"serviceMonitor": {"enabled": True}}},
        {("ServiceMonitor", f"fluxqueue-{part}") for part in ("controller", "worker", "webhook")},
    ),
    (
        "view server",
        {},
        {"view": {"enabled": True}},
        _VIEW | {("Role", "fluxqueue-view-callers"), ("RoleBinding", "fluxqueue-view-callers")},
    ),
    (
        "view server with a way of its own",
        {},
        {"view": {"enabled": True, "url": "https://queue.example.org"}},
        _VIEW,
    ),
    (
        "policy and monitor of the view server",
        {"networkPolicy": {"enabled": True}, "monitoring": {"serviceMonitor": {"enabled": True}}},
        {
            "networkPolicy": {"enabled": True},
            "monitoring": {"serviceMonitor": {"enabled": True}},
            "view": {"enabled": True, "replicas": 2, "url": "https://queue.example.org"},
        },
        _VIEW
        | {
            ("NetworkPolicy", "fluxqueue-view"),
            ("ServiceMonitor", "fluxqueue-view"),
            ("PodDisruptionBudget", "fluxqueue-view"),
        },
    ),
    (
        "alerts",
        {},
        {"monitoring": {"prometheusRule": {"enabled": True}}},
        {("PrometheusRule", "fluxqueue")},
    ),
    (
        "dashboard",
        {},
        {"monitoring": {"dashboard": {"enabled": True}}},
        {("ConfigMap", "fluxqueue-dashboard")},
    ),
    (
        "classes of the system",
        {},
        {"postgres": {"priorityClassName": "system-cluster-critical"}},
        {("ResourceQuota", "fluxqueue-critical")},
    ),
    (
        "aggregated roles",
        {"rbac": {"aggregatedRoles": False}},
        {},
        {("ClusterRole", f"fluxqueue-{role}") for role in ("viewer", "user", "operator")},
    ),
    *[
        (
            name,
            values,
            {},
            {(kind, f"fluxqueue-{hook}") for kind in (*_HOOK, *more)},
        )
        for name, values, hook, more in (
            ("hook for definitions", {"crds": {"upgrade": False}}, "crds", ()),
            (
                "hook at the end",
                {"uninstall": {"hook": False}},
                "uninstall",
                ("Role", "RoleBinding"),
            ),
        )
    ],
]


@pytest.mark.parametrize(
    ("without", "with_it", "expected"),
    [flag[1:] for flag in FLAGS],
    ids=[flag[0] for flag in FLAGS],
)
def test_a_flag_brings_exactly_its_objects(
    without: dict[str, Any], with_it: dict[str, Any], expected: set[tuple[str, str]]
) -> None:
    more = {id_of(one) for one in render(with_it)} - {id_of(one) for one in render(without)}
    fewer = {id_of(one) for one in render(without)} - {id_of(one) for one in render(with_it)}
    assert (more, fewer) == (expected, set())


def test_classes_of_the_system_are_let_in_by_a_quota() -> None:
    """GKE refuses pods of these classes in namespaces with a quota that does not name them."""
    assert not [one for one in render() if one["kind"] == "ResourceQuota"]
    classes = {"worker": {"priorityClassName": "system-node-critical"}}
    quota = find("ResourceQuota", "fluxqueue-critical", merged(ha_values(), classes))
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert scope["values"] == ["system-cluster-critical", "system-node-critical"]


def test_ha_values_mean_more_of_everything() -> None:
    documents = by_id(render(ha_values()))
    for part in ("controller", "worker", "webhook"):
        deployment = documents["Deployment", f"fluxqueue-{part}"]["spec"]
        assert deployment["replicas"] >= 2
        (by_host, *_) = deployment["template"]["spec"]["topologySpreadConstraints"]
        assert by_host["whenUnsatisfiable"] == "DoNotSchedule"
        assert by_host["nodeTaintsPolicy"] == "Honor", "a tainted node would count as an empty one"
        assert ("PodDisruptionBudget", f"fluxqueue-{part}") in documents
    assert (CHART / "values-ha.yaml").is_file()
