"""The API resource of a workload, as rows name its kind.

Called by whoever writes to workloads: the worker's release, the controller. It stands apart from
``resources``, which a command of a user imports without the table of kinds.
"""

from __future__ import annotations

from fluxqueue.kube.resources import Resource
from fluxqueue.workload.kinds import kind_named
from fluxqueue.workload.references import Reference


def resource_of(kind: str, owner: Reference | None = None) -> Resource:
    """The resource of a kind of workloads, as rows name it; ``owner`` where that is what stands
    for the workload.

    Raises
    ------
    InvalidInput
        There is no such kind.
    """
    if owner is not None and owner.suspend:
        group, _, version = owner.api_version.rpartition("/")
        return Resource(group, version, owner.resource, owner.kind, True)
    found = kind_named(kind)
    return Resource(found.group, found.version, found.plural, found.name, True)
