"""R, the granted resources, in Flux's RV1 format (RFC 20), from the slots of an allocation.

fluxqueue grants shares of a node (millicores, bytes), which RV1 has no word for. So R lists the
nodes and, for tools that read only R_lite, as many core ids as the share rounds up to; the exact
grant of each slot stands under ``attributes.fluxqueue.slots``, from which rows can be rebuilt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.fluxjob.request import CPU

MILLICORES = 1000


def to_resource_set(
    slots: Sequence[tuple[str, Mapping[str, int]]], *, starts_at: int, until: int | None
) -> dict[str, Any]:
    """Render R.

    Parameters
    ----------
    slots : node and resources (base units) of each slot, in slot order.
    starts_at, until : epoch seconds; ``until`` None is unlimited and written as 0, as Flux does.
    """
    nodes = list(dict.fromkeys(node for node, _ in slots))
    cores = dict.fromkeys(nodes, 0)
    gpus = dict.fromkeys(nodes, 0)
    for node, resources in slots:
        cores[node] += resources.get(CPU, 0)
        gpus[node] += sum(amount for name, amount in resources.items() if name.endswith("/gpu"))
    return {
        "version": 1,
        "execution": {
            "R_lite": [
                {
                    "rank": str(rank),
                    "children": _children(-(-cores[node] // MILLICORES), gpus[node]),
                }
                for rank, node in enumerate(nodes)
            ],
            "nodelist": [compress(nodes)] if nodes else [],
            "starttime": starts_at,
            "expiration": 0 if until is None else until,
        },
        "attributes": {
            "fluxqueue": {
                "slots": [{"node": node, "resources": dict(resources)} for node, resources in slots]
            }
        },
    }


def _children(cores: int, gpus: int) -> dict[str, str]:
    counts = {"core": cores, "gpu": gpus}
    return {
        name: "0" if count == 1 else f"0-{count - 1}" for name, count in counts.items() if count
    }
