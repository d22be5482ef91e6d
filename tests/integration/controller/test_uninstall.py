"""``fluxqueue uninstall`` takes along what ``fluxqueue install`` or ``up`` has put there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fluxqueue.cli.uninstall import describe
from fluxqueue.clock import SystemClock
from fluxqueue.controller.removal import UninstallOptions, uninstall
from fluxqueue.errors import NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.installation import VIEW_NAME, VIEW_NAMESPACE, put, tell_view
from fluxqueue.kube.resources import CONFIGMAPS, NODES
from fluxqueue.nodepools.plan.node_protection import KEYS, ON
from fluxqueue.workload.labels import PROTECTED
from tests.support.typing_verbs import typist

OURS = UninstallOptions("fluxqueue")


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[KubeClient]:
    """An administrator of an embedded cluster with our definitions."""
    async with typist(tmp_path) as made:
        yield made.client


async def test_the_word_of_where_the_view_server_is_goes_along(client: KubeClient) -> None:
    """Told twice, as by an ``up`` that was killed and started again."""
    for port in (1, 2):
        await tell_view(client, f"https://127.0.0.1:{port}", "a certificate")
    found = await client.get(CONFIGMAPS, VIEW_NAMESPACE, VIEW_NAME)
    assert found["data"]["url"] == "https://127.0.0.1:2"
    kept = await uninstall(client, SystemClock(), UninstallOptions("fluxqueue", keep_view=True))
    assert not kept.view_forgotten
    assert (await uninstall(client, SystemClock(), OURS)).view_forgotten
    with pytest.raises(NotFound):
        await client.get(CONFIGMAPS, VIEW_NAMESPACE, VIEW_NAME)
    assert not (await uninstall(client, SystemClock(), OURS)).view_forgotten


async def test_nodes_may_be_removed_by_autoscalers_again(client: KubeClient) -> None:
    """Our annotations go. One that another author has set stays."""
    ours = {**dict.fromkeys(KEYS, ON), PROTECTED: KEYS[0]}
    for name, notes in (("ours", ours), ("theirs", {KEYS[1]: ON})):
        await client.create(NODES, None, {"metadata": {"name": name, "annotations": notes}})
    report = await uninstall(client, SystemClock(), OURS)
    assert (report.nodes, report.failed) == ({"ours"}, {})
    assert "nodes that autoscalers may remove again: 1" in describe(report, OURS)
    for name in ("ours", "theirs"):
        notes = (await client.get(NODES, None, name))["metadata"]["annotations"]
        assert {key: notes.get(key) for key in (*KEYS, PROTECTED)} == {
            KEYS[0]: None,
            KEYS[1]: ON,
            PROTECTED: None,
        }


async def test_the_chart_s_word_is_helm_s_to_remove(client: KubeClient) -> None:
    """Also where a user wrote another address into it."""
    theirs = {"metadata": {"name": VIEW_NAME}, "data": {"url": "https://view.example.org"}}
    await tell_view(client, "https://127.0.0.1:1", "")
    await client.delete(CONFIGMAPS, VIEW_NAMESPACE, VIEW_NAME)
    await put(client, CONFIGMAPS, theirs, namespace=VIEW_NAMESPACE)
    await tell_view(client, "https://127.0.0.1:1", "")
    report = await uninstall(client, SystemClock(), OURS)
    assert (report.view_forgotten, report.failed) == (False, {})
    assert await client.get(CONFIGMAPS, VIEW_NAMESPACE, VIEW_NAME)
