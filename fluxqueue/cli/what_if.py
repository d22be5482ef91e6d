"""What the scheduling cycle would decide about one jobspec, asked of the cluster.

``fluxqueue resource-query --from-cluster --jobspec FILE`` uses it. It runs the same matcher on the
same facts: nodes with labels, taints and NUMA zones, the use of unmanaged pods, and the allocations
of FluxJobs by the R in their status.

No object shows what is promised to waiting jobs. So a future start is the earliest one beside
running jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fluxqueue.client.cluster_view import ClusterView
from fluxqueue.errors import InsufficientResources, InvalidInput, InvalidJobspec
from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.fluxjob.levels import Levels
from fluxqueue.fluxjob.times import to_rfc3339
from fluxqueue.graph.ledger.placement import FOREVER, PlacedSlot, Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.tell.busy import why_not_now
from fluxqueue.graph.tell.never import why_never
from fluxqueue.jobspec import Jobspec, document
from fluxqueue.jobspec.parse import parse_document, read_stored
from fluxqueue.jobspec.shape import describe, takes_whole_nodes
from fluxqueue.scheduler.resource_set import read_resource_set
from fluxqueue.workload.own_jobspec import to_canonical

NOW, LATER, NEVER = 0, 3, 4
"""Exit statuses: it fits now, it has to wait, it can never fit this cluster."""


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """The outcome as an exit status, and in words."""

    status: int
    text: str


def read_question(text: str | bytes, levels: Levels) -> Jobspec:
    """Read a jobspec as in ``spec.jobspec``, or in Flux's words (core, memory in GiB).

    Raises
    ------
    InvalidJobspec
        It is not a jobspec, or asks for something that pods cannot have.
    """
    return to_canonical(parse_document(document.load(text, InvalidJobspec)), levels)


def matcher_of(view: ClusterView, levels: Levels, policy: str) -> Matcher:
    """Return the cycle's matcher on the present cluster."""
    matcher = Matcher(ShareLedger(levels), policy)
    matcher.ledger.add_rows([node.name for node in view.nodes])
    for node in view.nodes:
        matcher.set_node(node, view.foreign.get(node.name, {}))
    for fluxjob in view.fluxjobs:
        placement = _read_placement(fluxjob)
        if placement is not None:
            matcher.allocate(fluxjob["metadata"]["uid"], placement)
    return matcher


def _read_placement(fluxjob: dict[str, Any]) -> Placement | None:
    """Return what a running FluxJob holds by its R, None if that cannot be read."""
    try:
        given = read_resource_set((fluxjob.get("status") or {}).get("R"))
        jobspec = read_stored(fluxjob["spec"].get("jobspec") or {})
    except InvalidInput:
        return None
    slots = tuple(PlacedSlot(node, tuple(sorted(r.items()))) for node, r in given.kept)
    until = FOREVER if given.until is None else given.until
    return Placement(slots, given.starts_at, until, takes_whole_nodes(jobspec), given.held)


def ask(matcher: Matcher, jobspec: Jobspec, now: int) -> WhatIfAnswer:
    """Answer now, later or never. ``now`` is in epoch seconds."""
    try:
        placement = matcher.match_now(jobspec, now)
    except InsufficientResources:
        pass
    else:
        return WhatIfAnswer(NOW, f"now: {describe(jobspec)}, on {_nodes(placement.nodes)}")
    if not matcher.is_satisfiable(jobspec):
        return WhatIfAnswer(NEVER, f"never: {why_never(matcher.by_shares, jobspec)}")
    try:
        later = matcher.match_later(jobspec, now)
    except InsufficientResources as busy:
        return WhatIfAnswer(LATER, f"later: {describe(jobspec)}; {busy.reason}")
    when = f"at {to_rfc3339(later.starts_at)}"
    short = why_not_now(matcher.by_shares, jobspec)
    text = f"later, {when}: {describe(jobspec)}, on {_nodes(later.nodes)}"
    return WhatIfAnswer(LATER, text if short is None else f"{text}; {short}")


def _nodes(names: Sequence[str]) -> str:
    return compress(dict.fromkeys(names)) if names else "no node"
