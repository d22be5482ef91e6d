"""JSON, merge and strategic merge patches against known cases of Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster.obj import Obj
from localcluster.server.patching import apply_json_patch, apply_merge_patch, apply_strategic_patch
from localcluster.types.json_patch import copy_json
from localcluster.types.refusals import StatusError
from localcluster.types.table import builtin_node


def deployment() -> Obj:
    """The object of the recorded scenario ``patch-semantics``."""
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    return {
        "metadata": {"labels": {"a": "1", "b": "2"}, "finalizers": ["example.com/a"]},
        "spec": {
            "template": {
                "spec": {
                    "containers": [
                        {"name": "one", "image": "one:1", "args": ["x", "y"], "env": env},
                        {"name": "two", "image": "two:1"},
                    ],
                    "tolerations": [{"key": "t1", "operator": "Exists"}],
                }
            }
        },
    }


def strategic(patch: Obj) -> Obj:
    """The deployment after a strategic merge patch."""
    return apply_strategic_patch(deployment(), patch, builtin_node("Deployment"))


def pod_spec(patch: Obj) -> Obj:
    """The pod template's spec after a strategic merge patch of it."""
    changed: Obj = strategic({"spec": {"template": {"spec": patch}}})
    spec: Obj = changed["spec"]["template"]["spec"]
    return spec


class TestStrategic:
    """Ports of what the real server was seen to do."""

    def test_lists_are_merged_by_their_key_in_place(self) -> None:
        """An element that is there keeps its place and its other fields."""
        spec = pod_spec({"containers": [{"name": "two", "image": "two:2"}]})
        assert [(c["name"], c["image"]) for c in spec["containers"]] == [
            ("one", "one:1"),
            ("two", "two:2"),
        ]

    def test_a_new_element_comes_first(self) -> None:
        """The real server puts elements that only the patch has in front."""
        spec = pod_spec({"containers": [{"name": "zero", "image": "zero:1"}]})
        assert [c["name"] for c in spec["containers"]] == ["zero", "one", "two"]

    def test_set_element_order(self) -> None:
        """``$setElementOrder`` decides the order of all elements it names."""
        order = [{"name": "two"}, {"name": "zero"}, {"name": "one"}]
        spec = pod_spec(
            {"$setElementOrder/containers": order, "containers": [{"name": "zero", "image": "z"}]}
        )
        assert [c["name"] for c in spec["containers"]] == ["two", "zero", "one"]

    def test_delete_and_nested_merge(self) -> None:
        """Elements go by ``$patch: delete``, new ones come first. Plain lists are replaced."""
        env = [{"name": "B", "$patch": "delete"}, {"name": "C", "value": "3"}]
        spec = pod_spec({"containers": [{"name": "one", "env": env, "args": ["z"]}]})
        one = spec["containers"][0]
        assert one["env"] == [{"name": "C", "value": "3"}, {"name": "A", "value": "1"}]
        assert one["args"] == ["z"]

    def test_replace_of_a_list_and_of_a_map(self) -> None:
        """``$patch: replace`` drops what was there."""
        spec = pod_spec({"containers": [{"$patch": "replace"}, {"name": "n", "image": "i"}]})
        assert spec["containers"] == [{"name": "n", "image": "i"}]
        labels = {"$patch": "replace", "only": "this"}
        assert strategic({"metadata": {"labels": labels}})["metadata"]["labels"] == {"only": "this"}

    def test_atomic_lists_are_replaced(self) -> None:
        """Tolerations have no merge key."""
        fresh = [{"key": "t2", "operator": "Exists"}]
        assert pod_spec({"tolerations": fresh})["tolerations"] == fresh

    def test_sets_of_scalars(self) -> None:
        """Finalizers merge. The new one comes first. ``$deleteFromPrimitiveList`` removes."""
        merged = strategic({"metadata": {"finalizers": ["example.com/b"]}})
        assert merged["metadata"]["finalizers"] == ["example.com/b", "example.com/a"]
        gone = strategic({"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/a"]}})
        assert gone["metadata"]["finalizers"] == []

    def test_null_removes_a_key(self) -> None:
        """Also a key that is not there."""
        labels = {"a": None, "c": "3", "none": None}
        merged = strategic({"metadata": {"labels": labels}})
        assert merged["metadata"]["labels"] == {"b": "2", "c": "3"}

    def test_retain_keys(self) -> None:
        """``$retainKeys`` drops the other fields (strategies of deployments)."""
        obj = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
        patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
        done = apply_strategic_patch(obj, patch, builtin_node("Deployment"))
        assert done == {"spec": {"strategy": {"type": "Recreate"}}}

    @pytest.mark.parametrize(
        ("element", "message"),
        [
            (
                {"image": "no-name"},
                "map: map[image:no-name] does not contain declared merge key: name",
            ),
            (
                {"name": "one", "$patch": "explode"},
                "unknown patch type: explode in map: map[$patch:explode name:one]",
            ),
        ],
    )
    def test_mistakes_are_a_500_without_reason(self, element: Obj, message: str) -> None:
        """As recorded: not a client error."""
        with pytest.raises(StatusError) as caught:
            pod_spec({"containers": [element]})
        assert (caught.value.code, caught.value.reason) == (500, "")
        assert caught.value.message == message

    def test_the_patch_itself_is_not_changed(self) -> None:
        """A patch is applied anew when the object changed under it."""
        patch = {"spec": {"template": {"spec": {"containers": [{"name": "n", "image": "i"}]}}}}
        before = copy_json(patch)
        strategic(patch)
        assert patch == before


