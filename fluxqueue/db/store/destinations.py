"""Destinations of released pods, from the rows of their slots: an expression and its reader.

``desired_state`` and ``reconciling`` use it. It reads nothing by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluxqueue.fluxjob.node import Destination

FEW_NODES = 200
"""Up to so many nodes, a pod gets its node by label alone.

kube-scheduler then looks at each of them, at 3 microseconds of its time a node. Naming the node in
the pod's affinity as well costs a millisecond (measured on 5,000 and on 20 nodes). That is a
twentieth of what the pod costs the API server in its life.
"""

DESTINATION = f"""
jsonb_build_array(s.node, n.hostname,
    NOT EXISTS (SELECT FROM nodes OFFSET {FEW_NODES}) AND coalesce(n.hostname = n.name, false)
    AND NOT EXISTS (SELECT FROM nodes o WHERE o.hostname = n.hostname AND o.name <> n.name))
"""  # noqa: S608 constant
"""Of a slot ``s`` on a node ``n``, which may be gone: what ``as_destination`` reads."""


def as_destination(found: Sequence[Any]) -> Destination:
    """Read a value of ``DESTINATION``."""
    name, hostname, is_labelled_index = found
    return Destination(name, hostname, is_labelled_index=is_labelled_index)
