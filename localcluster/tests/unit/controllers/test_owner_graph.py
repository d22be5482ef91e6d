"""The garbage collector's graph and decisions."""

from __future__ import annotations

from typing import Any

from localcluster.client.resources import CONFIGMAPS, JOBS, PODS, Resource
from localcluster.controllers.owner_graph import (
    FOREGROUND,
    ORPHAN,
    Action,
    Item,
    OwnerGraph,
    OwnerState,
    decide,
    item_of,
)

SOLID, ABSENT, WAITING = OwnerState.SOLID, OwnerState.ABSENT, OwnerState.WAITING


def _item(
    uid: str, *owners: str, resource: Resource = PODS, blocks: bool = False, **m: Any
) -> Item:
    references = [
        {
            "apiVersion": "v1",
            "kind": "X",
            "name": f"name-{o}",
            "uid": o,
            "blockOwnerDeletion": blocks,
        }
        for o in owners
    ]
    metadata = {"namespace": "n", "name": f"name-{uid}", "uid": uid, "ownerReferences": references}
    return item_of(resource, {"metadata": metadata | m})


def _decide(
    item: Item, *states: OwnerState, blocking: bool = False, dependents: bool = False
) -> Action:
    named = dict(zip((o["uid"] for o in item.owners), states, strict=True))
    return decide(item, named, has_blocking=blocking, has_dependents=dependents)


def test_dependents_of_a_removed_owner_are_looked_at() -> None:
    """Also if the dependent was known before its owner."""
    graph = OwnerGraph()
    assert graph.put(_item("pod", "job")) == {"pod"}  # unknown owner
    graph.put(_item("job", resource=JOBS))
    assert graph.put(_item("pod", "job")) == set()
    assert graph.remove("job") == {"pod"}


def test_foreground_deletion_involves_all_dependents() -> None:
    """The owner and its dependents are looked at. A dependent's end wakes the owner."""
    graph = OwnerGraph()
    graph.put(_item("job", resource=JOBS))
    graph.put(_item("pod", "job", blocks=True))
    graph.put(_item("other", "job"))
    deleted = _item("job", resource=JOBS, deletionTimestamp="t", finalizers=[FOREGROUND])
    assert graph.put(deleted) == {"job", "pod", "other"}
    assert [item.uid for item in graph.blocking("job")] == ["pod"]
    assert graph.remove("pod") == {"job"}


def test_letting_go_of_an_owner_wakes_it() -> None:
    """A dependent orphaned by hand no longer blocks."""
    graph = OwnerGraph()
    graph.put(_item("job", resource=JOBS))
    graph.put(_item("pod", "job", blocks=True))
    assert graph.put(_item("pod")) == {"job"}
    assert graph.dependents("job") == set()


def test_owners_in_other_namespaces_do_not_count() -> None:
    """A reference into another namespace is as good as absent."""
    graph = OwnerGraph()
    graph.put(_item("job", resource=JOBS, namespace="elsewhere"))
    pod = _item("pod", "job")
    assert graph.state_of(pod, pod.owners[0]) is ABSENT


def test_another_name_under_the_uid_is_looked_up() -> None:
    """uid and name must agree."""
    graph = OwnerGraph()
    graph.put(_item("job", resource=JOBS, name="renamed"))
    pod = _item("pod", "job")
    assert graph.state_of(pod, pod.owners[0]) is None


def test_decisions_about_dependents() -> None:
    """One solid owner keeps an object. What is lost of several is dropped. Else it goes."""
    one, two = _item("x", "a"), _item("x", "a", "b")
    assert _decide(one, SOLID) is Action.NOTHING
    assert _decide(one, ABSENT) is Action.DELETE_BACKGROUND
    assert _decide(two, ABSENT, SOLID) is Action.DROP_OWNERS
    assert _decide(two, WAITING, SOLID) is Action.DROP_OWNERS
    assert _decide(two, ABSENT, ABSENT) is Action.DELETE_BACKGROUND
    assert _decide(one, WAITING) is Action.DELETE_BACKGROUND
    assert _decide(one, WAITING, dependents=True) is Action.DELETE_FOREGROUND
    assert _decide(_item("x", "a", finalizers=[ORPHAN]), ABSENT) is Action.DELETE_ORPHAN
    assert _decide(_item("x"), dependents=True) is Action.NOTHING


def test_decisions_about_deleted_owners() -> None:
    """Foreground waits for what blocks. Orphaning keeps the dependents. The rest is not ours."""
    foreground = _item(
        "x", "a", deletionTimestamp="t", finalizers=[FOREGROUND], resource=CONFIGMAPS
    )
    assert decide(foreground, {}, has_blocking=True, has_dependents=True) is Action.NOTHING
    assert (
        decide(foreground, {}, has_blocking=False, has_dependents=True) is Action.FINISH_FOREGROUND
    )
    orphan = _item("x", deletionTimestamp="t", finalizers=[ORPHAN])
    assert decide(orphan, {}, has_blocking=False, has_dependents=True) is Action.ORPHAN_DEPENDENTS
    going = _item("x", "a", deletionTimestamp="t")
    assert _decide(going, ABSENT) is Action.NOTHING
