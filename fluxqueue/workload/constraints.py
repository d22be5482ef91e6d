"""Where a pod may be placed (node selector, required node affinity, tolerations).

``workload.pod_request`` calls it. The module also names what the matcher does not check
(``ignored``). The webhook calls ``ignored``, too, and warns the author.
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
from fluxqueue.workload.pod_bounds import bounds_of

_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_KINDS = (
    ("nodeAffinity", "node affinity"),
    ("podAffinity", "pod affinity"),
    ("podAntiAffinity", "pod anti-affinity"),
)
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
        parts.append(read_node_selector(required, path))
    bounds = bounds_of(spec)
    if bounds is not None:
        parts += bounds.where
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


def read_node_selector(selector: Mapping[str, Any], where: str) -> Constraint:
    """Read a node selector: one of its terms must hold.

    Raises
    ------
    InvalidInput
        An expression has an operator that Kubernetes does not know.
    """
    terms = [_all(term) for term in _terms(selector.get("nodeSelectorTerms") or (), where)]
    return terms[0] if len(terms) == 1 else Constraint("or", operands=tuple(terms))


def has_label(key: str) -> Constraint:
    """Return the constraint that a node has a label."""
    return _all((NodeRequirement(key, Operator.EXISTS, ()),))


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


_PREFERENCE = "preferred "


def is_more_than_preferred(names: Iterable[str]) -> bool:
    """Tell whether some of what ``ignored`` names is required. kube-scheduler checks that."""
    return any(not str(name).startswith(_PREFERENCE) for name in names)


def ignored(spec: Mapping[str, Any]) -> list[str]:
    """Name what in the pod ``spec`` can affect placement and is not checked by the matcher.

    What is required is checked by kube-scheduler when the pod is bound, so a released pod may wait
    there. The FluxJob's condition reports this beforehand. A preference has no effect, because a
    released pod names its node.

    Without ``PodBounds`` only what the matcher never checks is named.
    """
    affinity = spec.get("affinity") or {}
    checks = (
        *(
            (f"{_PREFERENCE}{name}", (affinity.get(key) or {}).get(_PREFERRED))
            for key, name in _KINDS
        ),
        (
            f"{_PREFERENCE}topology spread",
            any(
                one.get("whenUnsatisfiable") == "ScheduleAnyway"
                for one in spec.get("topologySpreadConstraints") or ()
            ),
        ),
    )
    bounds = bounds_of(spec)
    left = () if bounds is None else bounds.left
    return [*(name for name, is_present in checks if is_present), *left]
