"""Server-side apply: field sets, merging, pruning, ownership."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster.obj import Obj
from localcluster.server.apply import merge, prune
from localcluster.server.fieldsets import (
    Difference,
    created_fields,
    decode,
    encode,
    fields_of,
    path_text,
    without_system,
)
from localcluster.server.managed_fields import Manager, Managers, Owned, taken_over
from localcluster.types.table import builtin_node

DEPLOYMENT = builtin_node("Deployment")
CONFIG_MAP = builtin_node("ConfigMap")


def deployment(*containers: Obj) -> Obj:
    """A Deployment with these containers."""
    return {"metadata": {"name": "d"}, "spec": {"template": {"spec": {"containers": containers}}}}


def with_containers(*containers: Obj) -> Obj:
    """The same, containers as a list."""
    return deployment(*containers) | {
        "spec": {"template": {"spec": {"containers": list(containers)}}}
    }


def test_fields_of_lists_with_keys_as_recorded() -> None:
    """``apply-merge-keys``: containers, env and ports are owned element by element."""
    obj = with_containers(
        {
            "name": "one",
            "image": "i:1",
            "env": [{"name": "A", "value": "1"}],
            "ports": [{"containerPort": 80}],
        }
    )
    obj["spec"]["template"]["spec"]["tolerations"] = [{"key": "t1", "operator": "Exists"}]
    obj["spec"]["selector"] = {"matchLabels": {"x": "y"}}
    assert encode(without_system(fields_of(obj, DEPLOYMENT))) == {
        "f:spec": {
            "f:selector": {},
            "f:template": {
                "f:spec": {
                    "f:containers": {
                        'k:{"name":"one"}': {
                            ".": {},
                            "f:env": {'k:{"name":"A"}': {".": {}, "f:name": {}, "f:value": {}}},
                            "f:image": {},
                            "f:name": {},
                            "f:ports": {
                                'k:{"containerPort":80,"protocol":"TCP"}': {
                                    ".": {},
                                    "f:containerPort": {},
                                }
                            },
                        }
                    },
                    "f:tolerations": {},
                }
            },
        }
    }


def test_a_creator_owns_containers_that_were_not_there() -> None:
    """``apply-after-update``: labels have a dot, spec and containers have none."""
    obj = with_containers({"name": "main", "image": "i"})
    obj["metadata"]["labels"] = {"a": "1"}
    shown = encode(created_fields(obj, DEPLOYMENT, is_custom=False))
    assert shown["f:metadata"] == {"f:labels": {".": {}, "f:a": {}}}
    assert "." not in shown["f:spec"]
    containers = shown["f:spec"]["f:template"]["f:spec"]["f:containers"]
    assert containers == {'k:{"name":"main"}': {".": {}, "f:image": {}, "f:name": {}}}


def test_path_text_as_in_conflict_messages() -> None:
    """``.spec.template.spec.containers[name="one"].env[name="A"].value``."""
    path = ("f:spec", "f:containers", 'k:{"name":"one"}', "f:env", 'k:{"name":"A"}', "f:value")
    assert path_text(path) == '.spec.containers[name="one"].env[name="A"].value'
    assert path_text(("f:finalizers", 'v:"x"')) == '.finalizers[="x"]'


paths = st.lists(st.sampled_from(["f:a", "f:b", 'k:{"n":"x"}', 'v:"y"']), min_size=1, max_size=4)


@given(st.frozensets(paths.map(tuple), max_size=8))
def test_fields_v1_round_trip(fields: frozenset[tuple[str, ...]]) -> None:
    """What is written to managedFields is read back as the same set."""
    assert decode(encode(fields)) == fields


def test_merge_puts_elements_where_they_belong() -> None:
    """Elements only in the object keep their place. New ones follow, or stand as applied."""
    live = with_containers({"name": "one", "image": "i:1"})
    config = with_containers({"name": "side", "image": "s:1"}, {"name": "one", "image": "i:2"})
    merged = merge(live, config, DEPLOYMENT)["spec"]["template"]["spec"]["containers"]
    assert [(c["name"], c["image"]) for c in merged] == [("side", "s:1"), ("one", "i:2")]
    alone = with_containers({"name": "new", "image": "n"})
    merged = merge(live, alone, DEPLOYMENT)["spec"]["template"]["spec"]["containers"]
    assert [c["name"] for c in merged] == ["one", "new"]


def test_prune_removes_what_was_given_up_with_its_defaults() -> None:
    """An element that a manager leaves out goes, also fields of it without an owner."""
    live = with_containers(
        {"name": "one", "image": "i:1"},
        {"name": "side", "image": "s:1", "terminationMessagePath": "/dev/termination-log"},
    )
    last = fields_of(with_containers({"name": "side", "image": "s:1"}), DEPLOYMENT)
    owned = fields_of(with_containers({"name": "one", "image": "i:1"}), DEPLOYMENT)
    pruned = prune(live, DEPLOYMENT, last, owned)
    assert [c["name"] for c in pruned["spec"]["template"]["spec"]["containers"]] == ["one"]


def test_prune_keeps_what_others_own() -> None:
    """A field that two managers own survives when one gives it up."""
    live = {"data": {"x": "1", "y": "1"}}
    last = fields_of(live, CONFIG_MAP)
    owned = fields_of({"data": {"x": "1"}}, CONFIG_MAP)
    assert prune(live, CONFIG_MAP, last, owned) == {"data": {"x": "1"}}


def test_difference_of_lists_with_keys() -> None:
    """Only the changed field of the one element counts. Order does not."""
    old = with_containers({"name": "a", "image": "1"}, {"name": "b", "image": "1"})
    new = with_containers({"name": "b", "image": "2"}, {"name": "a", "image": "1"})
    found = Difference()
    found.compare(old, new, DEPLOYMENT)
    assert {path_text(p) for p in found.changed} == {
        '.spec.template.spec.containers[name="b"].image'
    }
    assert not found.removed


ALICE, BOB = Manager("Apply", "alice", "v1"), Manager("Update", "bob", "v1")
X, Y = ("f:data", "f:x"), ("f:data", "f:y")


def test_an_update_takes_fields_over_without_asking() -> None:
    """Changed fields move to the writer, removed ones leave all owners."""
    known: Managers = {ALICE: Owned(frozenset({X, Y}), "t0")}
    after = taken_over(known, BOB, "t1", frozenset({X}), frozenset({Y}))
    assert after == {BOB: Owned(frozenset({X}), "t1")}


@pytest.mark.parametrize("is_known", [True, False])
def test_an_update_without_effect_changes_no_owner(is_known: bool) -> None:
    """No change, no new manager, no new time."""
    known: Managers = {ALICE: Owned(frozenset({X}), "t0")}
    if is_known:
        known[BOB] = Owned(frozenset({Y}), "t0")
    assert taken_over(known, BOB, "t1", frozenset(), frozenset()) == known
