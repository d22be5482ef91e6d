"""The interface of resource sharing policies: what of a node jobs may have beside unmanaged pods.

Policies of other packages implement ``SharingPolicy`` and return a ``Grant``. The worker that
matches calls them for each node that changes, so a policy must be quick and pure.
docs/admin/sharing.md explains it, and has an example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fluxqueue.fluxjob.node import ForeignPod, NodeFact


@dataclass(frozen=True, slots=True)
class Grant:
    """What jobs may hold on one node together, running ones included.

    Parameters
    ----------
    now
        The most that they may hold beside the present unmanaged pods, in base units (millicores,
        bytes, units). A resource that is left out has what unmanaged pods leave.
    at_best
        The most that they may ever hold there. It decides which jobs are unsatisfiable. A resource
        that is left out has the whole capacity.
    why
        A few words for users, as in "gives jobs 50% of cpu".
    violations
        The unmanaged pods that should not be on the node.
    is_tainted
        Whether the node gets the taint ``fluxqueue/dedicated``, as long as the policy wants it.
    again_at
        When to ask again although nothing has changed (epoch seconds). None: only after changes.
    """

    now: Mapping[str, int] = field(default_factory=dict)
    at_best: Mapping[str, int] = field(default_factory=dict)
    why: str = ""
    violations: Sequence[ForeignPod] = ()
    is_tainted: bool = False
    again_at: int | None = None


class SharingPolicy(Protocol):
    """Decides what of a node jobs may have.

    An instance belongs to one ResourceSharingPolicy object. It may keep no state between calls.
    """

    def grant(
        self, node: NodeFact, capacity: Mapping[str, int], pods: Sequence[ForeignPod], now: int
    ) -> Grant:
        """Return what jobs may hold on a node.

        Parameters
        ----------
        node
            The node with its labels and taints.
        capacity
            What it has for pods, in base units.
        pods
            The unmanaged pods that are bound to it.
        now
            The time in epoch seconds.

        Raises
        ------
        Exception
            Any error sets the policy aside for this node. The status shows the reason.
        """
        ...
