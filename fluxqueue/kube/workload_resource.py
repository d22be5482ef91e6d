"""The API resource of a workload, from the kind that its row names.

The parts that write to workloads call it: the worker's release and the controller. It is separate
from ``resources``, because users' commands import that without the table of kinds.
"""

from __future__ import annotations

from fluxqueue.kube.resources import ApiResource
from fluxqueue.workload.kinds.table import kind_named
from fluxqueue.workload.references import Reference


def resource_of(kind: str, owner: Reference | None = None) -> ApiResource:
    """Return the resource of a kind of workloads, as rows name it.

    Parameters
    ----------
    owner : The object that represents the workload, if that is another object.

    Raises
    ------
    InvalidInput
        There is no such kind.
    """
    if owner is not None and owner.suspend:
        group, _, version = owner.api_version.rpartition("/")
        return ApiResource(group, version, owner.resource, owner.kind, True)
    found = kind_named(kind)
    return ApiResource(found.group, found.version, found.plural, found.name, True)
