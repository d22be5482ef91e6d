"""Which nodes an autoscaler must not remove now, and which annotations of a node say so.

The worker that matches calls it at intervals (``worker.node_protecting``). Nodes are protected
while a promise, a gang that waits for them, or running work needs them, and a moment longer. An
annotation that another program or a person has set is never changed. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.workload.labels import PROTECTED

KEYS = (
    "cluster-autoscaler.kubernetes.io/scale-down-disabled",
    "karpenter.sh/do-not-disrupt",
)
"""Annotations with which cluster-autoscaler and Karpenter leave a node alone."""

ON = "true"

RELEASE_S = 5
"""A node stays protected for so long (seconds) after its last use.

The next job often needs it at once. Without the pause, each of many short jobs would cost two
writes for each of its nodes.
"""

CHANGES_MAX = 50
"""The most nodes that are changed in one turn, in each direction."""


class Protect(StrEnum):
    """What protects a node. Each value includes those before it."""

    NEVER = "never"
    """Nothing. No node is read or changed."""
    WAITING = "waiting"
    """Promises, nodes that wait for a job, and jobs that have nodes but do not run yet."""
    GANGS = "gangs"
    """Also running jobs on more than one node: the loss of one node breaks the whole job."""
    RUNNING = "running"
    """Also all other running jobs."""


@dataclass(frozen=True, slots=True)
class NodeNeeds:
    """The nodes that exist, and those of them that must stay."""

    present: Set[str] = frozenset()
    needed: Set[str] = frozenset()


def needed_nodes(
    ledger: ShareLedger, protect: Protect, starting: Set[str], returning: Collection[str]
) -> NodeNeeds:
    """Return which nodes must stay.

    Parameters
    ----------
    ledger : as the last cycle left it, with its reservations in the plan.
    protect : what counts.
    starting : keys of allocations whose pods do not run yet.
    returning : nodes that their provider takes back. They never count.
    """
    present = frozenset(fact.name for fact in ledger.masks.facts if fact is not None)
    if protect is Protect.NEVER:
        return NodeNeeds(present)
    rows = set(ledger.plan.rows.tolist())
    if protect is Protect.RUNNING:
        rows.update(row for row in range(len(ledger.names)) if ledger.keys_on(row))
    else:
        rows |= _rows_of_jobs(ledger, starting, with_gangs=protect is Protect.GANGS)
    names = {ledger.names[row] for row in rows}
    return NodeNeeds(present, frozenset(names & present - set(returning)))


def _rows_of_jobs(ledger: ShareLedger, starting: Set[str], *, with_gangs: bool) -> set[int]:
    """Return the rows of the jobs that start, and of those on more than one node."""
    found: set[int] = set()
    for key, live in ledger.live.items():
        # Most jobs are on one node. A large cluster has very many of them.
        is_small = len(live.holds) == 1 and len(live.holds[0][1].rows) == 1
        if key not in starting and (is_small or not with_gangs):
            continue
        own = {row for _, hold in live.holds for row in hold.rows.tolist()}
        if key in starting or len(own) > 1:
            found |= own
    return found


@dataclass(slots=True)
class ProtectedNodes:
    """The nodes that bear our annotations, and since when some of them are not needed.

    ``marked`` is read from the cluster after a restart. ``incomplete`` are those of them that lack
    a part of the annotations by now.
    """

    marked: set[str] = field(default_factory=set)
    incomplete: set[str] = field(default_factory=set)
    _unneeded_since: dict[str, int] = field(default_factory=dict)

    def changes(self, needs: NodeNeeds, now: int) -> tuple[list[str], list[str]]:
        """Return the nodes to protect, and those to release, ``CHANGES_MAX`` of each at most.

        ``now`` is in epoch seconds. A node that is gone counts as released.
        """
        self.marked &= needs.present
        unneeded = self.marked - needs.needed
        self._unneeded_since = {name: self._unneeded_since.get(name, now) for name in unneeded}
        over = [name for name, at in self._unneeded_since.items() if now - at >= RELEASE_S]
        wanted = needs.needed - (self.marked - self.incomplete)
        return sorted(wanted)[:CHANGES_MAX], sorted(over)[:CHANGES_MAX]

    def note(self, name: str, *, is_marked: bool) -> None:
        """Note that a node was protected, or released."""
        self.incomplete.discard(name)
        (self.marked.add if is_marked else self.marked.discard)(name)


def protecting_notes(notes: Mapping[str, str]) -> dict[str, Any]:
    """Return the annotations to merge into ``notes`` so that the node is protected.

    The marker names those that we set. Empty if there is nothing to change.
    """
    own = set(_own(notes))
    wanted = [key for key in KEYS if key not in notes or (key in own and notes[key] == ON)]
    # Without an annotation of ours there is nothing to remember.
    marker = ",".join(wanted) or None
    changes: dict[str, Any] = {key: ON for key in wanted if key not in notes}
    if notes.get(PROTECTED) != marker:
        changes[PROTECTED] = marker
    return changes


def releasing_notes(notes: Mapping[str, str]) -> dict[str, Any]:
    """Return the annotations to merge into ``notes`` so that ours are gone: None removes one.

    One of ours that has another value by now belongs to another author, and stays.
    """
    if PROTECTED not in notes:
        return {}
    return {PROTECTED: None, **{key: None for key in _own(notes) if notes.get(key) == ON}}


def _own(notes: Mapping[str, str]) -> list[str]:
    """Return the annotations that the marker names. Only ``KEYS`` can be ours."""
    named = str(notes.get(PROTECTED) or "").split(",")
    return [key for key in KEYS if key in named]
