"""What a running view server tells, by a kubeconfig alone: of work that is over, and of nodes."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from fluxqueue.kube.config import load_kubeconfig
from tests.support.e2e.objects import FOR_EVER, job
from tests.support.e2e.space import Space
from tests.support.typing_verbs import Typist

pytestmark = pytest.mark.slow


async def test_history_and_accounts_of_a_job(space: Space) -> None:
    """Also when its FluxJob is gone with it."""
    await space.world.has_view()
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


async def test_a_node_that_is_held_whole_has_nothing_free(space: Space) -> None:
    """Though its pods ask for less: for the command line and for the view server alike."""
    await space.world.has_view()
    body = job("alone", cpu="2", pool="single", run=FOR_EVER, wishes={"exclusive": "true"})
    await space.create(body)
    await space.until_state("alone", "Running")
    typist = Typist(space.client, space.world.kubeconfig)
    told = await typist.type("nodes", "single", "-o", "json")
    assert told.code == 0, told.err
    (typed,) = json.loads(told.out)
    (viewed,) = [one for one in await _viewed_nodes(space) if one["name"] == "single"]
    for node in (typed, viewed):
        assert node["state"] == "allocated"
        assert node["resources"]["cpu"] == {
            "total": 16_000, "ours": 16_000, "others": 0, "free": 0
        }  # fmt: skip
        assert node["resources"]["memory"]["free"] == 0
    assert "single" in (await typist.type("nodes", "-t", "allocated")).out
    await space.delete("alone")


async def _viewed_nodes(space: Space) -> list[dict[str, Any]]:
    config = load_kubeconfig(str(space.world.kubeconfig))
    headers = {"Authorization": str(config.authorization_header())}
    url = f"{space.world.stack.view_url}/api/v1/nodes"
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, ssl=False) as answer,
    ):
        assert answer.status == 200, await answer.text()
        found: list[dict[str, Any]] = (await answer.json())["items"]
        return found
