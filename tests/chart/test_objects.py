"""Objects of the chart that must agree with the code, or among themselves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fluxqueue.cli.main import app
from fluxqueue.controller.controller_process import LEASE
from fluxqueue.db.leadership import CONTROLLER
from fluxqueue.kube.admission_policies import (
    build_policies,
    build_released_pods_policy,
    build_ungrouped_pods_policy,
)
from fluxqueue.kube.roles import AGGREGATE, build_roles
from fluxqueue.kube.webhook_configuration import WebhookConfiguration, WebhookEndpoint
from fluxqueue.process import metrics
from fluxqueue.process.cluster_accounts import CLUSTER_CONTROLLERS
from fluxqueue.worker import schedule
from fluxqueue.workload import labels
from fluxqueue.workload.owner_kind_settings import parse_owner_kinds
from fluxqueue.workload.owner_kinds import size_of
from fluxqueue.workload.submitter import Submitters
from fluxqueue_webhook.review_metrics import AdmissionMetrics
from tests.chart.rendering import (
    CHART,
    EVERYTHING,
    NAMESPACE,
    Document,
    containers,
    find,
    id_of,
    render,
)

# --- admission -----------------------------------------------------------------------------------


@pytest.mark.parametrize("namespaces", ["optOut", "optIn"])
@pytest.mark.parametrize("policies", [("Fail", "Fail"), ("Ignore", "Fail"), ("Fail", "Ignore")])
def test_webhook_configuration_is_the_one_of_the_code(
    namespaces: str, policies: tuple[Any, Any]
) -> None:
    """`fluxqueue up` and the chart install the same. Only the caBundle is the controller's."""
    jobs, pods = policies
    expected = WebhookConfiguration(
        WebhookEndpoint(service="blue-fluxqueue-webhook", namespace="queue"),
        b"",
        jobs_failure_policy=jobs,
        pods_failure_policy=pods,
        is_opt_in=namespaces == "optIn",
        own_namespace="queue",
        own_users=[
            f"system:serviceaccount:queue:blue-fluxqueue-{part}"
            for part in ("controller", "worker", "uninstall")
        ],
        submitters=Submitters(frozenset(CLUSTER_CONTROLLERS)),
    ).build()
    for one in expected["webhooks"]:
        assert one["clientConfig"].pop("caBundle", "") == ""
    values = {"webhook": {"namespaces": namespaces, "failurePolicy": {"jobs": jobs, "pods": pods}}}
    (rendered,) = [
        one
        for one in render(values, name="blue", namespace="queue")
        if one["kind"] == "MutatingWebhookConfiguration"
    ]
    assert rendered["metadata"]["name"] == "blue-fluxqueue"
    assert rendered["webhooks"] == expected["webhooks"]
    assert rendered["apiVersion"] == expected["apiVersion"]


GANG = {
    "kind": "Gang",
    "group": "example.org",
    "resource": "gangs",
    "pods": [{"each": "spec.roles.*", "count": ["replicas|min", 2], "template": "pod"}],
}


def test_kinds_that_an_administrator_adds_reach_both_that_read_them() -> None:
    """Asked about by the API server, and known to the controller and to the webhook."""
    values = {"ownerKinds": [GANG]}
    configuration = find("MutatingWebhookConfiguration", "fluxqueue", values)
    assert ["gangs"] in [rule["resources"] for rule in configuration["webhooks"][0]["rules"]]
    found = [
        variable["value"]
        for _, container in containers(render(values))
        if container["name"] in {"controller", "webhook"}
        for variable in container.get("env", ())
        if variable["name"] == "FLUXQUEUE_OWNER_KINDS"
    ]
    assert len(found) == 2
    for text in found:
        entry = parse_owner_kinds(text).find("example.org", "Gang")
        assert entry is not None
        assert size_of(entry, {"spec": {"roles": {"a": {"min": 3}}}}) == 6


def test_a_release_of_the_usual_name_is_the_configuration_of_up() -> None:
    """So that the defaults of settings and of `fluxqueue uninstall` meet both."""
    name = WebhookConfiguration(WebhookEndpoint(url="https://x"), b"").build()["metadata"]["name"]
    assert find("MutatingWebhookConfiguration", name)


def test_the_service_that_is_called_leads_to_the_webhook() -> None:
    configuration = find("MutatingWebhookConfiguration", "fluxqueue")
    for one in configuration["webhooks"]:
        called = one["clientConfig"]["service"]
        service = find("Service", called["name"])
        assert service["metadata"]["namespace"] == called["namespace"] == NAMESPACE
        assert called["port"] in {port["port"] for port in service["spec"]["ports"]}


def test_every_service_and_budget_selects_exactly_one_part() -> None:
    documents = render(EVERYTHING)
    pods = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in documents
        if one["kind"] in {"Deployment", "StatefulSet"}
    }
    for one in documents:
        if one["kind"] not in {"Service", "PodDisruptionBudget", "NetworkPolicy"}:
            continue
        name, spec = one["metadata"]["name"], one["spec"]
        selector = spec.get("selector") or spec.get("podSelector")
        assert isinstance(selector, dict)
        wanted = selector.get("matchLabels", selector)
        chosen = [pod for pod, given in pods.items() if wanted.items() <= given.items()]
        if wanted["app.kubernetes.io/component"] in {"hook", "test"}:
            assert chosen == []
        else:
            assert chosen == [name.removesuffix("-metrics")]


