"""Workloads as their pods will be: completed with what the cluster adds to them.

The controller completes each workload before its request is read (``observing.read_workload``,
``observing.fluxjob_creator``), and a worker does so for the manifest of a PlacementReview. Both
implement ``Surroundings``: the objects of the cluster that pods refer to. Pure.

The webhook reads requests without surroundings. It only checks them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from fluxqueue.fluxjob.exclusive_use import port_use
from fluxqueue.fluxjob.levels import Levels
from fluxqueue.workload.constraints import has_label, read_demand
from fluxqueue.workload.device_claims import LEFT as CLAIMS_LEFT
from fluxqueue.workload.device_claims import (
    DeviceNeeds,
    DeviceObjects,
    asks_for_doubtful,
    device_needs,
    named_claims,
    templates_of,
)
from fluxqueue.workload.domains import DomainQuery
from fluxqueue.workload.kinds.pod_group import POD_GROUP, first_pods
from fluxqueue.workload.kinds.table import kind_of
from fluxqueue.workload.objects import Object
from fluxqueue.workload.own_pods import Domains, concerns, divide, host_ports, levels_above
from fluxqueue.workload.pod_bounds import (
    KEY,
    PORTS,
    SHARED_VOLUMES,
    SPREAD,
    VOLUMES,
    PodBounds,
    RuleKind,
)
from fluxqueue.workload.pod_defaults import (
    default_requests,
    with_default_requests,
    with_runtime_class,
)
from fluxqueue.workload.volumes import (
    Storage,
    attached_volumes,
    claim_names,
    has_claims,
    one_pod_claims,
    volume_constraints,
)

OWN_WEBHOOKS = ".fluxqueue.converged-computing.org"
"""End of the names of our own webhooks. They leave the size of pods as it is."""


class Surroundings(Storage, DeviceObjects, Protocol):
    """The objects of the cluster that decide what pods ask for. What is unknown is absent."""

    def limit_ranges(self, namespace: str) -> Sequence[Object]:
        """Return the LimitRanges of a namespace."""
        ...

    def runtime_class(self, name: str) -> Object | None:
        """Return a RuntimeClass."""
        ...

    def domains(self, query: DomainQuery) -> Domains:
        """Return the values of a label on nodes."""
        ...


def complete(
    workload: Object,
    around: Surroundings,
    levels: Levels,
    *,
    namespace: str = "",
    is_new: bool = False,
) -> Object:
    """Return a workload with its pods as admission completes them, and with what binds them.

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
    where = str(workload["metadata"].get("namespace") or namespace)
    is_template = is_new or not kind.is_made_of_pods
    requests = default_requests(around.limit_ranges(where)) if is_template else {}
    # The node that its release wrote into a template is none of its author's rules.
    written = kind.as_written(workload)

    def admitted(spec: Object) -> Object:
        name = spec.get("runtimeClassName")
        runtime_class = around.runtime_class(str(name)) if name else None
        return with_runtime_class(with_default_requests(spec, requests), runtime_class)

    def change(pod: Object) -> Object:
        spec = before = pod.get("spec") or {}
        if is_template:
            spec = admitted(spec)
        is_bound = concerns(spec) or has_claims(spec) or spec.get("resourceClaims")
        if is_bound or asks_for_doubtful(spec, around):
            asked = spec if written is workload else admitted(kind.pod_spec(written))
            its = {"namespace": where, "labels": kind.pod_labels(workload, pod)}
            meta = {**(pod.get("metadata") or {}), **its}
            bounds = _bounds(written, {"metadata": meta, "spec": asked}, around, levels)
            spec = {**spec, KEY: bounds}
        return pod if spec is before else {**pod, "spec": spec}

    return kind.with_pods(workload, change)


def _differ(workload: Object, names: Callable[[Object], Iterable[str]]) -> bool:
    """Tell whether the pods of a group name different claims.

    Its request is read from some of them.
    """
    members = workload["members"].values() if kind_of(workload) is POD_GROUP else ()
    return len({frozenset(names(pod["spec"])) for pod in members}) > 1


