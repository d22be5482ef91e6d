"""Node constraints of a pod spec, and the list of what the matcher leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import NodeRequirement, Operator, Taint, Toleration
from fluxqueue.jobspec import Constraint, NodeDemand
from fluxqueue.workload.constraints import ignored, read_demand
from fluxqueue.workload.pod_bounds import KEY, PodBounds

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def _required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def _admits(demand: NodeDemand, labels: dict[str, str], *taints: Taint, name: str = "n") -> bool:
    return demand.admits(NodeFact(name, "u", {}, labels, taints))


def _expressions(*requirements: NodeRequirement) -> Constraint:
    return Constraint("fluxqueue/matchExpressions", requirements=requirements)


def test_no_demands() -> None:
    assert read_demand({}) == NodeDemand()
    nulls = {"nodeSelector": None, "affinity": None, "tolerations": None}
    assert read_demand(nulls) == NodeDemand()


def test_reads_selector_terms_fields_and_tolerations() -> None:
    spec = {
        "nodeSelector": {"disk": "ssd", "arch": "arm64"},
        "tolerations": [
            {"operator": "Exists"},
            {"key": "gpu", "value": "a", "effect": "NoExecute"},
        ],
        **_required(
            {
                "matchExpressions": [
                    {"key": "zone", "operator": "In", "values": ["a", "b"]},
                    {"key": "gen", "operator": "Gt", "values": ["3"]},
                ],
                "matchFields": [
                    {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}
                ],
            },
            {"matchExpressions": [{"key": "fast", "operator": "Exists"}]},
        ),
    }  # fmt: skip
    selector = _expressions(
        NodeRequirement("arch", Operator.IN, ("arm64",)),
        NodeRequirement("disk", Operator.IN, ("ssd",)),
    )
    first = _expressions(
        NodeRequirement("zone", Operator.IN, ("a", "b")),
        NodeRequirement("gen", Operator.GT, ("3",)),
        NodeRequirement("metadata.name", Operator.NOT_IN, ("n1",)),
    )
    second = _expressions(NodeRequirement("fast", Operator.EXISTS))
    either = Constraint("or", operands=(first, second))
    assert read_demand(spec) == NodeDemand(
        Constraint("and", operands=(selector, either)),
        tolerations=(Toleration(operator="Exists"), Toleration("gpu", "Equal", "a", "NoExecute")),
    )


def test_selector_terms_and_taints_decide_together() -> None:
    """Every pair of the selector, one of the terms, every taint that repels."""
    spec = {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        **_required(
            {"matchExpressions": [{"key": "gen", "operator": "Gt", "values": ["3"]}]},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
        ),
    }
    demand = read_demand(spec)
    assert _admits(demand, {"disk": "ssd", "gen": "4"})
    assert _admits(demand, {"disk": "ssd"}, name="n1")
    assert not _admits(demand, {"disk": "ssd", "gen": "3"})
    assert not _admits(demand, {"gen": "4"})
    assert _admits(demand, {"disk": "ssd", "gen": "4"}, Taint("gpu"))
    assert not _admits(demand, {"disk": "ssd", "gen": "4"}, Taint("gpu"), Taint("other"))
    assert _admits(demand, {"disk": "ssd", "gen": "4"}, Taint("soft", effect="PreferNoSchedule"))


@pytest.mark.parametrize("operator", list(Operator))
def test_knows_all_six_operators(operator: Operator) -> None:
    term = {"matchExpressions": [{"key": "k", "operator": str(operator), "values": ["1"]}]}
    constraint = read_demand(_required(term)).constraint
    assert constraint is not None
    assert constraint.requirements[0].operator is operator


def test_an_empty_term_meets_no_node() -> None:
    """Kubernetes: an empty node selector term matches no objects, not all."""
    assert not _admits(read_demand(_required({})), {})
    beside = read_demand(_required({}, {"matchExpressions": [{"key": "a", "operator": "Exists"}]}))
    assert _admits(beside, {"a": "1"})
    assert not _admits(beside, {"b": "1"})


def test_an_unknown_operator_is_refused_with_its_path() -> None:
    term = {"matchExpressions": [{"key": "k", "operator": "Like"}]}
    with pytest.raises(InvalidInput) as caught:
        read_demand(_required(term), where="spec.template.spec")
    assert caught.value.where.endswith("Execution[0].matchExpressions[0].operator")
    assert "DoesNotExist" in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 1}]}}}, "preferred node affinity"),
        (
            {"affinity": {"podAffinity": {PREFERRED: [{"weight": 1}]}}},
            "preferred pod affinity",
        ),
        (
            {"affinity": {"podAntiAffinity": {PREFERRED: [{"weight": 1}], REQUIRED: [{}]}}},
            "preferred pod anti-affinity",
        ),
        (
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
            "preferred topology spread",
        ),
        ({KEY: PodBounds(left=("host ports",))}, "host ports"),
    ],
)
def test_names_what_is_not_considered(spec: dict[str, Any], name: str) -> None:
    assert ignored(spec) == [name]


def test_what_is_considered_or_harmless_is_not_named() -> None:
    spec = {
        "nodeSelector": {"a": "b"},
        "volumes": [{"name": "v", "emptyDir": {}}],
        "containers": [{"ports": [{"containerPort": 80}, {"hostPort": 81}]}],
        # Judged by the controller, which says what it leaves.
        "topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}],
        **_required({"matchExpressions": [{"key": "a", "operator": "Exists"}]}),
    }
    assert ignored(spec) == []