def test_certificate_of_cert_manager_is_good_for_the_service() -> None:
    values = {"certificates": {"provider": "cert-manager"}}
    certificate = find("Certificate", "fluxqueue-webhook-certificate", values)
    assert f"fluxqueue-webhook.{NAMESPACE}.svc" in certificate["spec"]["dnsNames"]
    configuration = find("MutatingWebhookConfiguration", "fluxqueue", values)
    assert configuration["metadata"]["annotations"] == {
        "cert-manager.io/inject-ca-from": f"{NAMESPACE}/fluxqueue-webhook-certificate"
    }


def test_policy_and_code_mean_the_same_words() -> None:
    """Gate, label and annotation in expressions are those of ``workload.labels``."""
    jobs = find("ValidatingAdmissionPolicy", "fluxqueue-queued-jobs")
    text = json.dumps(jobs["spec"])
    assert f"g.name == '{labels.GATE}'" in text
    for word in (labels.MANAGED, labels.AUTHOR_SUSPENDED, labels.USER):
        assert f"'{word}'" in text


def test_policy_lets_exactly_our_accounts_pass() -> None:
    accounts = {
        f"system:serviceaccount:{NAMESPACE}:{one['metadata']['name']}"
        for one in render()
        if one["kind"] == "ServiceAccount"
    }
    named = set(re.findall(r"system:serviceaccount:[\w:-]+", json.dumps(_policies({}))))
    named -= set(CLUSTER_CONTROLLERS)
    assert named < accounts
    assert {one.rpartition("-")[2] for one in named} == {"controller", "worker", "uninstall"}
    others = json.dumps(_policies({"gatePolicy": {"exemptUsers": ["alice"]}}))
    assert "alice" in others


@pytest.mark.parametrize("namespaces", ["optOut", "optIn"])
def test_policies_look_where_the_webhook_is_asked(namespaces: str) -> None:
    values = {"webhook": {"namespaces": namespaces}}
    webhooks = find("MutatingWebhookConfiguration", "fluxqueue", values)["webhooks"]
    jobs = next(one for one in webhooks if one["name"].startswith("jobs."))
    bindings = [one for one in render(values) if one["kind"] == "ValidatingAdmissionPolicyBinding"]
    queued = [one["spec"] for one in bindings if "-queued-" in one["metadata"]["name"]]
    assert [one["matchResources"]["namespaceSelector"] for one in queued] == [
        jobs["namespaceSelector"]
    ] * 4
    marked = [one["spec"] for one in bindings if "-marked-" in one["metadata"]["name"]]
    system = jobs["namespaceSelector"]["matchExpressions"][:1]
    assert [one["matchResources"]["namespaceSelector"]["matchExpressions"] for one in marked] == [
        system
    ] * 4


@pytest.mark.parametrize("namespaces", ["optOut", "optIn"])
def test_up_and_the_chart_install_the_same_policies(namespaces: str) -> None:
    documents = render({"webhook": {"namespaces": namespaces}})
    accounts = [f"fluxqueue-{part}" for part in ("controller", "worker", "uninstall")]
    users = [f"system:serviceaccount:{NAMESPACE}:{name}" for name in accounts]
    for one in build_policies(users, is_opt_in=namespaces == "optIn"):
        its = next(d for d in documents if id_of(d) == id_of(one))
        assert its["spec"] == one["spec"], id_of(one)


def test_without_a_cluster_the_policies_for_pods_of_jobs_are_left_out() -> None:
    """Helm takes its own version of Kubernetes for the cluster's, which may be older."""
    kinds = {one["kind"] for one in render({})}
    assert "ValidatingAdmissionPolicy" in kinds
    for documents in (build_released_pods_policy(), build_ungrouped_pods_policy()):
        assert not {one["kind"] for one in documents} & kinds


def test_up_and_the_chart_give_users_the_same_roles() -> None:
    ours = build_roles()
    assert {one["metadata"]["name"] for one in ours} == {
        f"fluxqueue-{role}" for role in ("viewer", "user", "operator")
    }
    for one in ours:
        its = find("ClusterRole", one["metadata"]["name"], {})
        assert its["rules"] == one["rules"]
        aggregate = {k: v for k, v in one["metadata"]["labels"].items() if k.startswith(AGGREGATE)}
        assert len(aggregate) == 1
        assert aggregate.items() <= its["metadata"]["labels"].items()


def test_what_no_policy_is_about_costs_no_selector() -> None:
    """An API server parses a policy's selectors for each request, before it looks at its rules. A
    binding's only where the rules hold."""
    policies = _policies({})
    assert len(policies) == 10
    for one in policies:
        constraints = one["spec"]["matchConstraints"]
        assert not {"namespaceSelector", "objectSelector"} & set(constraints), one["metadata"]