class TestJson:
    """RFC 6902 as the real server's library has it."""

    @pytest.mark.parametrize(
        ("operations", "expected"),
        [
            ([{"op": "add", "path": "/m/x", "value": 1}], {"m": {"a/b": "1", "x": 1}, "l": [1, 2]}),
            ([{"op": "add", "path": "/l/-", "value": 3}], {"m": {"a/b": "1"}, "l": [1, 2, 3]}),
            ([{"op": "add", "path": "/l/0", "value": 0}], {"m": {"a/b": "1"}, "l": [0, 1, 2]}),
            ([{"op": "remove", "path": "/l/0"}], {"m": {"a/b": "1"}, "l": [2]}),
            ([{"op": "replace", "path": "/m/a~1b", "value": "2"}],
             {"m": {"a/b": "2"}, "l": [1, 2]}),
            ([{"op": "replace", "path": "/m/new", "value": 1}],
             {"m": {"a/b": "1", "new": 1}, "l": [1, 2]}),
            ([{"op": "test", "path": "/m/none", "value": None}], {"m": {"a/b": "1"}, "l": [1, 2]}),
            ([{"op": "move", "from": "/m/a~1b", "path": "/m/c"}], {"m": {"c": "1"}, "l": [1, 2]}),
            ([{"op": "copy", "from": "/l", "path": "/k"}],
             {"m": {"a/b": "1"}, "l": [1, 2], "k": [1, 2]}),
            ([], {"m": {"a/b": "1"}, "l": [1, 2]}),
        ],
    )  # fmt: skip
    def test_operations(self, operations: list[Obj], expected: Obj) -> None:
        """Each operation. ``replace`` adds, ``test`` of nothing against null holds."""
        assert apply_json_patch({"m": {"a/b": "1"}, "l": [1, 2]}, operations) == expected

    @pytest.mark.parametrize(
        "operation",
        [
            {"op": "test", "path": "/m/a~1b", "value": "2"},
            {"op": "test", "path": "/l/0", "value": True},
            {"op": "remove", "path": "/m/none"},
            {"op": "add", "path": "/none/x", "value": 1},
            {"op": "add", "path": "m/x", "value": 1},
            {"op": "add", "path": "/l/9", "value": 1},
            {"op": "replace", "path": "/l/2", "value": 1},
            {"op": "frobnicate", "path": "/m"},
            {"path": "/m"},
            {"op": "add"},
            {"op": "copy", "path": "/m/x", "from": "/none"},
        ],
    )
    def test_failures_are_one_422(self, operation: Obj) -> None:
        """The causes look alike, as on the real server."""
        with pytest.raises(StatusError) as caught:
            apply_json_patch({"m": {"a/b": "1"}, "l": [1, 2]}, [operation])
        assert (caught.value.code, caught.value.reason) == (422, "Invalid")
        assert caught.value.message == (
            "the server rejected our request due to an error in our request"
        )

    def test_no_list_is_400(self) -> None:
        """An object instead of a list of operations."""
        with pytest.raises(StatusError) as caught:
            apply_json_patch({}, {"op": "add"})
        assert caught.value.code == 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner),
    max_leaves=8,
)
objects = st.dictionaries(st.text("abc", max_size=2), json_values, max_size=4)


def reference_merge(target: Any, patch: Any) -> Any:
    """The pseudo code of RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = reference_merge(result.get(name), value)
    return result


@given(target=objects, patch=objects)
def test_merge_patch_is_rfc_7386(target: Obj, patch: Obj) -> None:
    """Against the RFC's own algorithm."""
    expected = reference_merge(target, patch)
    assert apply_merge_patch(copy_json(target), patch) == expected


@given(target=objects, value=json_values)
def test_json_patch_add_then_remove_restores(target: Obj, value: Any) -> None:
    """What was added under a fresh key can be removed again."""
    added = apply_json_patch(copy_json(target), [{"op": "add", "path": "/fresh", "value": value}])
    assert added["fresh"] == value
    assert apply_json_patch(added, [{"op": "remove", "path": "/fresh"}]) == target
