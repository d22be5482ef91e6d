"""Replays what a real API server was asked, and compares what the embedded one answers.

``claims`` says which scenarios are claimed and what differs in them.
"""

from __future__ import annotations

import pytest

from tests.conformance.claims import CLAIMS, LONG, NOT_SERVED
from tests.conformance.cluster import RECORDINGS, replay_cluster

PLAYS_MAX = 10

_SCENARIOS = [
    pytest.param(name, marks=[pytest.mark.long(LONG[name])] if name in LONG else [])
    for name in sorted(CLAIMS)
]


@pytest.mark.timeout(480)
@pytest.mark.parametrize("name", _SCENARIOS)
async def test_answers_as_recorded(name: str) -> None:
    """Answers, watch events and webhook calls are those of the real server.

    A recording is one course of several independent controllers. Where their pace decides what is
    seen first, another course is as right. So a scenario may be played again on a fresh cluster,
    and fails when none of the plays answers as recorded.
    """
    claim = CLAIMS[name]
    found: list[str] = []
    for _ in range(PLAYS_MAX):
        async with replay_cluster() as cluster:
            found = await cluster.replay(
                name, by_object=claim.by_object, skip_steps=frozenset(claim.differences)
            )
        found = claim.read(found)
        if not found:
            return
    pytest.fail("\n".join(["", *found]))


def test_nearly_all_recordings_are_claimed() -> None:
    """What is not served is the exception, and each difference has its reason."""
    assert len(CLAIMS) >= 95
    assert all(reason.strip() for claim in CLAIMS.values() for reason in claim.differences.values())
    assert set(CLAIMS) >= set(LONG)


def test_every_recording_is_claimed_or_said_not_to_be_served() -> None:
    """No scenario is passed over in silence."""
    recorded = {path.stem for path in RECORDINGS.glob("*.json")}
    assert not set(CLAIMS) & set(NOT_SERVED)
    assert recorded == set(CLAIMS) | set(NOT_SERVED)


def test_named_differences_are_steps_of_the_recording() -> None:
    """A difference that is named must belong to a step that exists."""
    for name, claim in CLAIMS.items():
        text = (RECORDINGS / f"{name}.json").read_text(encoding="utf-8")
        steps = text.count('"request"') + text.count('"watch"') + text.count('"note"')
        assert all(0 <= step <= steps + text.count('"webhook"') for step in claim.differences), name
