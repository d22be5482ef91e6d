"""Why a job waits, if it waits for something other than nodes or its turn: one word each.

The cycle and the forecast find it, and the row keeps it. It is the reason of conditions and Events,
and ``explain`` answers with the same words. A job that waits only for nodes in use, or for jobs
ahead of it, has none.
"""

from __future__ import annotations

from enum import StrEnum

from fluxqueue.fluxjob import states


class WaitReason(StrEnum):
    """Kinds of reasons. The sentence beside it says what is missing, and how much."""

    OVER_LIMIT = "OverLimit"
    """Its queue or its user has as much as a limit allows."""
    STOPPED = "QueueStopped"
    """Its queue starts nothing."""
    PROVISIONING = states.PROVISIONING
    """Nodes were asked for, and it starts on them."""
    CLAIM_IN_USE = "VolumeClaimInUse"
    """Another pod uses a volume claim that is for one pod at a time."""
    UNUSABLE = "NodesUnusable"
    """Its nodes are down or cordoned, or unmanaged pods leave too little of them."""
