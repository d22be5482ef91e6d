"""Names of Events: valid for every name that an object may have, and the same for the same."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxqueue.kube.events import Involved, build_event, event_name

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
"""What the API server takes for a name (``IsDNS1123Subdomain``), of at most 253 characters."""

NAMES = st.from_regex(SUBDOMAIN, fullmatch=True).filter(lambda name: len(name) <= 253)


def about(name: str, uid: str = "uid") -> Involved:
    """A pod of that name."""
    return Involved("v1", "Pod", "space", name, uid)


@given(NAMES, st.text(max_size=20))
def test_names_are_valid(name: str, key: str) -> None:
    """Any event, of any object."""
    made = event_name(about(name), key)
    assert SUBDOMAIN.fullmatch(made)
    assert len(made) <= 253


@pytest.mark.parametrize("character", ["-", ".", "a"])
@pytest.mark.parametrize("number", [5, 17, 235, 236, 237])
def test_a_name_as_long_as_can_be(character: str, number: int) -> None:
    """With a dash or a dot wherever it may be cut."""
    name = "a" * number + character + "a" * (252 - number)
    assert SUBDOMAIN.fullmatch(event_name(about(name), "key"))


def test_the_same_is_named_the_same_and_nothing_else_is() -> None:
    """By the object and by the event, also where the names are cut alike."""
    name = "a" * 253
    told = event_name(about(name), "started/1")
    assert told == event_name(about(name), "started/1")
    assert told != event_name(about(name), "started/2")
    assert told != event_name(about(name, "other"), "started/1")


def test_an_event_of_what_has_no_namespace_and_too_much_to_say() -> None:
    """It stands where the API server keeps such, and its sentence ends at a whole character."""
    queue = Involved("x/v1", "FluxQueue", "", "q", "uid")
    event = build_event(queue, key="k", reason="Why", message="ä" * 1000, at_s=0)
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]
    assert event["message"] == "ä" * 512
    assert event["type"] == "Normal"
