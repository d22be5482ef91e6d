"""What pods on nodes mean for another pod: affinity, anti-affinity, spread and host ports. Pure.

It follows the plugins InterPodAffinity, PodTopologySpread and NodePorts of the default scheduler.
``decision`` asks a ``View`` about each node. A view is made once for each pod that is tried.

Known difference: a selector of namespaces counts only if it is empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from localcluster.obj import Obj
from localcluster.types.label_match import match_label_selector

PORT_REASON = "node(s) didn't have free ports for the requested pod ports"
SPREAD_REASON = "node(s) didn't match pod topology spread constraints"
SPREAD_LABEL_REASON = f"{SPREAD_REASON} (missing required label)"
AFFINITY_REASON = "node(s) didn't match pod affinity rules"
ANTI_REASON = "node(s) didn't match pod anti-affinity rules"
EXISTING_REASON = "node(s) didn't satisfy existing pods anti-affinity rules"

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - a wildcard of the API

Port = tuple[str, str, int]
"""Address, protocol, number."""


@dataclass(frozen=True, slots=True)
class Term:
    """A required term, completed with the labels of its own pod."""

    key: str
    selector: Obj | None
    namespaces: frozenset[str] | None

    def selects(self, other: Neighbour) -> bool:
        """Return whether the term is about that pod. Without namespaces it is about all."""
        if self.namespaces is not None and other.namespace not in self.namespaces:
            return False
        return self.selector is not None and match_label_selector(self.selector, other.labels)


@dataclass(frozen=True, slots=True)
class Spread:
    """A spread constraint that must hold."""

    key: str
    skew: int
    least_domains: int
    selector: Obj
    honors_affinity: bool
    honors_taints: bool


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A pod as other pods see it, and as it sees them."""

    namespace: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    affinity: tuple[Term, ...] = ()
    anti: tuple[Term, ...] = ()
    spread: tuple[Spread, ...] = ()
    ports: frozenset[Port] = frozenset()

    @property
    def is_bound_by_others(self) -> bool:
        """Return whether pods on nodes can refuse it there."""
        return bool(self.affinity or self.anti or self.spread or self.ports)


def neighbour_of(pod: Obj) -> Neighbour:
    """Return what matters of a pod."""
    meta, spec = pod["metadata"], pod["spec"]
    namespace, labels = meta.get("namespace", ""), meta.get("labels") or {}
    affinity = spec.get("affinity") or {}

    def terms(name: str) -> tuple[Term, ...]:
        found = (affinity.get(name) or {}).get(_REQUIRED) or ()
        return tuple(_term(one, namespace, labels) for one in found)

    return Neighbour(
        namespace,
        labels,
        terms("podAffinity"),
        terms("podAntiAffinity"),
        tuple(_spreads(spec, labels)),
        frozenset(_ports(spec)),
    )


def _term(term: Obj, namespace: str, labels: Mapping[str, str]) -> Term:
    named = frozenset(term.get("namespaces") or ())
    of_all = term.get("namespaceSelector")
    is_all = of_all is not None and not any(of_all.values())
    own = frozenset({namespace}) if of_all is None and not named else named
    selector = _completed(
        term.get("labelSelector"),
        labels,
        term.get("matchLabelKeys") or (),
        term.get("mismatchLabelKeys") or (),
    )
    return Term(term["topologyKey"], selector, None if is_all else own)


def _completed(
    selector: Obj | None,
    labels: Mapping[str, str],
    keys: Iterable[str],
    others: Iterable[str] = (),
) -> Obj | None:
    if selector is None:
        return None
    more = [
        {"key": key, "operator": operator, "values": [labels[key]]}
        for operator, names in (("In", keys), ("NotIn", others))
        for key in names
        if key in labels
    ]
    return {
        **selector,
        "matchExpressions": [*(selector.get("matchExpressions") or ()), *more],
    }


def _spreads(spec: Obj, labels: Mapping[str, str]) -> Iterable[Spread]:
    for one in spec.get("topologySpreadConstraints") or ():
        if one.get("whenUnsatisfiable") == "DoNotSchedule":
            keys = one.get("matchLabelKeys") or ()
            nobody = {"matchExpressions": [{"key": "", "operator": "Exists"}]}
            yield Spread(
                one["topologyKey"],
                int(one.get("maxSkew") or 1),
                int(one.get("minDomains") or 1),
                _completed(one.get("labelSelector"), labels, keys) or nobody,
                one.get("nodeAffinityPolicy", "Honor") == "Honor",
                one.get("nodeTaintsPolicy", "Ignore") == "Honor",
            )