def _of_several(workload: Object) -> list[Object]:
    """Return the volumes with claims that several of a group's first pods name."""
    users = Counter(name for pod in first_pods(workload) for name in set(claim_names(pod["spec"])))
    return [
        {"persistentVolumeClaim": {"claimName": name}} for name, pods in users.items() if pods > 1
    ]


def _count(workload: Object) -> int:
    """Return the number of equal pods that rules among them can divide, or 0."""
    kind = kind_of(workload)
    wishes = kind.wishes(workload)
    # Its author says how its slots are placed.
    if wishes.has_shape or len(kind.pod_specs(workload)) != 1:
        return 0
    # Each pod of a sweep comes by itself, and keeps the rules beside the others.
    return max(2, kind.size(workload)) if kind.is_sweep(workload) else kind.size(workload)


def _bounds(workload: Object, pod: Object, around: Surroundings, levels: Levels) -> PodBounds:
    spec, namespace = pod["spec"], str(pod["metadata"]["namespace"])
    demand, count = read_demand(spec), _count(workload)
    is_sweep = kind_of(workload).is_sweep(workload)
    is_alone = kind_of(workload).size(workload) == 1 and not is_sweep

    def domains(
        key: str,
        *,
        honors_affinity: bool = True,
        honors_taints: bool = True,
        with_labels: Sequence[str] = (),
    ) -> Domains:
        return around.domains(
            DomainQuery(
                key,
                tuple(sorted({key, *with_labels})),
                levels_above(key, levels),
                demand.constraint if honors_affinity else None,
                demand.tolerations if honors_taints else None,
            )
        )

    found = divide(pod, count, levels, domains)
    where, left = volume_constraints(spec, namespace, around)
    amounts, is_shared = attached_volumes(spec, namespace, around, is_alone=is_alone)
    if is_shared:
        left.append(SHARED_VOLUMES)
    amounts |= dict.fromkeys(one_pod_claims(spec, namespace, around), 1)
    if _differ(workload, claim_names):
        # A claim of one member is none of the others, but two members with one never run together.
        both = {"volumes": _of_several(workload)}
        amounts = dict.fromkeys(one_pod_claims(both, namespace, around), 1)
        where, left = [], [*left, VOLUMES]
    devices = device_needs(spec, namespace, around)
    if _differ(workload, named_claims) or _differ(workload, templates_of):
        devices = DeviceNeeds(is_left=True)
    where += devices.where
    # Two pods with one port never share a node, wherever the rules among them are left.
    ports = port_use(host_ports(spec))
    found.left = [name for name in found.left if name != PORTS]
    found.names = [name for name in found.names if name != PORTS]
    pools = tuple(sorted({**amounts, **devices.amounts, **ports}.items()))
    if devices.is_left:
        left.append(CLAIMS_LEFT)
    where += [has_label(label) for label in sorted(found.labels)]
    if not count:
        # Nothing divides the pods. One pod alone has no rules to keep.
        names = dict.fromkeys((*found.left, *found.names, *left))
        return PodBounds(tuple(where), pools=pools, left=tuple(names))
    rules = () if count == 1 else tuple(found.rules.values())
    if is_sweep and any(rule.kind is RuleKind.EVEN for rule in rules):
        # How even pods are that come one by one is not known beforehand.
        rules = tuple(rule for rule in rules if rule.kind is not RuleKind.EVEN)
        left.append(SPREAD)
    is_scattered = found.is_scattered and SPREAD in found.left
    return PodBounds(tuple(where), rules, pools, is_scattered, (*found.left, *left))


def changes_pods(configuration: Object) -> bool:
    """Tell whether a MutatingWebhookConfiguration of others may change new pods.

    Selectors are not read: they can be about labels that pods get later.
    """
    return any(
        _is_about_new_pods(rule)
        for webhook in configuration.get("webhooks") or ()
        if not str(webhook.get("name")).endswith(OWN_WEBHOOKS)
        for rule in webhook.get("rules") or ()
    )


def _is_about_new_pods(rule: Object) -> bool:
    asked = (("apiGroups", ""), ("operations", "CREATE"), ("resources", "pods"))
    return all({name, "*"} & set(rule.get(key) or ()) for key, name in asked)
