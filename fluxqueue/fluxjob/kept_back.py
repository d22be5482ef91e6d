"""What keeps a FluxJob that waits from its turn, beside room that others have: a word for each.

Found by the cycle and its forecast, kept in the row, and told as the reason of conditions and
Events; ``explain`` answers with the same words. Who waits for nothing but nodes that others use, or
for those before it, has none.
"""

from __future__ import annotations

from enum import StrEnum


class KeptBack(StrEnum):
    """Kinds of reasons; how much is missing, and of what, the sentence says."""

    OVER_LIMIT = "OverLimit"
    """Its queue or its user has as much as a limit allows."""
    STOPPED = "QueueStopped"
    """Its queue starts nothing."""
    UNUSABLE = "NodesUnusable"
    """The nodes that it needs are down or cordoned, or pods of others leave too little of them."""
