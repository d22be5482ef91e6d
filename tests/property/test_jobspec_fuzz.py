"""Whatever is put into the parsers, they answer with data or with a typed error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxion.formats.grug import read_grug
from fluxion.formats.jgf import parse_jgf, read_jgf
from fluxion.formats.rv1 import read_rv1
from fluxqueue.errors import InvalidGraph, InvalidInput, InvalidJobspec
from fluxqueue.jobspec import Jobspec, idset
from fluxqueue.jobspec.parse import parse_document, parse_jobspec


def says_why(refusal: InvalidInput) -> None:
    """A refusal names a place and a reason, on one line."""
    assert refusal.where
    assert refusal.message
    assert "\n" not in refusal.where


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.integers(), st.floats(),
    st.sampled_from(["slot", "node", "core", "", "+", "*", "^", "0-3", "1", "true"]),
    st.text(max_size=5),
)  # fmt: skip
KEYS = st.sampled_from(
    ["version", "resources", "tasks", "attributes", "type", "count", "with", "label", "exclusive",
     "min", "max", "operator", "operand", "unit", "id", "system", "duration", "constraints", "and",
     "properties", "ranks", "hostlist", "command", "slot", "graph", "nodes", "edges", "metadata",
     "paths", "containment", "source", "target", "execution", "R_lite", "rank", "children",
     "nodelist", "x"]
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=25,
)
VALID: dict[str, Any] = {
    "version": 1,
    "resources": [
        {
            "type": "node",
            "count": {"min": 1, "max": 4, "operator": "+", "operand": 1},
            "with": [
                {
                    "type": "slot",
                    "count": 1,
                    "label": "s",
                    "with": [{"type": "core", "count": 2, "exclusive": True}],
                }
            ],
        }
    ],
    "tasks": [{"command": ["app"], "slot": "s", "count": {"per_slot": 1}}],
    "attributes": {
        "system": {"duration": 10.5, "constraints": {"and": [{"properties": ["fast"]}]}}
    },
}


@settings(max_examples=300, deadline=None)
@given(text=st.one_of(st.text(), st.binary()))
def test_any_text(text: str | bytes) -> None:
    """Arbitrary text and bytes: InvalidJobspec or a jobspec, never another exception."""
    try:
        assert isinstance(parse_jobspec(text), Jobspec)
    except InvalidJobspec as refusal:
        says_why(refusal)


@settings(max_examples=300, deadline=None)
@given(value=values)
def test_any_document(value: Any) -> None:
    """Arbitrary JSON that uses the formats' own words, as jobspec, JGF and R."""
    text = json.dumps(value)
    for read, error in (
        (parse_jobspec, InvalidJobspec),
        (read_jgf, InvalidGraph),
        (parse_jgf, InvalidGraph),
        (read_rv1, InvalidGraph),
    ):
        try:
            read(text)  # type: ignore[operator]
        except error as refusal:
            says_why(refusal)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += _places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += _places(inner, (*path, index))
    return found


@settings(max_examples=300, deadline=None)
@given(place=st.sampled_from(_places(VALID)[1:]), value=values)
def test_one_wrong_value(place: tuple[Any, ...], value: Any) -> None:
    """One place of a good jobspec replaced: data, or InvalidJobspec that says where."""
    document = json.loads(json.dumps(VALID))
    target = document
    for step in place[:-1]:
        target = target[step]
    target[place[-1]] = value
    try:
        parse_document(document)
    except InvalidJobspec as refusal:
        says_why(refusal)


@pytest.mark.parametrize("place", _places(VALID)[1:], ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 10**30, "🦀", [], {}, None])
def test_hostile_values(place: tuple[Any, ...], value: Any) -> None:
    """NaN, infinity, negative and huge numbers at every place."""
    test_one_wrong_value.hypothesis.inner_test(place, value)  # type: ignore[attr-defined]


@settings(max_examples=200, deadline=None)
@given(text=st.one_of(st.text(), st.binary()))
def test_any_text_as_graph(text: str | bytes) -> None:
    """Arbitrary text as GRUG, JGF and R: InvalidGraph or a graph."""
    for read in (read_grug, read_jgf, read_rv1):
        try:
            assert len(read(text))
        except InvalidGraph as refusal:
            says_why(refusal)


@settings(max_examples=200, deadline=None)
@given(ids=st.sets(st.integers(0, 300)))
def test_idset_round_trip(ids: set[int]) -> None:
    """What is written can be read back, in ascending order."""
    assert idset.decode(idset.encode(ids)) == sorted(ids)


@given(text=st.text(max_size=20))
def test_idset_refuses_with_a_typed_error(text: str) -> None:
    try:
        idset.decode(text)
    except InvalidInput as refusal:
        says_why(refusal)
