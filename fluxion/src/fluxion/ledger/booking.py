"""What one job holds of a graph of vertices, and when.

The matcher makes bookings and ``ledger.vertices`` keeps them. Pure data.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Booking:
    """The vertices that a job holds, and the time during which it holds them.

    ``blocks`` maps a block to (booked, touched). ``tops`` maps a vertex above the blocks to whether
    it is held exclusively. ``shares`` maps a consumable pool to the units taken of it. ``at`` and
    ``end`` are seconds, the end excluded. An allocation that overruns, or has no known end, is
    planned to end at another time than the one it was given. Then ``given_end`` is the time it was
    given.
    """

    job: int
    at: int
    end: int
    is_reservation: bool = False
    blocks: dict[int, tuple[int, int]] = field(default_factory=dict)
    tops: dict[int, bool] = field(default_factory=dict)
    shares: dict[int, int] = field(default_factory=dict)
    given_end: int | None = None

    @property
    def until(self) -> int:
        """Return the end that the booking was given."""
        return self.end if self.given_end is None else self.given_end

    def overlaps(self, start: int, end: int) -> bool:
        return self.at < end and start < self.end


def merged(one: Booking, more: Booking) -> Booking:
    """Return one booking with all of both, from the earlier start to the end of ``more``."""
    found = Booking(one.job, min(one.at, more.at), more.until, one.is_reservation)
    for part in (one, more):
        for number, (booked, touched) in part.blocks.items():
            mine, shared = found.blocks.get(number, (0, 0))
            found.blocks[number] = mine | booked, shared | touched
        for v, is_exclusive in part.tops.items():
            found.tops[v] = found.tops.get(v, False) or is_exclusive
        for v, units in part.shares.items():
            found.shares[v] = found.shares.get(v, 0) + units
    return found
