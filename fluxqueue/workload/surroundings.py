"""Workloads as their pods will be: completed with what the cluster adds to them.

The controller completes each workload before its request is read (``observing.read_workload``,
``observing.fluxjob_creator``), and a worker does so for the manifest of a PlacementReview. Both
implement ``Surroundings``: the objects of the cluster that pods refer to. Pure.

The webhook reads requests without surroundings. It only checks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fluxqueue.objects import Object
from fluxqueue.workload.kinds import kind_of
from fluxqueue.workload.pod_defaults import (
    default_requests,
    with_default_requests,
    with_runtime_class,
)


class Surroundings(Protocol):
    """The objects of the cluster that decide what pods ask for. What is unknown is absent."""

    def limit_ranges(self, namespace: str) -> Sequence[Object]:
        """Return the LimitRanges of a namespace."""
        ...

    def runtime_class(self, name: str) -> Object | None:
        """Return a RuntimeClass."""
        ...


def complete(
    workload: Object, around: Surroundings, *, namespace: str = "", is_new: bool = False
) -> Object:
    """Return a workload with its pods as admission completes them.

    Parameters
    ----------
    namespace : that of a workload without one.
    is_new : its pods have not passed admission, whatever its kind.

    Raises
    ------
    Exception
        A part of it cannot be read.
    """
    kind = kind_of(workload)
    if kind.is_made_of_pods and not is_new:
        return workload
    where = str(workload["metadata"].get("namespace") or namespace)
    requests = default_requests(around.limit_ranges(where))

    def change(pod: Object) -> Object:
        spec = pod.get("spec") or {}
        name = spec.get("runtimeClassName")
        runtime_class = around.runtime_class(str(name)) if name else None
        if not requests and runtime_class is None:
            return pod
        done = with_runtime_class(with_default_requests(spec, requests), runtime_class)
        return {**pod, "spec": done}

    return kind.with_pods(workload, change)