def _ports(spec: Obj) -> Iterable[Port]:
    sidecars = (c for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always")
    for container in (*(spec.get("containers") or ()), *sidecars):
        for port in container.get("ports") or ():
            if port.get("hostPort"):
                address = port.get("hostIP") or _ANY_ADDRESS
                yield address, port.get("protocol") or "TCP", int(port["hostPort"])


@dataclass(frozen=True, slots=True)
class Place:
    """A node as a view needs it. The two tests are those of the pod that is tried."""

    name: str
    labels: Mapping[str, str]
    fits_affinity: bool = True
    is_tolerated: bool = True


class Neighbours:
    """The pods on all nodes."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, Neighbour]] = {}
        self._with_anti: dict[str, tuple[str, Neighbour]] = {}
        self._ports: dict[str, Counter[Port]] = {}

    @property
    def have_anti(self) -> bool:
        """Return whether a pod on a node can keep others away."""
        return bool(self._with_anti)

    def add(self, uid: str, node: str, pod: Neighbour) -> None:
        """Add a pod that was bound to a node."""
        self._pods[uid] = node, pod
        if pod.anti:
            self._with_anti[uid] = node, pod
        if pod.ports:
            self._ports.setdefault(node, Counter()).update(pod.ports)

    def remove(self, uid: str) -> None:
        """Remove a pod. Harmless if it is not known."""
        node, pod = self._pods.pop(uid, ("", Neighbour()))
        self._with_anti.pop(uid, None)
        if pod.ports:
            self._ports[node].subtract(pod.ports)

    def view(self, pod: Neighbour, places: Callable[[], Mapping[str, Place]]) -> View | None:
        """Return what the pods on nodes mean for ``pod``, or None if they do not matter."""
        if not pod.is_bound_by_others and not self._with_anti:
            return None
        return View(pod, places(), self._pods, self._with_anti, self._ports)


class View:
    """Answers for one pod."""

    def __init__(
        self,
        pod: Neighbour,
        places: Mapping[str, Place],
        pods: Mapping[str, tuple[str, Neighbour]],
        with_anti: Mapping[str, tuple[str, Neighbour]],
        ports: Mapping[str, Counter[Port]],
    ) -> None:
        self._pod, self._places, self._ports = pod, places, ports
        self._refused_by_others = {
            pair
            for node, other in with_anti.values()
            for term in other.anti
            if term.selects(pod) and (pair := self._pair(node, term.key)) is not None
        }
        self._refused: set[tuple[str, str]] = set()
        self._wanted: set[tuple[str, str]] = set()
        counted = pods.values() if pod.affinity or pod.anti else ()
        for node, other in counted:
            self._look(node, other)
        self._counts = [self._count(one, pods) for one in pod.spread]

    def _pair(self, node: str, key: str) -> tuple[str, str] | None:
        place = self._places.get(node)
        return None if place is None or key not in place.labels else (key, place.labels[key])

    def _look(self, node: str, other: Neighbour) -> None:
        for term in self._pod.anti:
            if term.selects(other) and (pair := self._pair(node, term.key)) is not None:
                self._refused.add(pair)
        if self._pod.affinity and all(term.selects(other) for term in self._pod.affinity):
            pairs = (self._pair(node, term.key) for term in self._pod.affinity)
            self._wanted.update(pair for pair in pairs if pair is not None)

    def _count(self, spread: Spread, pods: Mapping[str, tuple[str, Neighbour]]) -> Counter[str]:
        """Return the pods in each domain that counts. Domains without a pod have zero."""
        keys = [one.key for one in self._pod.spread]
        counting = {
            name: place.labels[spread.key]
            for name, place in self._places.items()
            if all(key in place.labels for key in keys)
            and (place.fits_affinity or not spread.honors_affinity)
            and (place.is_tolerated or not spread.honors_taints)
        }
        found = Counter(dict.fromkeys(counting.values(), 0))
        for node, other in pods.values():
            is_same = other.namespace == self._pod.namespace
            if node in counting and is_same and match_label_selector(spread.selector, other.labels):
                found[counting[node]] += 1
        return found

    def why_not(self, node: str) -> list[str]:
        """Return the reasons of the first of these filters that refuses the pod on a node."""
        taken = self._ports.get(node)
        if taken and any(_conflicts(mine, +taken) for mine in self._pod.ports):
            return [PORT_REASON]
        labels = self._places[node].labels
        for spread, counts in zip(self._pod.spread, self._counts, strict=True):
            if spread.key not in labels:
                return [SPREAD_LABEL_REASON]
            if self._is_uneven(spread, counts, labels[spread.key]):
                return [SPREAD_REASON]
        if any(labels.get(key) == value for key, value in self._refused_by_others):
            return [EXISTING_REASON]
        if any(labels.get(key) == value for key, value in self._refused):
            return [ANTI_REASON]
        return [] if self._has_company(labels) else [AFFINITY_REASON]

    def _is_uneven(self, spread: Spread, counts: Counter[str], domain: str) -> bool:
        least = min(counts.values(), default=0) if len(counts) >= spread.least_domains else 0
        itself = match_label_selector(spread.selector, self._pod.labels)
        return counts.get(domain, 0) + itself - least > spread.skew

    def _has_company(self, labels: Mapping[str, str]) -> bool:
        terms = self._pod.affinity
        if any(term.key not in labels for term in terms):
            return False
        if all((term.key, labels[term.key]) in self._wanted for term in terms):
            return True
        # The first of a series may be anywhere.
        return not self._wanted and all(term.selects(self._pod) for term in terms)


def _conflicts(mine: Port, taken: Mapping[Port, int]) -> bool:
    return any(
        mine[1:] == other[1:] and (_ANY_ADDRESS in {mine[0], other[0]} or mine[0] == other[0])
        for other in taken
    )
