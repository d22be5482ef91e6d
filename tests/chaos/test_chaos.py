"""Everything fails at random, and every Job ends exactly once.

``make chaos SEED=n DURATION=s`` runs it for longer. The short form is one of the tests. The seed
is printed. On failure also the faults with their times, and where the parts' logs are.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.faults import Chaos, late_nodes
from tests.chaos.load import Load
from tests.chaos.plan import Step, make_plan
from tests.chaos.verdict import (
    assert_clean,
    assert_ended_once,
    assert_nothing_ran_twice,
    until_all_have_ended,
    until_told,
)
from tests.support.api_proxy import ApiProxy
from tests.support.e2e.space import make_space, remove_space
from tests.support.e2e.world import embedded_world

SHORT_S = 6.0
DURATION_S = float(os.environ.get("FLUXQUEUE_CHAOS_DURATION_S") or SHORT_S)
IS_RANDOM = bool(os.environ.get("FLUXQUEUE_TEST_RANDOM"))
"""Otherwise each run of the suite draws the same faults, as it draws the same examples."""

_DRAWN = random.SystemRandom().randrange(1_000_000) if IS_RANDOM else 1
SEED = int(os.environ.get("FLUXQUEUE_CHAOS_SEED") or _DRAWN)
LOSES_DATABASE = DURATION_S >= 20 and SEED % 2 == 1
"""In a long run of an odd seed the database is lost as a whole half way through."""
RESTARTS_CLUSTER = DURATION_S >= 20
"""Short runs have no time for it: all of its clients have to come back."""

PAUSE_S = 0.25
PATIENCE_S = 100.0
"""Without one more end. Beyond every back-off, every resync and the loss of a node."""
JUDGEMENT_S = 600.0
"""On the slowest of machines. What hangs is found, and named, long before."""
ENVIRON = {
    # What a watch has lost for good is found again within the test.
    "FLUXQUEUE_RESYNC_INTERVAL_S": "10",
    "FLUXQUEUE_MAINTAIN_INTERVAL_S": "5",
}

pytestmark = [
    pytest.mark.long("two minutes of faults at random: what it finds, it finds by lasting"),
    pytest.mark.slow,
    pytest.mark.timeout(DURATION_S + JUDGEMENT_S),
]


async def test_everything_ends_exactly_once_whatever_fails() -> None:
    """Processes, database, API server and nodes fail under a stream of Jobs and Pods."""
    plan = make_plan(
        SEED, DURATION_S, loses_database=LOSES_DATABASE, restarts_cluster=RESTARTS_CLUSTER
    )
    print(f"\nchaos: SEED={SEED} DURATION={DURATION_S:g}, {len(plan)} faults")
    with tempfile.TemporaryDirectory(prefix="fluxqueue-chaos-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # where the server runs as another user it must reach its data
        try:
            await _run(folder, plan)
        except BaseException:
            logs = Path(tempfile.mkdtemp(prefix="fluxqueue-chaos-logs-"))
            shutil.copytree(folder / "logs", logs, dirs_exist_ok=True)
            for log in (folder / "postgres").glob("*.log"):
                shutil.copy(log, logs)
            print(f"chaos: failed with SEED={SEED} DURATION={DURATION_S:g}; logs in {logs}")
            raise


async def _run(folder: Path, plan: Sequence[Step]) -> None:
    through = folder / "kubeconfig-through-the-proxy"
    options: dict[str, Any] = {
        "controllers": 2,
        "kubeconfigs": {"controller": through, "worker": through},
        "environ": ENVIRON,
    }
    async with ApiProxy(SEED) as proxy:
        connecting = asyncio.create_task(proxy.connect(folder / "kubeconfig", through))
        async with embedded_world(folder, **options) as world, late_nodes(world):
            await connecting
            space = await make_space(world)
            load = Load(space, SEED)
            chaos = Chaos(world, proxy, load.lose_history)
            try:
                async with space.recording() as seen:
                    await _storm(chaos, plan, load)
                    stormed_s = time.monotonic()
                    await until_all_have_ended(space, load, patience_s=PATIENCE_S)
                    ended_s = time.monotonic()
                    await assert_ended_once(space)
                    assert_nothing_ran_twice(seen, load)
                    await until_told(space)
                await remove_space(space)
                await assert_clean(world)
            except BaseException:
                print("\n".join(["chaos: the faults were", *chaos.log]))
                raise
            print(
                f"chaos: {len(load.bodies)} workloads; faults of calls: {dict(proxy.told)};"
                f" all ended {ended_s - stormed_s:.0f} s after the last fault,"
                f" judged in {time.monotonic() - ended_s:.0f} s"
            )


async def _storm(chaos: Chaos, plan: Sequence[Step], load: Load) -> None:
    end = time.monotonic() + DURATION_S
    submitting = asyncio.create_task(load.run(lambda: time.monotonic() > end, pause_s=PAUSE_S))
    try:
        await chaos.run(plan)
        await submitting
    finally:
        submitting.cancel()
        chaos.end()
