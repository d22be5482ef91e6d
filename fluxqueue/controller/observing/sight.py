"""The cluster as a resync sees it: the listed FluxJobs, and each workload with its pods.

``resync_schedule`` lists the FluxJobs and makes a ``Sight``, and ``resync_diff`` compares it with
the rows. What a workload and its pods show of earlier decisions is read here. Nothing here knows a
row.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import orjson

from fluxqueue.controller.observing.read_workload import age
from fluxqueue.db.store.rebuild import NodeResource
from fluxqueue.fluxjob.indexes import is_in
from fluxqueue.fluxjob.states import PROVISIONING, FluxJobState
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import FLUXJOBS
from fluxqueue.process import metrics
from fluxqueue.scheduler.adoption import PlacedPod
from fluxqueue.scheduler.record import FIELDS, DecisionRecord, read_record, read_version
from fluxqueue.workload import labels
from fluxqueue.workload.fluxjob_object import fluxjob_name
from fluxqueue.workload.index_placement import read_placement
from fluxqueue.workload.kinds.kind import WorkloadKind
from fluxqueue.workload.kinds.table import kind_of
from fluxqueue.workload.managed import is_managed, is_taken_in
from fluxqueue.workload.objects import Object
from fluxqueue.workload.observed_pod import pod_fact
from fluxqueue.workload.pinning import named_node, pinned_as
from fluxqueue.workload.pod_resources import effective_request

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """A listed FluxJob, kept as small as possible because a cluster may have very many.

    ``text`` is the JSON from which its record is read if that is needed.
    """

    uid: str
    namespace: str
    name: str
    workload_uid: str
    version: int | None
    state: Any
    jobid: Any
    text: str

    def record(self) -> DecisionRecord:
        """Return the scheduling decisions that the FluxJob records."""
        return read_record(orjson.loads(self.text))


async def list_fluxjobs(client: KubeClient) -> dict[str, Published]:
    """Return all FluxJobs by the UID of their workload, listed page by page."""
    kept, _ = await client.collect(FLUXJOBS, keep=_publication)
    return {one.workload_uid: one for one in kept if one is not None}


def _publication(fluxjob: Object) -> Published | None:
    try:
        return publication(fluxjob)
    except Exception as error:  # noqa: BLE001  one FluxJob must not stop the whole comparison
        metrics.RESYNC_TROUBLES.labels("record").inc()
        name = (fluxjob.get("metadata") or {}).get("name")
        logger.warning("FluxJob cannot be read", extra={"fluxjob": name, "error": str(error)})
        return None


def publication(fluxjob: Object) -> Published | None:
    """Return what is kept of a FluxJob, or None if it is being deleted or names no workload."""
    meta, status = fluxjob["metadata"], _fields(fluxjob.get("status"))
    workload_uid = _fields(_fields(fluxjob.get("spec")).get("workload")).get("uid")
    if not isinstance(workload_uid, str) or not workload_uid or meta.get("deletionTimestamp"):
        return None
    read = {
        "metadata": {key: meta[key] for key in ("uid", "creationTimestamp") if key in meta},
        "status": {key: status[key] for key in FIELDS if key in status},
    }
    return Published(
        uid=meta["uid"],
        namespace=sys.intern(meta["namespace"]),
        name=meta["name"],
        workload_uid=workload_uid,
        version=read_version(status),
        state=_row_state(status.get("state")),
        jobid=status.get("jobid"),
        text=orjson.dumps(read).decode(),  # bytes would keep the 4 KB buffer alive
    )


def _row_state(shown: Any) -> Any:
    """Return the state that the row of a status has. It is not checked here."""
    return FluxJobState.PENDING.value if shown == PROVISIONING else shown


def _fields(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class Sight:
    """The cluster as the controller sees it.

    ``hosts`` maps hostname labels to node names.
    """

    objects: Mapping[str, Object]
    pods_of: Mapping[str, Mapping[str, Object]]
    fluxjobs: Mapping[str, Published]
    hosts: Mapping[str, str]
    default_cpu_m: int

    def of(self, uids: Iterable[str]) -> Sight:
        """Return a copy of some workloads that later events do not change."""
        chosen = list(uids)
        return replace(
            self,
            objects={uid: self.objects[uid] for uid in chosen if uid in self.objects},
            pods_of={uid: dict(self.pods_of[uid]) for uid in chosen if uid in self.pods_of},
        )

    def one(self, uid: str) -> InSight | None:
        """Return a workload that is there, or None."""
        workload = self.objects.get(uid)
        return None if workload is None else InSight(self, uid, workload)

    def pods(self, uid: str) -> Sequence[Object]:
        """Return the pods of a workload, which may be gone itself."""
        return list(self.pods_of.get(uid, {}).values())


@dataclass(frozen=True)
class InSight:
    """One workload that is there."""

    sight: Sight
    uid: str
    workload: Object

    @property
    def name(self) -> str:
        """Return its name, for messages."""
        return str(self.workload["metadata"]["name"])

    @property
    def kind(self) -> WorkloadKind:
        """Return its kind."""
        return kind_of(self.workload)

    @property
    def age(self) -> tuple[str, int]:
        """Return its sort key in the order of submission."""
        return age(self.workload)

    @cached_property
    def pods(self) -> Sequence[Object]:
        """Return its pods."""
        return self.sight.pods(self.uid)

    @cached_property
    def fluxjob(self) -> Published | None:
        """Return its FluxJob, or None if its name or namespace does not match."""
        fluxjob = self.sight.fluxjobs.get(self.uid)
        if fluxjob is None:
            return None
        try:
            its = self.workload["metadata"]["namespace"], fluxjob_name(self.workload)
        except Exception:  # noqa: BLE001  an unreadable object is reported when it is seen by itself
            return None
        return fluxjob if (fluxjob.namespace, fluxjob.name) == its else None

    @property
    def flux_uid(self) -> str | None:
        """Return the UID of its FluxJob."""
        return None if self.fluxjob is None else self.fluxjob.uid

    @property
    def is_ours(self) -> bool:
        """Return whether it was adopted, by its marks or by its FluxJob.

        The gate of a Pod is gone once the Pod was released. Then only its FluxJob shows it.
        """
        if self.fluxjob is not None:
            return True
        try:
            return is_taken_in(self.workload)
        except Exception:  # noqa: BLE001  an unreadable object is reported when it is seen by itself
            return False

    @property
    def is_held(self) -> bool:
        """Return whether its object waits for a release, and has not ended."""
        if not self.kind.has_object or not is_managed(self.workload):
            return False
        if self.kind.can_be_suspended and not self.kind.is_suspended(self.workload):
            return False
        return self.kind.progress(self.workload).result is None

    def start_in_template(self) -> tuple[tuple[str, ...], int | None] | None:
        """Return the nodes and the jobid of a start that its pod template has, or None.

        There is one node for all slots, or one for each.
        """
        node = self.kind.pinned_node(self.workload)
        if node is not None:
            return (node,), pinned_as(self.workload)
        is_placed = self.kind.is_placed(self.workload)
        placement = read_placement(self.workload) if is_placed else None
        return None if placement is None else (placement.nodes, placement.jobid)

    def jobid(self) -> int:
        """Return its jobid, or 0 without a FluxJob: that in its template alone is unverified.

        A FluxJob may not show the jobid of a start yet.
        """
        if self.fluxjob is None:
            return 0
        if isinstance(self.fluxjob.jobid, int):
            return self.fluxjob.jobid
        start = self.start_in_template()
        return (start[1] or 0) if start is not None else 0

    def placed_pods(self) -> tuple[PlacedPod, ...]:
        """Return its pods that were released and have not ended."""
        placed = []
        pods = {pod["metadata"]["uid"]: pod for pod in self.pods}
        for fact in self.kind.pod_facts(self.workload, self.pods):
            if fact.is_gated or fact.is_terminal:
                continue
            spec, default_cpu_m = pods[fact.uid]["spec"], self.sight.default_cpu_m
            placed.append(
                PlacedPod(
                    uid=fact.uid,
                    name=fact.name,
                    node=fact.node or _destination(spec, self.sight.hosts),
                    resources=effective_request(spec, default_cpu_m=default_cpu_m),
                    phase=fact.phase,
                    index=fact.index,
                    kind=fact.kind,
                )
            )
        return tuple(placed)

    def held(self) -> dict[NodeResource, int]:
        """Return what its pods use, by node and resource."""
        held: Counter[NodeResource] = Counter()
        for pod in self.placed_pods():
            if pod.node is not None:
                held.update({(pod.node, name): amount for name, amount in pod.resources.items()})
        return dict(held)

    def has_stray(self, holders: frozenset[str]) -> bool:
        """Return whether a released pod of it is not among ``holders``, which have slots."""
        for pod in self.pods:
            # A pod with a slot is accounted for, wherever it was released to.
            if pod["metadata"]["uid"] in holders:
                continue
            fact = pod_fact(pod)
            is_let_go = not fact.is_gated and not fact.is_terminal
            if is_let_go and (fact.node or _destination(pod["spec"], self.sight.hosts)):
                return True
        return False

    def last_nodes(self) -> dict[int, str]:
        """Return the node of the last failed pod of each index that may run there again."""
        if not self.kind.has_indexes(self.workload):
            return {}
        last: dict[int, Object] = {}
        for pod in self.pods:
            fact = pod_fact(pod)
            if fact.index is not None and not fact.is_gated:
                last[fact.index] = max(pod, last.get(fact.index, pod), key=age)
        ended = self.kind.ended_indexes(self.workload) if last else []
        facts = {index: pod_fact(pod) for index, pod in last.items() if not is_in(index, ended)}
        return {
            index: fact.node
            for index, fact in facts.items()
            if fact.phase == "Failed" and fact.node is not None and not fact.is_refused
        }


def _destination(spec: Object, hosts: Mapping[str, str]) -> str | None:
    """Return the node to which an unbound pod was released (``workload.gates.ungate_patch``)."""
    name = named_node(spec)
    if name is not None:
        return name  # the name is unique, a hostname label may be on several nodes
    host = (spec.get("nodeSelector") or {}).get(labels.HOSTNAME)
    return None if host is None else hosts.get(host, str(host))
