"""Further nodes for pods with constraints that the matcher cannot judge. kube-scheduler chooses.

The worker calls it after the walk, for jobs that start in this cycle. A pod then names all of its
nodes, and its slot is booked on the first of them. Where it is bound elsewhere, its slot follows
(``db.store.choices``). Nothing is booked on the further nodes. They have room beside all that is
booked and reserved in this cycle. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.match.by_shares import last_leaf
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec
from fluxqueue.scheduler.cycle import Decisions
from fluxqueue.scheduler.lack import Given

NODES_MAX = 256
"""Most further nodes of one pod. Each is a name in the pod."""

JOBS_MAX = 50
"""Most jobs of one cycle that get further nodes. Pods of the others name one node each."""

Choices = dict[str, list[tuple[str, ...]]]
"""UID of a job -> further nodes of each of its slots, in slot order."""


def give_choices(matcher: Matcher, decisions: Decisions, given: Given, now: int) -> Choices:
    """Return the further nodes of the slots that this cycle has given.

    Slots of jobs with a constraint that is not judged have a choice, and those of jobs with nodes
    that refused a pod before.
    """
    found: Choices = {}
    for job, placement in decisions.allocated:
        if len(found) < JOBS_MAX and (job.is_unsure or job.refused):
            found[job.uid] = _of_slots(matcher, job.request, placement, job.refused, now)
    for lack, placements in given.slots:
        if len(found) < JOBS_MAX and lack.refused and not lack.is_sweep:
            of_lack: list[tuple[str, ...]] = []
            for one in placements:
                of_lack += _of_slots(matcher, lack.request, one, lack.refused, now, lack.nodes)
            found[lack.uid] = of_lack
    return {uid: choices for uid, choices in found.items() if any(choices)}


def _of_slots(
    matcher: Matcher,
    request: Jobspec,
    placement: Placement,
    refused: Sequence[str],
    now: int,
    siblings: Sequence[str] = (),
) -> list[tuple[str, ...]]:
    """Return for each slot of a placement the other nodes with room for it.

    Slots with nodes of their own divide them: kube-scheduler knows no rule of ours that keeps their
    pods apart. ``siblings`` are the nodes of earlier slots of the same job.
    """
    there = (*siblings, *placement.nodes)
    nodes = matcher.by_shares.nodes_for_one_more(request, there, now, placement.until)
    left = [name for name in nodes if name not in set(refused)]
    size = len(placement.slots)
    _, leaf = last_leaf(matcher.ask(request))
    if leaf.is_distinct:
        return [tuple(left[number::size][:NODES_MAX]) for number in range(size)]
    return [
        tuple([name for name in left if name != slot.node][:NODES_MAX]) for slot in placement.slots
    ]
