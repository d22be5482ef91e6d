"""Lives of workloads that a seed chooses."""

from __future__ import annotations

import random

from tests.support.e2e.health import assert_invariants
from tests.support.e2e.lives import Lives
from tests.support.e2e.operators import Operators
from tests.support.e2e.space import Space

SHORT_STEPS = 20
SETTLED_S = 300.0


async def live(space: Space, seed: int, kinds: tuple[str, ...], *, steps: int) -> None:
    """One run, in a namespace. ``kinds``: of which something is made, as often as each is named."""
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
