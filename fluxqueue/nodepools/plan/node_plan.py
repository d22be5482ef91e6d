"""What one cycle decided about nodes, what is held for jobs that wait for some, and its words.

``provisioning`` makes plans. ``db.store.node_pools`` writes them, and the worker reports them to
jobs. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from fluxqueue.graph.ledger.placement import FOREVER, PlacedSlot, Placement
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.tell.blockers import write_time
from fluxqueue.nodepools.plan.coming_nodes import NodeRequest


@dataclass(frozen=True, slots=True)
class NodeAsk:
    """New nodes of one pool for a job. ``price`` is for one node and hour.

    ``ready_at``: when they can be used (epoch seconds). ``kept``: the slots of the job on present
    nodes.
    """

    uid: str
    queue: str
    pool: str
    count: int
    ready_at: int
    price: Decimal
    kept: tuple[PlacedSlot, ...] = ()

    def request(self, number: int, now: int) -> NodeRequest:
        """Return the request that is made for it at ``now`` (epoch seconds)."""
        return NodeRequest(
            *(number, self.pool, self.uid, self.queue, self.count, now, self.ready_at),
            kept=self.kept,
            price=self.price,
        )


@dataclass(slots=True)
class NodePlan:
    """What one cycle decided about nodes.

    ``ready_at`` maps the UID of each job that waits for nodes under way, or for new ones, to the
    time at which it can start. ``why`` says of jobs that only a pool could hold why nothing is
    asked for. ``moved`` maps the number of a request to the UID of the job that takes it over.
    ``used`` are requests with a job that has started on what came, and ``withdrawn`` those that no
    job needs any more.
    """

    asks: list[NodeAsk] = field(default_factory=list)
    ready_at: dict[str, int] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    moved: dict[int, str] = field(default_factory=dict)
    used: list[int] = field(default_factory=list)
    withdrawn: list[int] = field(default_factory=list)


def hold_nodes(
    matcher: Matcher, requests: Sequence[NodeRequest], now: int
) -> dict[str, list[Placement]]:
    """Reserve what has come for each job, and what it keeps of present nodes.

    Call it with an empty plan, before any job is matched. Otherwise another job would take the
    nodes that were brought for a gang.

    Returns
    -------
    The reservations by the UID of the job, empty for a job with none yet.
    """
    held: dict[str, list[Placement]] = {}
    ledger = matcher.ledger
    usable = ledger.masks.usable()
    for one in requests:
        placements = held.setdefault(one.uid, [])
        arrived = [name for name in one.arrived if name in ledger.rows]
        if arrived:
            slots = tuple(PlacedSlot(name, ()) for name in arrived)
            placements.append(Placement(slots, now, FOREVER, is_exclusive=True))
        kept = tuple(
            slot for slot in one.kept if slot.node in ledger.rows and usable[ledger.rows[slot.node]]
        )
        if kept:
            starts_at = max(now, one.ready_at)
            placements.append(Placement(kept, starts_at, FOREVER))
    for placements in held.values():
        for placement in placements:
            matcher.reserve(placement, now)
    return held


def describe_counts(counts: Mapping[str, int], kind: str = "") -> str:
    """Return numbers of nodes by pool in words: ``4 nodes of pool gpu and 1 node of pool cpu``.

    ``kind``: a word before the nodes, with a space.
    """
    return " and ".join(
        f"{count} {kind}{'node' if count == 1 else 'nodes'} of pool {pool}"
        for pool, count in sorted(counts.items())
    )


def describe_requests(requests: Sequence[NodeRequest], now: int) -> str:
    """Return what was asked for one job, in words.

    ``4 nodes of pool gpu-h100 asked for at 17:03 UTC, expected 17:09 UTC``.
    """
    return "; ".join(_describe(one, now) for one in requests)


def _describe(one: NodeRequest, now: int) -> str:
    asked = f"{describe_counts({one.pool: one.count})} asked for at {write_time(one.asked_at, now)}"
    if not one.coming:
        return f"{asked}, all are here"
    here = len(one.arrived)
    come = f", {here} of them {'is' if here == 1 else 'are'} here" if here else ""
    is_late = now > one.ready_at
    expected = f"expected {write_time(one.ready_at, now)}"
    return f"{asked}, {expected}{' and late' if is_late else ''}{come}"
