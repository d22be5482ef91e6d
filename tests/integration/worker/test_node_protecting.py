"""Nodes that jobs need are annotated on a served API, and the annotations go in time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.clock import ManualClock
from fluxqueue.db import cluster_identity
from fluxqueue.db.database import Database
from fluxqueue.db.store.cluster_rows import save_autoscaler, save_nodes
from fluxqueue.db.store.rule_rows import RuleRowKind, RuleSeen, save_rules
from fluxqueue.errors import ApiError
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import NODES
from fluxqueue.nodepools.plan.node_protection import KEYS, ON, RELEASE_S
from fluxqueue.worker.node_protecting import REFUSED_S, NodeProtector
from fluxqueue.workload.labels import PROTECTED
from localcluster import LocalCluster, LocalClusterConfig
from tests.support.clusters import InProcessTransport, config_of
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, settings_for, workload

QUIET = LocalClusterConfig(run_controllers=False, run_scheduler=False, run_nodes=False)
NAMES = ("n0", "n1", "n2")
POOL = {
    "node": {"labels": {"pool": "other"}, "allocatable": {"cpu": "4"}},
    "max": 3,
    "provisioningTime": "1m",
    "provider": {"placeholder": {}},
}


@pytest_asyncio.fixture
async def admin() -> AsyncIterator[KubeClient]:
    """A client of an API server with three nodes, the second one protected by hand."""
    async with LocalCluster(QUIET) as cluster:
        transport = InProcessTransport(cluster)
        async with KubeClient(config_of(cluster), transport=transport) as client:
            for name in NAMES:
                notes = {KEYS[1]: ON} if name == "n1" else {}
                meta = {"name": name, "annotations": notes}
                await client.create(NODES, None, {"metadata": meta})
            yield client


@pytest_asyncio.fixture
async def rows(database_url: str) -> AsyncIterator[Rows]:
    """Rows of the same nodes, with a gang of two and a job of one that hold theirs."""
    settings = settings_for(database_url)
    async with Database(settings, role="test") as database:
        found = Rows(database, ManualClock(), settings)
        await cluster_identity.bind(database, "a-cluster", "https://here")
        await found.begin_term()
        async with database.begin() as tx:
            await save_nodes(tx, [cpu_node(name, cpu=4000) for name in NAMES], ())
        await found.see(workload("a", request(2, cpu=4000)), workload("b", request(cpu=4000)))
        await found.match()
        yield found


async def notes_of(admin: KubeClient) -> dict[str, dict[str, str]]:
    """The annotations that matter, by node."""
    nodes = (await admin.list(NODES)).items
    found = {one["metadata"]["name"]: one["metadata"].get("annotations") or {} for one in nodes}
    return {
        name: {key: one for key, one in notes.items() if key in {*KEYS, PROTECTED}}
        for name, notes in found.items()
    }


def protector(rows: Rows, admin: KubeClient, **more: Any) -> NodeProtector:
    """A process that protects nodes, with nothing in memory."""
    assert rows.matcher is not None
    context = rows.context()
    return NodeProtector(
        replace(context, client=admin, settings=replace(context.settings, **more)), rows.matcher
    )


BEFORE: dict[str, dict[str, str]] = {"n0": {}, "n1": {KEYS[1]: ON}, "n2": {}}
OURS = {**dict.fromkeys(KEYS, ON), PROTECTED: ",".join(KEYS)}
BESIDE = {**dict.fromkeys(KEYS, ON), PROTECTED: KEYS[0]}


async def test_nodes_are_annotated_while_they_are_needed(admin: KubeClient, rows: Rows) -> None:
    """Only beside pools or an autoscaler, once each, and the next process releases them."""
    assert isinstance(rows.clock, ManualClock)
    first = protector(rows, admin)
    assert await first.turn() == 0, "there is neither a pool nor an autoscaler"
    assert await notes_of(admin) == BEFORE
    async with rows.database.begin() as tx:
        await save_rules(tx, RuleRowKind.POOL, [RuleSeen("p", "u", 1, POOL)], ())
    await rows.match()
    assert await first.turn() == 3
    assert await notes_of(admin) == {"n0": OURS, "n1": BESIDE, "n2": OURS}
    assert await first.turn() == 0, "only differences are written"

    # The job of one node runs: the loss of its node costs no other node.
    await rows.execute("UPDATE fluxjobs SET state = 'Running' WHERE uid = 'b'")
    await rows.match()
    after_a_crash = protector(rows, admin)
    assert await after_a_crash.turn() == 0, "a node is kept a moment longer"
    rows.clock.advance(RELEASE_S)
    assert await after_a_crash.turn() == 1
    held = await rows.fetch(
        "SELECT s.node FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id"
        " WHERE a.uid = 'b'"
    )
    (free,) = {one["node"] for one in held}
    assert {name for name, one in (await notes_of(admin)).items() if PROTECTED not in one} == {free}

    async with rows.database.begin() as tx:
        await save_rules(tx, RuleRowKind.POOL, [], ["p"])
    await rows.match()
    last = protector(rows, admin)
    assert await last.turn() == 0
    rows.clock.advance(RELEASE_S)
    assert await last.turn() == 2, "without pools nothing stays protected"
    assert await notes_of(admin) == BEFORE


async def test_what_counts_is_a_setting(admin: KubeClient, rows: Rows) -> None:
    """Running jobs, or jobs that wait only, beside an autoscaler that was seen."""
    async with rows.database.begin() as tx:
        await save_autoscaler(tx, "Karpenter")
    await rows.execute("UPDATE fluxjobs SET state = 'Running'")
    await rows.match()
    assert await protector(rows, admin, protect_nodes="waiting").turn() == 0
    assert await protector(rows, admin, protect_nodes="running").turn() == 3


async def test_without_the_right_it_pauses(
    admin: KubeClient, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal is reported, and the queue goes on."""
    async with rows.database.begin() as tx:
        await save_autoscaler(tx, "Karpenter")
    await rows.match()

    async def refuse(*given: Any, **more: Any) -> Any:
        raise ApiError(403, "Forbidden", "nodes is forbidden", {})

    monkeypatch.setattr(admin, "patch", refuse)
    refused = protector(rows, admin)
    await refused.try_turn()
    assert refused.pause_s == REFUSED_S
