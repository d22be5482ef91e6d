"""Replays of all users together fit into the view server's pod."""

from __future__ import annotations

from pathlib import Path

import yaml

from fluxqueue.view.replays import AT_ONCE_MAX, MEMORY_BYTES
from fluxqueue.workload.quantity import to_base_units

VALUES = Path(__file__).parents[3] / "chart/values.yaml"
MIB = 2**20
SERVER_BYTES, PROGRAMS_BYTES = 250 * MIB, 60 * MIB
"""What the server itself may take (`make bench-window`), and the programs of one replay."""


def test_the_chart_has_room_for_all_replays() -> None:
    """A pod over its limit is killed with all that it does for others."""
    values = yaml.safe_load(VALUES.read_text(encoding="utf-8"))
    limit = values["view"]["resources"]["limits"]["memory"]
    needed = SERVER_BYTES + AT_ONCE_MAX * (PROGRAMS_BYTES + MEMORY_BYTES)
    assert needed <= to_base_units("memory", limit, where="limit")
