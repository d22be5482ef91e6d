"""Further slots for workloads that run already: a node was lost, or they were scaled up.

Called by the worker's ``schedule`` task before the queue is walked: what runs goes before what
waits. The slots of one workload are independent here, each is given as soon as there is room; only
the wishes that bind them to the slots it has (one topology domain, one slot a node) are kept, and
the limits of its queue. Pure, like ``cycle``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.placement import FOREVER, Placement
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.bounds import MATCH_STEPS, Work
from fluxqueue.jobspec.shape import only
from fluxqueue.policy.limits import Amounts, Use, why_too_large
from fluxqueue.scheduler.cycle import Queues


@dataclass(frozen=True, slots=True)
class Lack:
    """A running workload whose pods wait for ``count`` slots more.

    ``nodes`` are those of the slots it has; ``until`` is its allocation's end (epoch seconds);
    ``refused`` are nodes that would not take a pod of it: only if there is no other. ``kinds`` are
    the labels of the slots that are needed, one a pod, where the pods are unequal. ``queue``,
    ``user``: whose limits hold; ``cpu_m``: millicores of the slots it has.
    """

    uid: str
    count: int
    request: Jobspec
    nodes: tuple[str, ...]
    until: int | None
    refused: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    queue: str = ""
    user: str = ""
    cpu_m: int = 0


@dataclass(slots=True)
class Given:
    """What workloads got, and by UID what limit keeps others from more."""

    slots: list[tuple[Lack, list[Placement]]] = field(default_factory=list)
    barred: dict[str, str] = field(default_factory=dict)


def top_up(
    matcher: Matcher, lacks: Sequence[Lack], now: int, queues: Queues | None = None
) -> Given:
    """Place what fits now, workload by workload; it is booked in ``matcher``.

    Must be asked before anything is reserved in this cycle. What is given counts in the use of
    ``queues``.
    """
    queues, given = queues or Queues(), Given()
    for lack in lacks:
        use = Use.of(queues.use)
        placed: list[Placement] = []
        nodes = list(lack.nodes)
        full: set[str] = set()
        for kind in lack.kinds[: lack.count] or ("",) * lack.count:
            if kind in full:
                continue
            try:
                with matcher.working(Work(MATCH_STEPS, "finding room for its further slots")):
                    found = _match(matcher, lack, kind, nodes, now)
            except Exception as error:  # noqa: BLE001  one that cannot grow holds up no other
                given.barred[lack.uid] = str(error)
                break
            if found is None:
                full.add(kind)
                continue
            one = replace(found, until=FOREVER if lack.until is None else lack.until)
            more = Amounts(0, len({*one.nodes} - {*nodes}), _cpu_m(one))
            over = _why_over(use, queues, lack, placed, nodes, more)
            if over is not None:
                given.barred[lack.uid] = over
                break
            use.add(lack.queue, lack.user, more)
            queues.count(lack.queue, lack.user, more)
            matcher.extend(lack.uid, one)
            placed.append(one)
            nodes += one.nodes
        if placed:
            given.slots.append((lack, placed))
    return given


def _why_over(
    use: Use,
    queues: Queues,
    lack: Lack,
    placed: Sequence[Placement],
    nodes: Sequence[str],
    more: Amounts,
) -> str | None:
    """Name the limit of its queue that one more slot would pass."""
    rules = queues.rules.get(lack.queue)
    if rules is None:
        return None
    has = Amounts(0, len({*nodes}), lack.cpu_m + sum(map(_cpu_m, placed)))
    return why_too_large(rules, has, more) or use.why_over(rules, lack.user, more)


def _cpu_m(placement: Placement) -> int:
    return sum(dict(slot.resources).get(CPU, 0) for slot in placement.slots)


def _match(
    matcher: Matcher, lack: Lack, kind: str, nodes: Sequence[str], now: int
) -> Placement | None:
    """One more slot: elsewhere than where a pod was refused, else there."""
    until = FOREVER if lack.until is None else max(now + 1, lack.until)
    request = only(lack.request, kind) if kind else lack.request
    with suppress(InsufficientResources):
        return matcher.match_more(request, nodes, now, until, avoid=lack.refused)
    return None
