"""Where pods are let go to, as the rows of their slots say: an expression, and how it is read.

Used by ``desired_state`` and ``settling``; reads nothing by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluxqueue.fluxjob.node import Destination

FEW_NODES = 200
"""Among so many nodes a pod is told its own by label alone. kube-scheduler then looks at each of
them, 3 microseconds of its time a node; naming it in the pod's affinity as well is a twentieth of
what the pod costs the API server in its life, a millisecond (measured on 5,000 and on 20 nodes).
"""

DESTINATION = f"""
jsonb_build_array(s.node, n.hostname,
    NOT EXISTS (SELECT FROM nodes OFFSET {FEW_NODES}) AND coalesce(n.hostname = n.name, false)
    AND NOT EXISTS (SELECT FROM nodes o WHERE o.hostname = n.hostname AND o.name <> n.name))
"""  # noqa: S608 constant
"""Of a slot ``s`` on a node ``n``, which may be gone: what ``as_destination`` reads."""


def as_destination(found: Sequence[Any]) -> Destination:
    """Read a value of ``DESTINATION``."""
    name, hostname, is_told_by_label = found
    return Destination(name, hostname, is_told_by_label=is_told_by_label)
