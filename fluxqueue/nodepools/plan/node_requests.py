"""What became of the nodes that were asked for: come, used, late, or not needed any more.

The worker calls it before each cycle, on the rows, and simulations call it as well. A request ends
once: *used* when its job starts, *failed* when its nodes are late or refused, *withdrawn* when no
job needs it. What has come by then stays as a node of its pool. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum

from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.nodepools.plan.coming_nodes import NodeRequest

REASON_MAX = 300
"""The longest error of a provider that a reason quotes."""


class RequestEnd(StrEnum):
    """How a request ended."""

    USED = "used"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"


@dataclass(slots=True)
class NodeReview:
    """The requests that are still open, and what has changed.

    ``arrived`` has the new nodes by the number of their request. ``ended`` has the requests that
    ended, with the reason. ``learned`` has the seconds that new nodes took, by pool. ``failures``
    has the pools that failed, and why.
    """

    requests: list[NodeRequest] = field(default_factory=list)
    arrived: dict[int, list[str]] = field(default_factory=dict)
    ended: dict[int, tuple[RequestEnd, str]] = field(default_factory=dict)
    learned: dict[str, list[int]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def review_requests(
    requests: Sequence[NodeRequest],
    new_nodes: Mapping[str, str],
    running: Set[str],
    refused: Mapping[int, str],
    now: int,
) -> NodeReview:
    """Return what became of ``requests``.

    Parameters
    ----------
    requests : all that are open.
    new_nodes : nodes that can be used and belong to no request yet: the pool of each by name.
    running : the UIDs of jobs that have started since, with or without the nodes.
    refused : the error of the provider, by the number of a request that it refuses for good.
    now : epoch seconds.
    """
    found = NodeReview()
    oldest_first = sorted(requests, key=lambda one: (one.asked_at, one.number))
    open_ = {one.number: one for one in oldest_first}
    for name, pool in sorted(new_nodes.items()):
        taker = next((one for one in open_.values() if one.takes(pool)), None)
        if taker is None:
            continue
        open_[taker.number] = replace(taker, arrived=(*taker.arrived, name))
        found.arrived.setdefault(taker.number, []).append(name)
        found.learned.setdefault(pool, []).append(max(0, now - taker.asked_at))
    for one in open_.values():
        end = _end(one, running, refused, now)
        if end is None:
            found.requests.append(one)
            continue
        found.ended[one.number] = end
        if end[0] is RequestEnd.FAILED:
            found.failures.setdefault(one.pool, end[1])
    return found


def _end(
    one: NodeRequest, running: Set[str], refused: Mapping[int, str], now: int
) -> tuple[RequestEnd, str] | None:
    """Return how a request ends now, and why, or None if it stays open."""
    if one.uid in running:
        if one.arrived:
            return RequestEnd.USED, "its job has started"
        return RequestEnd.WITHDRAWN, "its job has started without them"
    why = refused.get(one.number)
    if why is not None:
        return RequestEnd.FAILED, f"its provider refuses: {why[:REASON_MAX]}"
    if now < one.late_at:
        return None
    if one.coming:
        return RequestEnd.FAILED, f"{one.coming} of {one.count} nodes have not come in time"
    return RequestEnd.FAILED, "the nodes that came do not hold the job"


def idle_nodes(ledger: ShareLedger, names: Iterable[str]) -> list[str]:
    """Return those nodes that nothing uses, or will use in the plan.

    Pods of DaemonSets and static pods do not count.
    """
    planned = set(ledger.plan.rows.tolist())
    found = []
    for name in names:
        row = ledger.rows.get(name)
        if row is None or row in planned or ledger.keys_on(row):
            continue
        permanent = ledger.others[name].permanent if name in ledger.others else {}
        used = (
            int(ledger.foreign[row, column]) > permanent.get(resource, 0)
            for resource, column in ledger.columns.items()
        )
        if not any(used):
            found.append(name)
    return found
