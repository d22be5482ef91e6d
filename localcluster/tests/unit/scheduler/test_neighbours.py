"""What pods on nodes mean for another pod."""

from __future__ import annotations

from typing import Any

import pytest

from localcluster.obj import Obj
from localcluster.scheduler.neighbours import (
    AFFINITY_REASON,
    ANTI_REASON,
    EXISTING_REASON,
    PORT_REASON,
    SPREAD_LABEL_REASON,
    SPREAD_REASON,
    Neighbours,
    Place,
    neighbour_of,
)

HOST, ZONE = "host", "zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PLACES = {
    "a": Place("a", {HOST: "a", ZONE: "1"}),
    "b": Place("b", {HOST: "b", ZONE: "1"}),
    "c": Place("c", {HOST: "c", ZONE: "2"}),
    "d": Place("d", {HOST: "d"}),
}


def pod(app: str = "x", namespace: str = "ns", **spec: Any) -> Obj:
    """A pod with a label."""
    return {"metadata": {"namespace": namespace, "labels": {"app": app}}, "spec": spec}


def term(key: str, app: str = "x", **more: Any) -> Obj:
    """A term about pods with a label."""
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **more}


def affinity(*terms: Obj) -> Obj:
    """Required affinity."""
    return {"affinity": {"podAffinity": {REQUIRED: list(terms)}}}


def anti(*terms: Obj) -> Obj:
    """Required anti-affinity."""
    return {"affinity": {"podAntiAffinity": {REQUIRED: list(terms)}}}


def spread(key: str, skew: int = 1, **more: Any) -> Obj:
    """A spread constraint that must hold."""
    one = {"maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule", **term(key), **more}
    return {"topologySpreadConstraints": [one]}


def ports(number: int, **more: Any) -> Obj:
    """A container with a host port."""
    return {"containers": [{"ports": [{"hostPort": number, "containerPort": 1, **more}]}]}


def answers(tried: Obj, *there: tuple[str, Obj], places: dict[str, Place] | None = None) -> Obj:
    """The reasons of each node that refuses a pod, with these pods on nodes."""
    neighbours = Neighbours()
    for number, (node, one) in enumerate(there):
        neighbours.add(str(number), node, neighbour_of(one))
    known = places or PLACES
    view = neighbours.view(neighbour_of(tried), lambda: known)
    if view is None:
        return {}
    found = {name: view.why_not(name) for name in known}
    return {name: reasons[0] for name, reasons in found.items() if reasons}


def test_a_pod_without_rules_is_refused_only_by_those_of_others() -> None:
    """Anti-affinity is symmetric."""
    assert answers(pod(), ("a", pod())) == {}
    expected = {"a": EXISTING_REASON, "b": EXISTING_REASON}
    assert answers(pod(), ("a", pod("y", **anti(term(ZONE))))) == expected
    assert answers(pod(), ("d", pod("y", **anti(term(ZONE))))) == {}
    assert answers(pod(namespace="other"), ("a", pod("y", **anti(term(ZONE))))) == {}


@pytest.mark.parametrize(
    ("rule", "there", "refused"),
    [
        (term(HOST), [("a", pod())], "a"),
        (term(ZONE), [("a", pod())], "ab"),
        (term(ZONE), [("a", pod("other"))], ""),
        (term(ZONE), [("a", pod(namespace="other"))], ""),
        (term(ZONE, namespaces=["other"]), [("a", pod(namespace="other"))], "ab"),
        (term(ZONE, namespaceSelector={}), [("a", pod(namespace="other"))], "ab"),
        (term(HOST, "y", mismatchLabelKeys=["app"]), [("a", pod("y"))], "a"),
        (term(HOST, mismatchLabelKeys=["app"]), [("a", pod())], ""),
    ],
)
def test_anti_affinity(rule: Obj, there: list[tuple[str, Obj]], refused: str) -> None:
    assert answers(pod(**anti(rule)), *there) == dict.fromkeys(refused, ANTI_REASON)


def test_affinity_wants_company_and_the_first_of_a_series_has_none() -> None:
    """Nodes without the label are no place."""
    assert answers(pod(**affinity(term(ZONE)))) == {"d": AFFINITY_REASON}
    found = answers(pod(**affinity(term(ZONE))), ("c", pod()))
    assert found == dict.fromkeys("abd", AFFINITY_REASON)
    others = answers(pod(**affinity(term(ZONE, "y"))))
    assert others == dict.fromkeys("abcd", AFFINITY_REASON)


def test_spread() -> None:
    """Each domain that counts is compared with the emptiest one."""
    assert answers(pod(**spread(ZONE)), ("a", pod())) == {
        "a": SPREAD_REASON,
        "b": SPREAD_REASON,
        "d": SPREAD_LABEL_REASON,
    }
    assert answers(pod(**spread(ZONE)), ("a", pod()), ("c", pod())) == {"d": SPREAD_LABEL_REASON}
    assert answers(pod(**spread(ZONE, 2)), ("a", pod())) == {"d": SPREAD_LABEL_REASON}
    found = answers(pod(**spread(ZONE, minDomains=3)), ("a", pod()), ("c", pod()))
    assert found == {**dict.fromkeys("abc", SPREAD_REASON), "d": SPREAD_LABEL_REASON}


def test_a_pod_that_names_its_node_has_one_domain() -> None:
    """Other nodes do not match its selector, so its own is the emptiest one."""
    places = {name: Place(name, one.labels, name == "a") for name, one in PLACES.items()}
    assert "a" not in answers(pod(**spread(HOST)), ("a", pod()), places=places)
    ignoring = pod(**spread(HOST, nodeAffinityPolicy="Ignore"))
    assert answers(ignoring, ("a", pod()), places=places)["a"] == SPREAD_REASON


@pytest.mark.parametrize(
    ("mine", "theirs", "is_refused"),
    [
        (ports(80), ports(80), True),
        (ports(80), ports(81), False),
        (ports(80, protocol="UDP"), ports(80), False),
        (ports(80, hostIP="10.0.0.1"), ports(80), True),
        (ports(80, hostIP="10.0.0.1"), ports(80, hostIP="10.0.0.2"), False),
    ],
)
def test_ports(mine: Obj, theirs: Obj, is_refused: bool) -> None:
    expected = {"a": PORT_REASON} if is_refused else {}
    assert answers(pod(**mine), ("a", pod(**theirs))) == expected


def test_pods_that_are_gone_do_not_count() -> None:
    neighbours = Neighbours()
    neighbours.add("1", "a", neighbour_of(pod(**ports(80), **anti(term(HOST)))))
    neighbours.remove("1")
    neighbours.remove("1")
    assert not neighbours.have_anti
    view = neighbours.view(neighbour_of(pod(**ports(80))), lambda: PLACES)
    assert view is not None
    assert view.why_not("a") == []
