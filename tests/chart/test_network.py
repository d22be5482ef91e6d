"""Network policies: each connection that the parts need is allowed at both ends, others are not.

No CNI enforces them here, so the rendered policies are judged by the rules of the API
(kubernetes.io/docs/concepts/services-networking/network-policies): a pod that a policy selects
takes and makes only what some policy of its namespace allows. Policies here know ports and labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.chart.rendering import EXTERNAL, Document, merged, render

ON: dict[str, Any] = {"networkPolicy": {"enabled": True}}
OUTSIDE: dict[str, str] = {}
"""Labels of a peer beyond the release: API servers, name servers, an external database."""

Labels = dict[str, str]


def _pods(documents: list[Document]) -> dict[str, tuple[Labels, dict[str, int]]]:
    """Labels and named ports of each pod there will be, by component."""
    found = {}
    for one in documents:
        pod = (
            one
            if one["kind"] == "Pod"
            else one["spec"].get("template", {})
            if "spec" in one
            else {}
        )
        if "containers" not in pod.get("spec", {}):
            continue
        labels = pod["metadata"]["labels"]
        ports = {
            port["name"]: port["containerPort"]
            for container in pod["spec"]["containers"]
            for port in container.get("ports", ())
        }
        found[labels["app.kubernetes.io/component"]] = labels, ports
    return found


class Network:
    """The judge over one rendered chart."""

    def __init__(self, values: dict[str, Any]) -> None:
        documents = render(values)
        self.pods = _pods(documents)
        self.policies = [one["spec"] for one in documents if one["kind"] == "NetworkPolicy"]

    def allows(self, source: str, target: str, port: int, protocol: str = "TCP") -> bool:
        """Whether both ends let it through. An end without a component lies outside."""
        names = self.pods.get(target, (OUTSIDE, {}))[1]
        return all(
            any(self._fits(rule, way, other, port, protocol, names) for rule in rules)
            for rules, way, other in (
                (self._rules(source, "egress"), "to", target),
                (self._rules(target, "ingress"), "from", source),
            )
            if rules is not None
        )

    def _rules(self, component: str, direction: str) -> list[dict[str, Any]] | None:
        """All rules for one pod. None where no policy speaks of it."""
        if component not in self.pods:
            return None
        labels = self.pods[component][0]
        chosen = [one for one in self.policies if _selects(one["podSelector"], labels)]
        chosen = [one for one in chosen if direction.title() in one["policyTypes"]]
        return [rule for one in chosen for rule in one.get(direction, ())] if chosen else None

    def _fits(
        self,
        rule: dict[str, Any],
        way: str,
        other: str,
        port: int,
        protocol: str,
        names: dict[str, int],
    ) -> bool:
        ports = {(names.get(one["port"], one["port"]), one["protocol"]) for one in rule["ports"]}
        peers = rule.get(way)
        labels = self.pods.get(other, (OUTSIDE, {}))[0]
        known = peers is None or any(
            "podSelector" in one and other in self.pods and _selects(one["podSelector"], labels)
            for one in peers
        )
        return known and (port, protocol) in ports


def _selects(selector: dict[str, Any], labels: Labels) -> bool:
    assert set(selector) <= {"matchLabels"}, "the judge knows labels only"
    return selector.get("matchLabels", {}).items() <= labels.items()


def _needed(is_bundled: bool) -> Iterator[tuple[str, str, int, str]]:
    """Everything docs/admin/security.md names."""
    for part in ("controller", "worker", "view", "hook", "test"):
        yield part, "name server", 53, "UDP"
        yield part, "name server", 53, "TCP"
        yield part, "API server", 443, "TCP"
        yield part, "API server", 6443, "TCP"
    for part in ("controller", "worker", "view"):
        yield part, "postgres" if is_bundled else "database", 5432, "TCP"
        yield "Prometheus", part, 8081, "TCP"
    yield "API server", "webhook", 8443, "TCP"
    yield "API server", "view", 8443, "TCP"
    yield "Prometheus", "webhook", 8443, "TCP"


@pytest.mark.parametrize("values", [{}, EXTERNAL], ids=["bundled", "external"])
def test_what_the_parts_need_is_allowed(values: dict[str, Any]) -> None:
    network = Network(merged(ON, values, {"view": {"enabled": True}}))
    assert len(network.policies) == len(network.pods)
    blocked = [one for one in _needed(not values) if not network.allows(*one)]
    assert blocked == []


def test_what_nobody_needs_is_not() -> None:
    network = Network(ON)
    for source in ("webhook", "hook", "test", "anybody"):
        assert not network.allows(source, "postgres", 5432), source
    for target in ("hook", "test"):
        assert not network.allows("anybody", target, 8081), target
    for port in (443, 5432, 6443):
        assert not network.allows("webhook", "outside", port), port
        assert not network.allows("postgres", "outside", port), port


def test_metrics_can_be_kept_for_some() -> None:
    network = Network(merged(ON, {"networkPolicy": {"metricsFrom": [{"podSelector": {}}]}}))
    assert not network.allows("anybody", "worker", 8081)
    assert network.allows("API server", "webhook", 8443), "admission is not a scrape"


def test_the_webhook_can_be_kept_for_the_control_plane() -> None:
    """Without the value, any client may connect."""
    assert Network(ON).allows("anybody", "webhook", 8443)
    peers = [{"ipBlock": {"cidr": "10.0.0.0/28"}}]
    network = Network(merged(ON, {"networkPolicy": {"webhookFrom": peers}}))
    assert not network.allows("anybody", "webhook", 8443)


def test_an_external_database_is_reached_at_its_port() -> None:
    port = {"externalDatabase": {"port": 6432}}
    assert Network(merged(ON, EXTERNAL, port)).allows("worker", "database", 6432)
    assert not Network(merged(ON, EXTERNAL)).allows("worker", "database", 6432)


def test_openshift_answers_names_behind_another_port() -> None:
    assert Network(merged(ON, {"openshift": "yes"})).allows("worker", "name server", 5353, "UDP")
    assert not Network(ON).allows("worker", "name server", 5353, "UDP")
