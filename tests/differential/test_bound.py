"""What we place is bound, and what we call impossible cannot be bound.

``make differential KUBEBUILDER_ASSETS=folder`` compares 10,000 pods with the real kube-scheduler.
``PODS=`` and ``SEED=`` change what it draws. ``make test`` compares some with localcluster's.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import ClusterConfig
from tests.differential.trial import Tally, Trial
from tests.support.control_plane import ControlPlane, Options, missing_reason
from tests.support.embedded_plane import embedded_plane

PODS = int(os.environ.get("FLUXQUEUE_DIFFERENTIAL_PODS") or 10_000)
SEED = int(os.environ.get("FLUXQUEUE_DIFFERENTIAL_SEED") or 1)
NO_GRACE_S = 36_000
"""The nodes have no agents that would renew their leases."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How much is drawn: pods in all, and in one cluster workloads alone, and pods together."""

    pods: int
    alone: int
    together: int
    binds_volumes: bool
    quiet_s: float


REAL = Draw(PODS, 8, 150, binds_volumes=True, quiet_s=1.5)
EMBEDDED = Draw(1_000, 6, 250, binds_volumes=False, quiet_s=0.3)


async def compare(config: ClusterConfig, draw: Draw) -> Tally:
    """Draw clusters until so many pods were compared."""
    dice, tally, number = random.Random(SEED), Tally(), 0
    async with KubeClient(config) as client:
        while tally.pods < draw.pods:
            number += 1
            trial = Trial(
                client,
                dice,
                f"trial-{SEED}-{number}",
                tally,
                binds_volumes=draw.binds_volumes,
                quiet_s=draw.quiet_s,
            )
            async with trial:
                await trial.alone(draw.alone)
                await trial.together(draw.together)
            print(f"{number} clusters: {tally}", flush=True)
    return tally


async def test_the_embedded_scheduler_agrees(tmp_path: Path) -> None:
    """One thousand pods, which bind each other in every way that has an exact answer."""
    arguments = ("--nodes", "0", "--node-grace", str(NO_GRACE_S))
    with embedded_plane(tmp_path, arguments) as plane:
        tally = await compare(plane.config, EMBEDDED)
    assert tally.faults == []
    assert tally.placed
    assert tally.never


@pytest.mark.real_cluster
@pytest.mark.timeout(7200)
@pytest.mark.long("ten thousand pods are bound by the real kube-scheduler")
async def test_the_real_scheduler_agrees() -> None:
    """All constraints at once, one workload alone and many together."""
    if reason := missing_reason():
        pytest.skip(reason)
    with ControlPlane(options=Options(node_grace_s=NO_GRACE_S)) as plane:
        tally = await compare(plane.config, REAL)
    assert tally.faults == []
    assert tally.placed
    assert tally.never
