"""Further slots for workloads that run already: a node was lost, or they were scaled up.

Called by the worker's ``schedule`` task before the queue is walked: what runs goes before what
waits. The slots of one workload are independent here, each is given as soon as there is room; only
the wishes that bind them to the slots it has (one topology domain, one slot a node) are kept.
Pure, like ``cycle``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from fluxqueue.errors import InsufficientResources
from fluxqueue.graph.ledger.placement import FOREVER, Placement
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.shape import only


@dataclass(frozen=True, slots=True)
class Lack:
    """A running workload whose pods wait for ``count`` slots more.

    ``nodes`` are those of the slots it has; ``until`` is its allocation's end (epoch seconds);
    ``refused`` are nodes that would not take a pod of it: only if there is no other. ``kinds`` are
    the labels of the slots that are needed, one a pod, where the pods are unequal.
    """

    uid: str
    count: int
    request: Jobspec
    nodes: tuple[str, ...]
    until: int | None
    refused: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()


def top_up(matcher: Matcher, lacks: Sequence[Lack], now: int) -> list[tuple[Lack, list[Placement]]]:
    """Place what fits now, workload by workload; it is booked in ``matcher``.

    Must be asked before anything is reserved in this cycle.
    """
    given: list[tuple[Lack, list[Placement]]] = []
    for lack in lacks:
        placed: list[Placement] = []
        nodes = list(lack.nodes)
        full: set[str] = set()
        for kind in lack.kinds[: lack.count] or ("",) * lack.count:
            if kind in full:
                continue
            found = _match(matcher, lack, kind, nodes, now)
            if found is None:
                full.add(kind)
                continue
            one = replace(found, until=FOREVER if lack.until is None else lack.until)
            matcher.extend(lack.uid, one)
            placed.append(one)
            nodes += one.nodes
        if placed:
            given.append((lack, placed))
    return given


def _match(
    matcher: Matcher, lack: Lack, kind: str, nodes: Sequence[str], now: int
) -> Placement | None:
    """One more slot: elsewhere than where a pod was refused, else there."""
    until = FOREVER if lack.until is None else max(now + 1, lack.until)
    request = only(lack.request, kind) if kind else lack.request
    with suppress(InsufficientResources):
        return matcher.match_more(request, nodes, now, until, avoid=lack.refused)
    return None
