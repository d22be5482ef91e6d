"""Further slots of a running workload that lost a node or was scaled up.

``cycle`` calls it at the place that the workload has in the queue. Each slot is given as soon as it
fits, independent of the others. Pods that start together get all their slots or none. The rules
that bind new slots to existing ones still hold: one topology domain, one slot per node. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from fluxqueue.errors import InsufficientResources
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec.shape import only
from fluxqueue.policy.limits import NOTHING, Amounts
from fluxqueue.scheduler.claims_in_use import why_in_use
from fluxqueue.scheduler.closed_nodes import open_until
from fluxqueue.scheduler.lack import Lack
from fluxqueue.scheduler.sweeps import cpu_m_of


def top_up(
    matcher: Matcher,
    lack: Lack,
    now: int,
    why_over: Callable[[Amounts, Amounts], str | None],
    count: Callable[[Amounts], None],
) -> tuple[list[Placement], str]:
    """Place the missing slots that fit now, and add them to the matcher.

    Parameters
    ----------
    why_over : returns the limit that a further slot exceeds, or None. It gets what the job has.
    count : adds a slot to what is used.

    Returns
    -------
    The slots, and what stopped it: a limit, or a volume claim in use. Empty if nothing did.
    """
    placed: list[Placement] = []
    nodes, full, stopped, counted = list(lack.nodes), set[str](), "", NOTHING
    for kind in lack.kinds[: lack.count] or ("",) * lack.count:
        if kind in full:
            continue
        if full and lack.is_whole:
            break
        request = only(lack.request, kind) if kind else lack.request
        # A claim that its other pods use is free when they end, and not before.
        in_use = why_in_use(matcher, request)
        found = None
        if in_use is None:
            until = open_until(matcher, lack, lack.planned_end(now))
            with suppress(InsufficientResources):
                found = matcher.match_more(request, nodes, now, until, avoid=lack.refused)
        if found is None:
            stopped = in_use or stopped
            full.add(kind)
            continue
        one = replace(found, until=lack.until, is_firm=lack.has_limit)
        has = Amounts(0, len({*nodes}), lack.cpu_m + sum(map(cpu_m_of, placed)))
        more = Amounts(0, len({*one.nodes} - {*nodes}), cpu_m_of(one))
        over = why_over(has, more)
        if over is not None:
            stopped = over
            break
        # Count each slot at once, or the next slot could pass the same limit.
        count(more)
        counted += more
        matcher.ledger.extend_apart(lack.uid, one)
        placed.append(one)
        nodes += one.nodes
    if lack.is_whole and len(placed) < lack.count:
        matcher.ledger.take_back(lack.uid, len(placed))
        count(Amounts(-counted.jobs, -counted.nodes, -counted.cpu_m))
        placed = []
    return placed, stopped
