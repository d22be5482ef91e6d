"""The words of the Job controller, read once for all workloads of a namespace."""

from __future__ import annotations

import asyncio
from typing import Any

from fluxqueue.clock import ManualClock
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import EVENTS
from fluxqueue.worker.creation_failures import FRESH_S, CreationFailures
from localcluster import LocalCluster
from tests.support.clusters import InProcessTransport, config_of
from tests.support.workers import QUIET


def _event(uid: str, message: str, reason: str = "FailedCreate") -> dict[str, Any]:
    return {
        "metadata": {"generateName": "why-"},
        "involvedObject": {"kind": "Job", "name": uid, "uid": uid},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "lastTimestamp": "2026-11-26T08:00:00Z",
    }


async def test_one_read_serves_all_workloads_for_a_while() -> None:
    """Each gets its own words, and none of another reason."""
    clock = ManualClock()
    async with (
        LocalCluster(QUIET) as cluster,
        KubeClient(config_of(cluster), transport=InProcessTransport(cluster)) as client,
    ):
        others = (_event("a", "x", "FailedScheduling"), _event("b", "y", "BackOff"))
        workload = _event("b", "no account", "FailedWorkloadCreate")
        for one in (_event("a", "quota"), workload, *others):
            await client.create(EVENTS, "default", one)
        failures = CreationFailures(client, clock)
        found = await asyncio.gather(*(failures.words("default", uid, 0.0) for uid in "abc"))
        assert found == ["quota", "no account", ""]
        await client.create(EVENTS, "default", _event("c", "late"))
        assert await failures.words("default", "c", 0.0) == ""
        clock.advance(FRESH_S)
        assert await failures.words("default", "c", 0.0) == "late"
