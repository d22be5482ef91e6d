"""The difference between an object and the wanted object: applied, it makes the wanted one."""

from __future__ import annotations

from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxqueue.errors import InvalidInput
from fluxqueue.workload.json_patch import diff, edited

_KEYS = st.sampled_from(["a", "b/c", "d~e"])
_VALUES = st.recursive(
    st.none() | st.integers(0, 2),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner),
)


@given(st.dictionaries(st.sampled_from("abc"), _VALUES), st.dictionaries(st.just("a"), _VALUES))
def test_the_patch_makes_the_wanted_object(obj: dict[str, Any], wanted: dict[str, Any]) -> None:
    for one, other in ((obj, wanted), (wanted, obj)):
        assert jsonpatch.apply_patch(one, diff(one, other)) == other


def test_an_edit_copies_what_it_changes_alone() -> None:
    obj = {"metadata": {"labels": None}, "spec": {"list": [{"a": 1}, None]}, "rest": {}}
    before = repr(obj)
    made = edited(obj, {("metadata", "labels", "a"): "b", ("spec", "list", 1, "c"): 2})
    assert made == {
        "metadata": {"labels": {"a": "b"}}, "spec": {"list": [{"a": 1}, {"c": 2}]}, "rest": {}
    }  # fmt: skip
    assert (repr(obj), made["rest"] is obj["rest"]) == (before, True)
    assert edited(obj, {("metadata", "labels", "a"): None, ("none", "at", "all"): None}) is obj
    with pytest.raises(InvalidInput, match="is not an object"):
        edited({"spec": "text"}, {("spec", "suspend"): True})
