"""Every kind of workload lives at random, beside all others, and through accidents.

Each seed is a run: things are made, scaled, suspended, rolled, evicted, deleted and made again
under the same name, nodes are lost and parts of fluxqueue killed, in any order. Then there is
peace, and what ends must have ended, what stays must run, and all else must have been given back.
``FLUXQUEUE_LIVES_SEEDS=5-40`` runs others, ``FLUXQUEUE_LIVES_STEPS`` makes them longer.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.e2e.health import assert_invariants
from tests.e2e.lives import KINDS, Lives
from tests.e2e.operators import Operators
from tests.e2e.space import Space

STEPS = int(os.environ.get("FLUXQUEUE_LIVES_STEPS") or 40)
SHORT_STEPS = 20
SETTLED_S = 300.0
SHORT, LONG = (1,), range(2, 12)


def _seeds() -> list[object]:
    said = os.environ.get("FLUXQUEUE_LIVES_SEEDS")
    if said:
        first, _, last = said.partition("-")
        return list(range(int(first), int(last or first) + 1))
    long = pytest.mark.long("what random lives find, they find by their number")
    return [*SHORT, *(pytest.param(seed, marks=long) for seed in LONG)]


@pytest.mark.long("the property test of the model covers it in parts")
@pytest.mark.parametrize("seed", _seeds())
async def test_random_lives(space: Space, seed: int) -> None:
    """Jobs, Pods, groups, sets, JobSets, MPIJobs and TrainJobs."""
    await live(space, seed, KINDS, steps=SHORT_STEPS if seed in SHORT else STEPS)


async def live(space: Space, seed: int, kinds: tuple[str, ...], *, steps: int) -> None:
    """One run, in a namespace; ``kinds``: of which something is made, as often as each is named."""
    recording = space.recording()
    async with Operators(space) as operators, recording:
        lives = Lives(space, operators, random.Random(seed), kinds)
        try:
            for _ in range(steps):
                await lives.step()
            await lives.make_peace()
            await lives.until_settled(SETTLED_S)
            await assert_invariants(space.world)
            for life in list(lives.there.values()):
                await lives.remove(life)
        except BaseException:
            print("\n".join([f"lives of seed {seed}:", *lives.log]))
            raise
        finally:
            for name in sorted(lives.nodes):
                await lives.lose_node(name)
    over = {node: cpu for node, cpu in recording.peak_cpu_m().items() if cpu > 16_000}
    assert not over, f"more than nodes have: {over}"
