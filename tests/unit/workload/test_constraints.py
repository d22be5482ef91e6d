"""Node constraints of a pod spec, and the list of what the matcher leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.request import NodeConstraint, NodeRequirement, Operator, Toleration
from fluxqueue.workload.constraints import ignored, read_constraint

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def _required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def _is_met(constraint: NodeConstraint, labels: dict[str, str]) -> bool:
    return any(all(r.is_met_by(labels) for r in term) for term in constraint.terms)


def test_no_demands() -> None:
    assert read_constraint({}) == NodeConstraint()
    nulls = {"nodeSelector": None, "affinity": None, "tolerations": None}
    assert read_constraint(nulls) == NodeConstraint()


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
    assert read_constraint(spec) == NodeConstraint(
        selector=(("arch", "arm64"), ("disk", "ssd")),
        terms=(
            (
                NodeRequirement("zone", Operator.IN, ("a", "b")),
                NodeRequirement("gen", Operator.GT, ("3",)),
                NodeRequirement("metadata.name", Operator.NOT_IN, ("n1",)),
            ),
            (NodeRequirement("fast", Operator.EXISTS),),
        ),
        tolerations=(Toleration(operator="Exists"), Toleration("gpu", "Equal", "a", "NoExecute")),
    )


@pytest.mark.parametrize("operator", list(Operator))
def test_knows_all_six_operators(operator: Operator) -> None:
    term = {"matchExpressions": [{"key": "k", "operator": str(operator), "values": ["1"]}]}
    assert read_constraint(_required(term)).terms[0][0].operator is operator


def test_an_empty_term_meets_no_node() -> None:
    """Kubernetes: an empty node selector term matches no objects, not all."""
    assert not _is_met(read_constraint(_required({})), {"metadata.name": "n"})
    beside = read_constraint(
        _required({}, {"matchExpressions": [{"key": "a", "operator": "Exists"}]})
    )
    assert _is_met(beside, {"a": "1"})
    assert not _is_met(beside, {"b": "1"})


def test_an_unknown_operator_is_refused_with_its_path() -> None:
    term = {"matchExpressions": [{"key": "k", "operator": "Like"}]}
    with pytest.raises(InvalidInput) as caught:
        read_constraint(_required(term), where="spec.template.spec")
    assert caught.value.where.endswith("Execution[0].matchExpressions[0].operator")
    assert "DoesNotExist" in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 1}]}}}, "preferred node affinity"),
        ({"affinity": {"podAffinity": {REQUIRED: [{}]}}}, "pod affinity"),
        ({"affinity": {"podAntiAffinity": {REQUIRED: [{}]}}}, "pod anti-affinity"),
        ({"topologySpreadConstraints": [{}]}, "topology spread constraints"),
        ({"volumes": [{"persistentVolumeClaim": {}}]}, "volumes that are bound to places"),
        ({"volumes": [{"ephemeral": {}}]}, "volumes that are bound to places"),
        ({"containers": [{"ports": [{"hostPort": 80}]}]}, "host ports"),
        ({"resourceClaims": [{"name": "x"}]}, "resource claims"),
        ({"runtimeClassName": "kata"}, "the node selector of the runtime class"),
    ],
)
def test_names_what_is_not_considered(spec: dict[str, Any], name: str) -> None:
    assert ignored(spec) == [name]


def test_what_is_considered_or_harmless_is_not_named() -> None:
    spec = {
        "nodeSelector": {"a": "b"},
        "volumes": [{"name": "v", "emptyDir": {}}],
        "containers": [{"ports": [{"containerPort": 80}]}],
        **_required({"matchExpressions": [{"key": "a", "operator": "Exists"}]}),
    }
    assert ignored(spec) == []
