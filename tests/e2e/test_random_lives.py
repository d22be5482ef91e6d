"""Every kind of workload lives at random, beside all others, and through accidents.

Each seed is a run: things are made, scaled, suspended, rolled, evicted, deleted and made again
under the same name, nodes are lost and parts of fluxqueue killed, in any order. Then there is
peace, and what ends must have ended, what stays must run, and all else must have been given back.
``FLUXQUEUE_LIVES_SEEDS=5-40`` runs others, ``FLUXQUEUE_LIVES_STEPS`` makes them longer.
"""

from __future__ import annotations

import os

import pytest

from tests.support.e2e.lives import KINDS
from tests.support.e2e.random_lives import SHORT_STEPS, live
from tests.support.e2e.space import Space

STEPS = int(os.environ.get("FLUXQUEUE_LIVES_STEPS") or 40)
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
