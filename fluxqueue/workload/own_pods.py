"""How the pods of one workload bind each other: affinity, anti-affinity, spread and host ports.

``surroundings`` calls it for workloads with equal pods. The rules become the shape of the request
(``pod_bounds.share_out``), which the matcher places exactly. It holds for the workload alone: that
pods of others match the same selectors is left to kube-scheduler. Where a rule has no exact shape
it is left, too. Pure.

Sources: the scheduler plugins InterPodAffinity, PodTopologySpread and NodePorts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fluxqueue.fluxjob.exclusive_use import ANY_ADDRESS
from fluxqueue.fluxjob.levels import Levels
from fluxqueue.jobspec.model import NODE
from fluxqueue.workload import labels
from fluxqueue.workload.objects import Object
from fluxqueue.workload.pod_bounds import (
    AFFINITY,
    ANTI_AFFINITY,
    PORTS,
    SPREAD,
    Rule,
    RuleKind,
    exact_rules,
)

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_OF_EACH_POD = frozenset(
    {
        "batch.kubernetes.io/job-completion-index",
        "apps.kubernetes.io/pod-index",
        "statefulset.kubernetes.io/pod-name",
    }
)
"""Labels that differ from pod to pod, whatever is in the template."""


@dataclass(frozen=True, slots=True)
class Domains:
    """The values of a node label: ``count`` of them.

    ``is_everywhere``: all nodes that the pods may use have the label. ``is_nested``: no value
    occurs in two places of a higher level. The matcher takes these for two places.
    """

    count: int
    is_everywhere: bool
    is_nested: bool = True


class FindDomains(Protocol):
    """Counts the values of a label on the nodes that pods may use.

    ``honors_affinity`` and ``honors_taints`` say by which rules nodes are left out. Other required
    labels of the nodes are ``with_labels``.
    """

    def __call__(
        self,
        key: str,
        *,
        honors_affinity: bool = True,
        honors_taints: bool = True,
        with_labels: Sequence[str] = (),
    ) -> Domains:
        """Return the domains."""
        ...


@dataclass(slots=True)
class Division:
    """The rules of a workload by level with their names, and what cannot be said by them.

    ``labels``: the labels that a node must have, because a rule is about their values.
    """

    rules: dict[str, Rule] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    labels: set[str] = field(default_factory=set)
    is_scattered: bool = False

    def add(self, level: str | None, kind: RuleKind, name: str, domains: int = 0) -> None:
        """Add a rule called ``name``. Without a level it is left, as are two that conflict."""
        if level is None:
            self.leave(name)
            return
        rule, known = Rule(level, kind, domains), self.rules.get(level)
        self.names.append(name)
        # One in each place is even, too.
        is_stricter = kind is RuleKind.APART and known is not None and known.kind is RuleKind.EVEN
        is_looser = kind is RuleKind.EVEN and known is not None and known.kind is RuleKind.APART
        if known is None or is_stricter:
            self.rules[level] = rule
        elif known != rule and not is_looser:
            self.leave(name)

    def leave(self, name: str) -> None:
        """Leave a rule to kube-scheduler."""
        if name not in self.left:
            self.left.append(name)


def divide(pod: Object, count: int, levels: Levels, domains: FindDomains) -> Division:
    """Return the rules for ``count`` equal pods, and what is left.

    Raises
    ------
    Exception
        A part of the pod cannot be read.
    """
    found = Division()
    _read_affinity(pod, found, levels, domains)
    _read_spread(pod, count, found, levels, domains)
    if host_ports(pod.get("spec") or {}):
        found.add(NODE, RuleKind.APART, PORTS)
    order = [*(level.name for level in levels), NODE]
    rules = [found.rules[name] for name in order if name in found.rules]
    exact = exact_rules(rules, count)
    for rule in rules:
        if rule not in exact:
            found.leave(SPREAD if rule.kind is RuleKind.EVEN else AFFINITY)
    found.rules = {rule.level: rule for rule in exact}
    return found


def host_ports(spec: Mapping[str, Any]) -> frozenset[tuple[str, int, str]]:
    """Return protocol, number and address of each port of the node that the pod ``spec`` uses.

    With the network of its node, a pod uses all ports of its containers there.
    """
    key = "containerPort" if spec.get("hostNetwork") else "hostPort"
    # Only containers that run to the end of the pod: kube-scheduler looks at no others.
    sidecars = [
        one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"
    ]
    return frozenset(
        (
            str(port.get("protocol") or "TCP"),
            int(port.get("hostPort") or port.get(key) or 0),
            str(port.get("hostIP") or ANY_ADDRESS),
        )
        for container in (*(spec.get("containers") or ()), *sidecars)
        for port in container.get("ports") or ()
        if port.get("hostPort") or port.get(key)
    )


# --- affinity ------------------------------------------------------------------------------------


def _read_affinity(pod: Object, found: Division, levels: Levels, domains: FindDomains) -> None:
    affinity = (pod.get("spec") or {}).get("affinity") or {}
    for field_name, kind, name in (
        ("podAffinity", RuleKind.TOGETHER, AFFINITY),
        ("podAntiAffinity", RuleKind.APART, ANTI_AFFINITY),
    ):
        for term in (affinity.get(field_name) or {}).get(_REQUIRED) or ():
            if kind is RuleKind.TOGETHER:
                found.labels.add(str(term.get("topologyKey") or ""))
            if not _is_about_itself(term, pod):
                found.leave(name)
                continue
            key = str(term.get("topologyKey") or "")
            there = domains(key)
            # On nodes without the label an anti-affinity permits anything.
            is_exact = there.is_nested and (kind is RuleKind.TOGETHER or there.is_everywhere)
            found.add(level_of(key, levels) if is_exact else None, kind, name)


def _is_about_itself(term: Object, pod: Object) -> bool:
    """Tell whether an affinity term selects the pod itself, whatever is added to its labels."""
    if term.get("mismatchLabelKeys"):
        return False
    namespaces, selector = term.get("namespaces"), term.get("namespaceSelector")
    is_own = namespaces or selector is not None
    is_all = selector is not None and not any(selector.values())
    own = str((pod.get("metadata") or {}).get("namespace") or "")
    if is_own and not is_all and own not in (namespaces or ()):
        return False
    return _selects_equals(term, pod)


def _selects_equals(rule: Object, pod: Object) -> bool:
    """Tell whether a term or a constraint surely selects all pods that are equal to ``pod``.

    ``matchLabelKeys`` can name a label that each pod gets later with a value of its own. Such a
    rule is about each pod alone.
    """
    keys = rule.get("matchLabelKeys") or ()
    return _own_labels(pod).keys() >= set(keys) and selects(rule.get("labelSelector"), pod)


def selects(selector: Object | None, pod: Object) -> bool:
    """Tell whether a label selector surely selects a pod, by the labels that it has by now.

    Controllers and admission add further labels, so an absent label decides nothing.
    """
    if selector is None:
        return False
    own = _own_labels(pod)
    wanted = selector.get("matchLabels") or {}
    if any(own.get(key) != value for key, value in wanted.items()):
        return False
    return all(_holds(one, own) for one in selector.get("matchExpressions") or ())


def _own_labels(pod: Object) -> dict[str, str]:
    """Return the labels that surely all pods equal to ``pod`` have."""
    return {
        key: value
        for key, value in ((pod.get("metadata") or {}).get("labels") or {}).items()
        if key not in _OF_EACH_POD and not key.startswith(labels.PREFIX)
    }


def _holds(expression: Object, own: Mapping[str, str]) -> bool:
    value = own.get(str(expression.get("key")))
    values = expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value is not None and value not in values
        case "Exists":
            return value is not None
    return False


def level_of(key: str, levels: Levels) -> str | None:
    """Return the level with the places of a topology key, or None.

    Other labels of the same level could put a node into another place.
    """
    if key == labels.HOSTNAME:
        return NODE
    return next((level.name for level in levels if level.labels[:1] == (key,)), None)


def levels_above(key: str, levels: Levels) -> Levels:
    """Return the levels above the one of a topology key. A node is found by its name."""
    names = [level.name for level in levels]
    level = level_of(key, levels)
    return levels[: names.index(level)] if level in names else ()


# --- topology spread -----------------------------------------------------------------------------


def _read_spread(
    pod: Object, count: int, found: Division, levels: Levels, domains: FindDomains
) -> None:
    required = [
        one
        for one in (pod.get("spec") or {}).get("topologySpreadConstraints") or ()
        if one.get("whenUnsatisfiable") == "DoNotSchedule"
    ]
    keys = [str(one.get("topologyKey") or "") for one in required]
    found.labels.update(keys)
    for one, key in zip(required, keys, strict=True):
        level = level_of(key, levels)
        if level == NODE:
            found.is_scattered = True
        if not _selects_equals(one, pod):
            found.leave(SPREAD)
            continue
        there = domains(
            key,
            honors_affinity=one.get("nodeAffinityPolicy", "Honor") == "Honor",
            honors_taints=one.get("nodeTaintsPolicy", "Ignore") == "Honor",
            with_labels=keys,
        )
        _add_spread(found, level if there.is_nested else None, one, there.count, count)


def _add_spread(
    found: Division, level: str | None, constraint: Object, domains: int, count: int
) -> None:
    """Add one constraint, if there is only one way to keep it."""
    is_even = int(constraint.get("maxSkew") or 1) == 1
    least = int(constraint.get("minDomains") or 1)
    # A released pod names its node. With less than ``minDomains`` in sight, kube-scheduler counts
    # an empty one, and permits one pod there. So further pods must have a choice of nodes.
    is_seen = constraint.get("nodeAffinityPolicy", "Honor") != "Honor"
    is_short = least > 1 and count > domains and not is_seen
    # More domains may come. Until then it counts an empty one, too.
    is_exact = is_even and domains >= max(1, least) and not is_short
    found.is_scattered |= is_short
    found.add(level if is_exact else None, RuleKind.EVEN, SPREAD, domains)


def concerns(spec: Object) -> bool:
    """Tell whether a pod has any rule that ``divide`` reads."""
    affinity = spec.get("affinity") or {}
    parts: Iterable[Any] = (
        affinity.get("podAffinity"),
        affinity.get("podAntiAffinity"),
        spec.get("topologySpreadConstraints"),
        host_ports(spec),
    )
    return any(parts)
