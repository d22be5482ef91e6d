"""What a user is told of work that is over: by his kubeconfig alone, by a running view server."""

from __future__ import annotations

import json

import pytest

from tests.e2e.objects import job
from tests.e2e.space import Space
from tests.support.typing_verbs import Typist

pytestmark = pytest.mark.slow


async def test_history_and_accounts_of_a_job(space: Space) -> None:
    """Also when its FluxJob is gone with it."""
    await space.world.stack.start_view()
    await space.create(job("train", pods=2, cpu="2"))
    await space.until_job("train")
    await space.until_state("train", "Completed")
    await space.delete("train")
    typist = Typist(space.client, space.world.kubeconfig)
    told = await typist.type("history", "train", "-n", space.name, "-o", "json")
    assert told.code == 0, told.err
    events = [one["event"] for one in json.loads(told.out)]
    assert events[0] == "Pending"
    assert {"Allocated", "Completed"} <= set(events)
    told = await typist.type("acct", "train", "-n", space.name, "-o", "json")
    (run,) = json.loads(told.out)
    assert (run["result"], run["slots"], run["size"]) == ("Completed", 2, 2)
    assert run["cpuSeconds"] > 0
