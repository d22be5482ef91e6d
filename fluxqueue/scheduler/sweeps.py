"""Further slots of sweeps: running workloads with independent pods.

``cycle`` calls it while it walks the queue, at the place that a sweep has there. So the pods of a
sweep come before jobs behind it, and after jobs ahead of it. Each pod counts as one job where
limits count jobs. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.change import with_size
from fluxqueue.policy.limits import Amounts
from fluxqueue.scheduler.closed_nodes import open_until
from fluxqueue.scheduler.lack import Lack

GROWTH_MAX = 200
"""The most slots that one sweep gets in one cycle. A cycle follows at once for the others."""
PLANNED_MAX, PLANNED_EACH = 10, 5
"""The most growing jobs that a cycle plans a further slot for, of a queue and of a user in it."""
GROWING_MAX = 1_000
"""The most growing jobs that one cycle looks at. Users take turns, and the others keep theirs."""


def is_plain(request: Jobspec) -> bool:
    """Return whether a slot of the request may be anywhere, whatever its siblings have."""
    return len(request.resources) == 1 and request.resources[0].is_slot


def next_slot(lack: Lack) -> Jobspec | None:
    """Return the request of one more pod, or None if its place depends on its siblings."""
    one = lack.request if lack.is_independent else with_size(lack.request, 1)
    if one is None or not (lack.is_independent or is_plain(one)):
        return None
    return replace(one, duration_s=float(lack.duration_s))


def grow(
    matcher: Matcher,
    lack: Lack,
    now: int,
    why_over: Callable[[Amounts], str | None],
    count: Callable[[Amounts], None],
) -> tuple[list[Placement], str]:
    """Book as many further slots as fit now, ``GROWTH_MAX`` at most.

    Parameters
    ----------
    why_over : returns the limit that one more slot would exceed, or None.
    count : adds a slot to what is used.

    Returns
    -------
    The slots, and the limit that stopped it, empty if none did.
    """
    until = now + lack.held_s
    open_for = open_until(matcher, lack, until)
    # Only one pod at a time can use such a claim, so each further one waits for its end.
    most = 1 if matcher.ask(lack.request).claims else GROWTH_MAX
    nodes = list(lack.nodes)
    placed: list[Placement] = []
    for _ in range(min(lack.count, most)):
        found = None
        with suppress(InsufficientResources):
            found = matcher.match_more(lack.request, nodes, now, open_for, avoid=lack.refused)
        if found is None:
            break
        one = replace(found, until=until, is_firm=lack.has_limit)
        more = Amounts(1, len({*one.nodes} - {*nodes}), cpu_m_of(one))
        over = why_over(more)
        if over is not None:
            return placed, over
        count(more)
        matcher.ledger.extend_apart(lack.uid, one)
        placed.append(one)
        nodes += one.nodes
    return placed, ""


def cpu_m_of(placement: Placement) -> int:
    """Return the millicores of all slots of a placement."""
    return sum(dict(slot.resources).get(CPU, 0) for slot in placement.slots)
