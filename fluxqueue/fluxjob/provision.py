"""Whether nodes that do not exist yet may be asked for, for one job.

The annotation ``fluxqueue/provision`` says it, the row keeps it, and ``nodepools.plan`` obeys it.
"""

from __future__ import annotations

from enum import StrEnum


class Provision(StrEnum):
    """The values of the annotation."""

    NEVER = "never"
    """It waits for nodes that exist."""
    WHEN_NEEDED = "when-needed"
    """Nodes are asked for if no present ones can hold it, or if the rule of its queue says so."""
    NOW = "now"
    """Nodes are asked for whenever they start it earlier."""
