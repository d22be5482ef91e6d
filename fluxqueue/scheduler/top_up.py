"""Further slots for running workloads that lost a node or were scaled up.

The worker's ``schedule`` task calls it before the queue is walked, so running work comes before
waiting work. Each slot of a workload is given as soon as it fits, independent of the others.

The rules that bind new slots to existing ones still hold: one topology domain, one slot per node.
So do the limits of the queue. Pure, like ``cycle``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from fluxqueue.errors import InsufficientResources
from fluxqueue.graph.ledger.placement import FOREVER, Placement
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.bounds import MATCH_STEPS, Work
from fluxqueue.jobspec.shape import only
from fluxqueue.policy.limits import Amounts, LimitUse, why_too_large
from fluxqueue.scheduler.claims_in_use import why_in_use
from fluxqueue.scheduler.cycle import Queues
from fluxqueue.scheduler.lack import Given, Lack
from fluxqueue.scheduler.sweeps import cpu_m_of


def top_up(
    matcher: Matcher, lacks: Sequence[Lack], now: int, queues: Queues | None = None
) -> Given:
    """Place the missing slots that fit now, and add them to the matcher. Sweeps are left out.

    Call it before anything is reserved in this cycle. The new slots count in the use of ``queues``.
    """
    queues, given = queues or Queues(), Given()
    for lack in lacks:
        if lack.is_sweep:
            continue  # it grows in its turn (``cycle``)
        use = LimitUse.of(queues.use)
        placed: list[Placement] = []
        nodes = list(lack.nodes)
        full: set[str] = set()
        for kind in lack.kinds[: lack.count] or ("",) * lack.count:
            if kind in full:
                continue
            try:
                request = only(lack.request, kind) if kind else lack.request
                # A claim that its other pods use is free when they end, and not before.
                in_use = why_in_use(matcher, request)
                if in_use is not None:
                    given.barred[lack.uid] = in_use
                    full.add(kind)
                    continue
                with matcher.working(Work(MATCH_STEPS, "placing its further slots")):
                    found = _match(matcher, lack, request, nodes, now)
            except Exception as error:  # noqa: BLE001  a failure here must not stop others
                given.barred[lack.uid] = str(error)
                break
            if found is None:
                full.add(kind)
                continue
            one = replace(found, until=FOREVER if lack.until is None else lack.until)
            more = Amounts(0, len({*one.nodes} - {*nodes}), cpu_m_of(one))
            over = _why_over(use, queues, lack, placed, nodes, more)
            if over is not None:
                given.barred[lack.uid] = over
                break
            # Count each slot at once, or the next slot could pass the same limit.
            use.add(lack.queue, lack.user, more)
            queues.count(lack.queue, lack.user, more)
            matcher.extend(lack.uid, one)
            placed.append(one)
            nodes += one.nodes
        if placed:
            given.slots.append((lack, placed))
    return given


def _why_over(
    use: LimitUse,
    queues: Queues,
    lack: Lack,
    placed: Sequence[Placement],
    nodes: Sequence[str],
    more: Amounts,
) -> str | None:
    """Return the limit of the queue that one more slot would exceed, or None."""
    rules = queues.rules.get(lack.queue)
    if rules is None:
        return None
    has = Amounts(0, len({*nodes}), lack.cpu_m + sum(map(cpu_m_of, placed)))
    return why_too_large(rules, has, more) or use.why_over(rules, lack.user, more)


def _match(
    matcher: Matcher, lack: Lack, request: Jobspec, nodes: Sequence[str], now: int
) -> Placement | None:
    """Return a place for one more slot, on a node that refused a pod only if no other fits."""
    until = FOREVER if lack.until is None else max(now + 1, lack.until)
    with suppress(InsufficientResources):
        return matcher.match_more(request, nodes, now, until, avoid=lack.refused)
    return None
