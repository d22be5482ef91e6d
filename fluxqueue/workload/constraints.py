"""Where a pod may be placed (node selector, required node affinity, tolerations).

``workload.shape`` calls it. The module also names what the matcher does not check (``ignored``).
The webhook calls ``ignored``, too, and warns the author.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.node import NAME_KEY
from fluxqueue.fluxjob.request import NodeRequirement, Operator, Toleration
from fluxqueue.jobspec.constraint import MATCH_EXPRESSIONS, Constraint, all_of
from fluxqueue.jobspec.demand import NodeDemand
from fluxqueue.workload.numa import read_bundles

_NOTHING = (NodeRequirement(NAME_KEY, Operator.IN, ()),)
"""A term that no node meets. Kubernetes makes it of a selector without any expression."""


def read_demand(spec: Mapping[str, Any], *, where: str = "spec") -> NodeDemand:
    """Read what the pod ``spec`` demands of its node.

    Raises
    ------
    InvalidInput
        A node affinity expression has an operator that Kubernetes does not know, or a quantity
        cannot be read.
    """
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    path = f"{where}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    selector = sorted((spec.get("nodeSelector") or {}).items())
    parts = []
    if selector:
        parts.append(_all(NodeRequirement(key, Operator.IN, (one,)) for key, one in selector))
    if required is not None:
        terms = [_all(term) for term in _terms(required.get("nodeSelectorTerms") or (), path)]
        parts.append(terms[0] if len(terms) == 1 else Constraint("or", operands=tuple(terms)))
    return NodeDemand(
        constraint=all_of(parts),
        tolerations=tuple(
            Toleration(
                key=item.get("key") or "",
                operator=item.get("operator") or "Equal",
                value=item.get("value") or "",
                effect=item.get("effect") or "",
            )
            for item in spec.get("tolerations") or ()
        ),
        numa=read_bundles(spec, where=where),
    )


def _all(requirements: Iterable[NodeRequirement]) -> Constraint:
    return Constraint(MATCH_EXPRESSIONS, requirements=tuple(requirements))


def _terms(
    terms: Sequence[Mapping[str, Any]], where: str
) -> tuple[tuple[NodeRequirement, ...], ...]:
    read = [
        (
            *_expressions(term.get("matchExpressions") or (), f"{where}[{n}].matchExpressions"),
            *_expressions(term.get("matchFields") or (), f"{where}[{n}].matchFields"),
        )
        for n, term in enumerate(terms)
    ]
    # An empty term meets no node. So it can be left out beside others, but not alone.
    return tuple(term for term in read if term) or (_NOTHING,)


def _expressions(
    expressions: Sequence[Mapping[str, Any]], where: str
) -> tuple[NodeRequirement, ...]:
    found = []
    for number, expression in enumerate(expressions):
        try:
            operator = Operator(expression["operator"])
        except ValueError:
            raise InvalidInput(
                f"{expression['operator']!r} is no operator",
                where=f"{where}[{number}].operator",
                value=expression["operator"],
                hint=f"allowed are {', '.join(Operator)}",
            ) from None
        values = tuple(expression.get("values") or ())
        found.append(NodeRequirement(expression["key"], operator, values))
    return tuple(found)


def ignored(spec: Mapping[str, Any]) -> list[str]:
    """Name what in the pod ``spec`` can affect placement and is not checked by the matcher.

    The kube-scheduler still honours all of it when the pod is bound, so a released pod may wait
    there. The FluxJob's condition reports this beforehand.
    """
    affinity = spec.get("affinity") or {}
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    checks = (
        ("preferred node affinity", (affinity.get("nodeAffinity") or {}).get(preferred)),
        ("pod affinity", affinity.get("podAffinity")),
        ("pod anti-affinity", affinity.get("podAntiAffinity")),
        ("topology spread constraints", spec.get("topologySpreadConstraints")),
        (
            "volumes that are bound to places",
            any(
                volume.keys() & {"persistentVolumeClaim", "ephemeral"}
                for volume in spec.get("volumes") or ()
            ),
        ),
        (
            "host ports",
            any(port.get("hostPort") for c in containers for port in c.get("ports") or ()),
        ),
        ("resource claims", spec.get("resourceClaims")),
    )
    return [name for name, is_present in checks if is_present]
