"""Checks of the rooms of a simulated cluster."""

from __future__ import annotations

import numpy as np

from fluxqueue.fluxjob.request import CPU
from fluxqueue.simulation.simulator import Engine


def check_rooms(engine: Engine, cores: int) -> None:
    """No node holds more than its ``cores``, and the matcher agrees with what runs."""
    pools = engine.matcher.ledger
    assert (pools.booked <= pools.capacity).all()
    used: dict[str, int] = {}
    for running in engine.running.values():
        for slot in running.placement.slots:
            used[slot.node] = used.get(slot.node, 0) + dict(slot.resources)[CPU]
    booked = pools.booked[:, pools.columns[CPU]]
    expected = np.array([used.get(name, 0) for name in pools.names])
    assert (booked == expected).all()
    assert all(amount <= cores * 1000 for amount in used.values())
