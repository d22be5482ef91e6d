"""The reservations in force as closures of nodes, for the matcher that a cycle uses.

The worker that matches keeps one ``Calendar``. It reads no clock: a restarted worker closes at the
same times, and an occurrence that began while none ran counts from the first cycle on. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fluxqueue.graph.ledger.placement import Closure
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.policy.calendar.reservation import Occurrence, ReservationRule

REFRESH_S = 3600
"""How often (seconds) occurrences that come within the horizon are looked for."""


@dataclass(frozen=True, slots=True)
class ReservationFigures:
    """What a reservation closes: its next occurrence, its nodes, and jobs that will be there then.

    ``jobs`` are the keys of allocations on these nodes that may last until it begins, by their
    limits. ``fault``: why it is not in force here.
    """

    next: Occurrence | None = None
    nodes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    fault: str | None = None


class Calendar:
    """Reservations, and when their closures change."""

    def __init__(self) -> None:
        self._rules: Sequence[ReservationRule] = ()
        self._faults: Mapping[str, str] = {}
        self.next_s: int | None = None
        """When nodes must be closed or opened next (epoch seconds). None without reservations."""

    def set_rules(self, rules: Iterable[ReservationRule], faults: Mapping[str, str]) -> None:
        """Replace all reservations. ``faults``: why others are not in force here, by name."""
        self._rules, self._faults = sorted(rules, key=lambda one: one.name), faults

    def is_due(self, now: int) -> bool:
        """Return whether a reservation has begun or ended since nodes were closed."""
        return self.next_s is not None and now >= self.next_s

    def close_nodes(self, ledger: ShareLedger, now: int) -> bool:
        """Close the nodes of a ledger at the coming occurrences. Return whether that changed."""
        if not self._rules and not ledger.closures:
            self.next_s = None
            return False
        facts = [one for one in ledger.masks.facts if one is not None]
        found = [
            Closure(rule.name, nodes, one.starts_at, one.until)
            for rule in self._rules
            if (nodes := rule.nodes_of(facts))
            for one in rule.occurrences(now)
        ]
        moments = [at for one in found for at in (one.starts_at, one.until) if at > now]
        self.next_s = min([now + REFRESH_S, *moments]) if self._rules else None
        found.sort(key=lambda one: (one.starts_at, one.name))
        if tuple(found) == ledger.closures:
            return False
        ledger.close(found)
        return True

    def figures(self, ledger: ShareLedger, now: int) -> dict[str, ReservationFigures]:
        """Return what each reservation closes."""
        found = {name: ReservationFigures(fault=fault) for name, fault in self._faults.items()}
        facts = [one for one in ledger.masks.facts if one is not None]
        for rule in self._rules:
            coming, nodes = next(iter(rule.occurrences(now)), None), rule.nodes_of(facts)
            jobs: tuple[str, ...] = ()
            if coming is not None:
                on_them = {key for name in nodes for key in ledger.keys_on(ledger.rows[name])}
                # Once it has begun, what is there should not be, whatever its limit was.
                is_there = coming.starts_at <= now
                bounds = {key: ledger.live[key].limit for key in on_them}
                jobs = tuple(
                    sorted(key for key in on_them if is_there or bounds[key] > coming.starts_at)
                )
            found[rule.name] = ReservationFigures(coming, nodes, jobs)
        return found


def newly_closed(ledger: ShareLedger, before: Iterable[Closure]) -> list[str]:
    """Return the reservations that close nodes, or times, that were open before."""
    known = set(before)
    return sorted({one.name for one in ledger.closures if one not in known})
