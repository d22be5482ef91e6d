"""Readers of objects that others write: one that cannot be read changes nothing of the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fluxqueue.clock import ManualClock
from fluxqueue.controller.observing.dirty_set import DirtySet
from fluxqueue.controller.observing.owners import Owners
from fluxqueue.controller.observing.pod_groups import PodGroups
from fluxqueue.controller.observing.quarantine import Quarantine
from fluxqueue.controller.observing.watches import Watches
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import ClusterConfig
from fluxqueue.kube.informer import Informer
from fluxqueue.kube.resources import PODS
from fluxqueue.workload.owner_kinds import OwnerKind, OwnerKinds, PodsOf

Obj = dict[str, Any]
NOWHERE = ClusterConfig("http://127.0.0.1:9")


def _group(name: str, spec: Obj) -> Obj:
    return {"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"}, "spec": spec}


HOSTILE_GROUPS: list[Obj] = [
    {"podGroups": [7]},
    {"podGroups": [{"policy": {"gang": 3}}]},
    {"schedulingPolicy": "all"},
    {"schedulingPolicy": {"gang": {"minCount": 2}}, "schedulingConstraints": ["x"]},
    {"podGroups": [{"policy": {"gang": {"minCount": 2}}}]},
]


@pytest.mark.parametrize("spec", HOSTILE_GROUPS)
def test_a_pod_group_that_cannot_be_read(spec: Obj) -> None:
    """The informer gets an exception. What it said before goes on counting."""
    told: list[tuple[str, str]] = []
    client: Any = None
    groups = PodGroups(client, ManualClock(), lambda *at: told.append(at))
    good = _group("g", {"minMember": 4})
    groups._changed(None, good)
    bad = _group("g", spec)
    with pytest.raises((TypeError, ValueError, AttributeError, KeyError)):
        groups._changed(good, bad)
    declared = groups.find("ns", "g")
    assert declared is not None
    assert declared.minimum == 4
    groups._changed(bad, _group("g", {"minMember": 5}))
    declared = groups.find("ns", "g")
    assert declared is not None
    assert declared.minimum == 5
    groups._changed(_group("g", {"minMember": 5}), None)
    assert groups.find("ns", "g") is None


class OneOwner(KubeClient):
    """Serves one kind, and whatever is asked for of it."""

    answer: Obj

    async def request(self, method: str, path: str, **_: Any) -> Obj:
        served = [{"kind": "Trainer", "name": "trainers", "namespaced": True}]
        return {"resources": served}

    async def get(self, *_: Any, **__: Any) -> Obj:
        return self.answer


@pytest.mark.parametrize("answer", [{}, {"metadata": 7}, {"metadata": {"uid": "o"}, "spec": 1}])
async def test_an_owner_that_cannot_be_read_is_the_topmost(answer: Obj) -> None:
    """Its pods do not wait for ever."""
    found: list[str] = []
    told: list[str] = []
    entry = OwnerKind("Trainer", "x.io", "trainers", (PodsOf("spec.*", ("count",)),))
    async with OneOwner(NOWHERE) as client:
        client.answer = answer
        owners = Owners(
            client,
            ManualClock(),
            OwnerKinds([entry]),
            find=lambda uid: None,
            on_found=found.append,
            on_trouble=lambda owner, namespace, error: told.append(owner["uid"]),
        )
        reference = {
            "apiVersion": "x.io/v1",
            "kind": "Trainer",
            "name": "t",
            "uid": "o",
            "controller": True,
        }
        meta = {"uid": "p", "namespace": "ns", "ownerReferences": [reference]}
        pod = {"metadata": meta}
        assert owners.top(pod) is None
        await asyncio.wait_for(owners.settle(), 10)
        assert found == ["p"]
        top = owners.top(pod)
        assert top is not None
        assert top.uid == "o"
        assert told in ([], ["o"])


async def test_a_priority_class_without_a_number() -> None:
    """It counts as if it were not there. The others have their values."""
    async with KubeClient(NOWHERE) as client:
        clock = ManualClock()
        begin: Any = None
        quarantine = Quarantine(client, clock, begin)
        marking: Any = _Marking(DirtySet(clock))
        watches = Watches(
            client, clock, OwnerKinds(), marking, quarantine=quarantine, default_queue={}
        )
        for name, value in (("high", 9), ("odd", "nine"), ("none", None), ("low", 1)):
            one = {"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "value": value}
            watches._classes._upsert(("", name), one)
        assert watches.class_values() == {"high": 9, "low": 1}
        assert ("priority class", "odd") in quarantine
        watches._classes._upsert(
            ("", "odd"), {"metadata": {"name": "odd", "uid": "odd"}, "value": 5}
        )
        assert watches.class_values()["odd"] == 5
        assert ("priority class", "odd") not in quarantine


class _Marking:
    """Nothing is marked."""

    def __init__(self, marks: DirtySet) -> None:
        self.marks = marks

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.mark.parametrize(
    "error", [ValueError, RecursionError, OverflowError, KeyError, TimeoutError]
)
async def test_an_informer_keeps_what_it_cannot_read_any_more(error: type[Exception]) -> None:
    """It is not gone: its version moves on, and its deletion. One never read is left out."""
    told: list[tuple[str, bool]] = []

    def transform(raw: Any) -> Any:
        if raw["spec"].get("bad"):
            raise error("x")
        return raw

    seen: list[tuple[Any, Any]] = []
    async with KubeClient(NOWHERE) as client:
        informer = Informer(
            client,
            PODS,
            transform=transform,
            on_change=lambda old, new: seen.append((old, new)),
            on_trouble=lambda _, obj, trouble: told.append(
                (obj["metadata"]["name"], trouble is not None)
            ),
        )
        good = _pod("a", "1", {"x": 1})
        assert informer._keep(good) == good
        informer._upsert(("ns", "a"), good)
        spoilt = {**_pod("a", "2", {"bad": True})}
        spoilt["metadata"]["deletionTimestamp"] = "now"
        kept = informer._keep(spoilt)
        assert kept is not None
        assert (kept["spec"], kept["metadata"]["resourceVersion"]) == ({"x": 1}, "2")
        assert kept["metadata"]["deletionTimestamp"] == "now"
        assert informer._keep(_pod("b", "3", {"bad": True})) is None
        assert informer._keep(_pod("a", "4", {"x": 2})) == _pod("a", "4", {"x": 2})
        assert told == [("a", True), ("b", True), ("a", False)]
        assert len(seen) == 1


def _pod(name: str, version: str, spec: Obj) -> Obj:
    meta = {"name": name, "namespace": "ns", "uid": f"u-{name}", "resourceVersion": version}
    return {"metadata": meta, "spec": spec}
