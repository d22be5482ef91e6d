"""Telling an Event to an API server that does not take it: nothing is raised."""

from __future__ import annotations

import pytest

from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.events import Involved, build_event, tell_event

from .conftest import FaultyApi, json_answer, reset, status

EVENT = build_event(
    Involved("v1", "Pod", "space", "a", "uid"), key="k", reason="Why", message="m", at_s=0
)


@pytest.mark.parametrize("code", [403, 404, 422, 500])
async def test_a_refusal_is_no_error(client: KubeClient, faulty: FaultyApi, code: int) -> None:
    """A quota, a namespace that is gone, a name that it does not like."""
    faulty.then(status(code))
    assert not await tell_event(client, EVENT)


async def test_told_before(client: KubeClient, faulty: FaultyApi) -> None:
    """It stands there, and one whose answer was lost is sent again."""
    faulty.then(status(409, "AlreadyExists"), reset(), json_answer(EVENT, 201))
    assert await tell_event(client, EVENT)
    assert await tell_event(client, EVENT)
    assert [seen.path for seen in faulty.seen] == ["/api/v1/namespaces/space/events"] * 3