def _policies(values: dict[str, Any]) -> list[Document]:
    return [one for one in render(values) if one["kind"] == "ValidatingAdmissionPolicy"]


# --- commands, leases ----------------------------------------------------------------------------


def test_every_command_of_ours_exists() -> None:
    """Of containers and hooks: the command line knows them, with their options."""
    seen = set()
    for owner, one in containers(render({"view": {"enabled": True}})):
        command = [*one.get("command", []), *one.get("args", [])]
        if command[:1] != ["fluxqueue"]:
            continue
        words = [word for word in command[1:] if not word.startswith("--")]
        options = {word.partition("=")[0] for word in command if word.startswith("--")}
        path = words if words[0] == "db" else words[:1]
        result = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"})
        assert result.exit_code == 0, (owner, command, result.output)
        assert not [option for option in options if option not in result.output], (owner, command)
        seen.add(" ".join(path))
    assert seen == {"controller", "worker", "view", "db upgrade", "install", "uninstall"}


def test_the_lease_is_the_one_that_is_allowed() -> None:
    role = find("Role", "fluxqueue-controller")
    names = {name for rule in role["rules"] for name in rule.get("resourceNames", ())}
    assert LEASE in names


def test_definitions_that_the_hook_may_change_are_those_of_the_chart() -> None:
    role = find("ClusterRole", "fluxqueue-crds")
    allowed = {name for rule in role["rules"] for name in rule.get("resourceNames", ())}
    shipped = {
        yaml.safe_load(path.read_text(encoding="utf-8"))["metadata"]["name"]
        for path in (CHART / "crds").glob("*.yaml")
    }
    assert shipped <= allowed


# --- monitoring ----------------------------------------------------------------------------------

_SUFFIXES = ("_bucket", "_count", "_sum", "_total", "_created")


def _known_metrics() -> set[str]:
    names = {family.name for family in metrics.REGISTRY.collect()}
    admission = AdmissionMetrics()
    admission.count("Job", "taken", 0.001)
    names |= set(re.findall(r"# TYPE (\w+)", admission.render()))
    return names | {name.removesuffix("_total") for name in names}


def _is_known(name: str, known: set[str]) -> bool:
    return name in known or any(name.removesuffix(suffix) in known for suffix in _SUFFIXES)


def _expressions() -> list[str]:
    rule = find("PrometheusRule", "fluxqueue", EVERYTHING)
    alerts = [one["expr"] for group in rule["spec"]["groups"] for one in group["rules"]]
    dashboard = json.loads(
        find("ConfigMap", "fluxqueue-dashboard", EVERYTHING)["data"]["fluxqueue.json"]
    )
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return alerts + shown


def test_alerts_and_dashboard_ask_for_metrics_that_exist() -> None:
    known = _known_metrics()
    asked = {name for text in _expressions() for name in re.findall(r"\bfluxqueue_\w+", text)}
    assert len(asked) > 10
    assert [name for name in sorted(asked) if not _is_known(name, known)] == []


def test_alerts_and_dashboard_ask_for_labels_that_exist() -> None:
    """A label that no metric has would make an expression empty, and an alert silent."""
    from_scraping = {"namespace", "service", "pod", "le", "job", "instance"}
    own = {
        label
        for collector in vars(metrics).values()
        for label in getattr(collector, "_labelnames", ())
    } | {"kind", "verdict"}
    for text in _expressions():
        used = set(re.findall(r"(\w+)=~?\"", text))
        for group in re.findall(r"by \(([^)]*)\)", text):
            used |= {one.strip() for one in group.split(",")}
        assert used <= own | from_scraping, text


def test_alerts_name_roles_that_exist() -> None:
    named = {role for text in _expressions() for role in re.findall(r'role="(\w+)"', text)}
    assert named == {CONTROLLER, schedule.ROLE}


def test_alerts_say_where_they_look_and_what_they_mean() -> None:
    (rule,) = [
        one
        for one in render(EVERYTHING, name="blue", namespace="queue")
        if one["kind"] == "PrometheusRule"
    ]
    for group in rule["spec"]["groups"]:
        for one in group["rules"]:
            assert 'namespace="queue"' in one["expr"], one["alert"]
            assert set(one["annotations"]) == {"summary", "description"}
            assert one["labels"]["severity"] in {"warning", "critical"}
    assert not re.search(r"NAMESPACE|FULLNAME", json.dumps(rule))


def test_monitors_scrape_ports_that_exist() -> None:
    documents = render(EVERYTHING)
    services = [one for one in documents if one["kind"] == "Service"]
    for monitor in (one for one in documents if one["kind"] == "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"]
        ports = {
            port["name"]
            for one in services
            if wanted.items() <= one["metadata"]["labels"].items()
            for port in one["spec"]["ports"]
        }
        assert {one["port"] for one in monitor["spec"]["endpoints"]} <= ports


def test_dashboard_panels_do_not_overlap() -> None:
    dashboard = json.loads((Path(CHART) / "files" / "dashboard.json").read_text(encoding="utf-8"))
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        own = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not own & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        cells |= own
