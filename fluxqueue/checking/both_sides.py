"""The two sides of a check with indexes: the objects of the cluster, and the rows.

``check`` builds it for each round. The comparisons in this package read it and change nothing. It
shares no index with the controller, because it must find the mistakes of the controller.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from fluxqueue.db.reading.snapshot import FluxJobRow, MemberRow, Rows, SlotRow
from fluxqueue.fluxjob.follow import SlotState
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.discovery import find_served
from fluxqueue.kube.resources import FLUXJOBS, JOBS, NODES, PODS
from fluxqueue.workload.kinds.admitted import assemble_owner
from fluxqueue.workload.kinds.bare_pod import BARE_POD
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.kinds.pod_group import Assembly
from fluxqueue.workload.kinds.suspended_owner import SUSPENDED_OWNER
from fluxqueue.workload.kinds.table import kind_of_fluxjob, workload_uid
from fluxqueue.workload.managed import is_taken_in
from fluxqueue.workload.objects import Object
from fluxqueue.workload.owner_kinds import OwnerKinds
from fluxqueue.workload.pods import controller_owner, gate_index


@dataclass(frozen=True, slots=True)
class CheckedCluster:
    """Objects as listed, each list at its own resource version."""

    jobs: tuple[Object, ...] = ()
    pods: tuple[Object, ...] = ()
    nodes: tuple[Object, ...] = ()
    fluxjobs: tuple[Object, ...] = ()
    owners: tuple[Object, ...] = ()
    """Objects that create pods and are held by suspension, as FluxJobs name them."""

    def workload_uids(self) -> set[str]:
        """UIDs of all objects that the comparisons may look up in the rows."""
        uids = {uid_of(job) for job in self.jobs}
        uids |= {workload_uid(pod) for pod in self.pods}
        return uids | {fluxjob["spec"]["workload"]["uid"] for fluxjob in self.fluxjobs}


async def read_cluster(client: KubeClient) -> CheckedCluster:
    """List Jobs, Pods, Nodes, FluxJobs and the owners that these name, in all namespaces.

    Raises
    ------
    ApiUnavailable, ApiError
        The API server cannot be reached or refuses.
    """
    listed = await asyncio.gather(
        *(client.list(resource) for resource in (JOBS, PODS, NODES, FLUXJOBS))
    )
    jobs, pods, nodes, fluxjobs = (tuple(result.items) for result in listed)
    return CheckedCluster(jobs, pods, nodes, fluxjobs, tuple(await _read_owners(client, fluxjobs)))


async def _read_owners(client: KubeClient, fluxjobs: Iterable[Object]) -> list[Object]:
    named = [one["spec"]["workload"] for one in fluxjobs if kind_of_fluxjob(one) is SUSPENDED_OWNER]
    kinds = {(one["apiVersion"].rpartition("/")[0], one["kind"]) for one in named}
    found: list[Object] = []
    for resource in await find_served(client, kinds):
        named_so = {"apiVersion": resource.api_version, "kind": resource.kind}
        found += [{**one, **named_so} for one in (await client.list(resource)).items]
    return found


@dataclass(slots=True)
class CheckView:
    """Rows and cluster, with the indexes that the comparisons share.

    ``unseen_s``: objects younger than this many seconds may be unknown to the rows.
    ``default_cpu_m``: millicores of a pod without a cpu request. ``owner_kinds``: the kinds beside
    Job that create pods.
    """

    cluster: CheckedCluster
    rows: Rows
    now_s: int
    unseen_s: int
    default_cpu_m: int
    owner_kinds: OwnerKinds = field(default_factory=OwnerKinds)
    row_of: dict[str, FluxJobRow] = field(init=False)
    group_of: dict[str, MemberRow] = field(init=False)
    """Pods of groups, by pod UID."""
    workloads: dict[str, Object] = field(init=False)
    """Jobs and ownerless Pods by UID, managed or not."""
    pods_of: dict[str, list[Object]] = field(init=False)
    slots_of: dict[str, list[SlotRow]] = field(init=False)
    """Slots that are not returned, by workload UID."""
    slot_of_pod: dict[str, SlotRow] = field(init=False)

    def __post_init__(self) -> None:
        """Build the indexes."""
        self.row_of = {row.uid: row for row in self.rows.fluxjobs}
        self.group_of = {row.pod_uid: row for row in self.rows.members}
        self.workloads = {uid_of(job): {"kind": BATCH_JOB.name, **job} for job in self.cluster.jobs}
        pods_of: dict[str, list[Object]] = defaultdict(list)
        for pod in self.cluster.pods:
            owner = self.workload_of(pod)
            pods_of[owner].append(pod)
            if owner == uid_of(pod):
                self.workloads[owner] = {"kind": BARE_POD.name, **pod}
        self.pods_of = dict(pods_of)
        owners = self._owners()
        self.workloads |= owners
        self.workloads |= {uid: one for uid, one in self._groups().items() if uid not in owners}
        slots_of: dict[str, list[SlotRow]] = defaultdict(list)
        for slot in self.rows.slots:
            if slot.state != SlotState.RETURNED:
                slots_of[slot.uid].append(slot)
        self.slots_of = dict(slots_of)
        self.slot_of_pod = {slot.pod_uid: slot for slot in self.rows.slots if slot.pod_uid}

    def workload_of(self, pod: Object) -> str:
        """Return the UID of the workload of a pod. For groups, only the rows know it."""
        row = self.group_of.get(uid_of(pod))
        if row is not None:
            return row.uid
        uid, its = workload_uid(pod), pod["metadata"].get("namespace")
        found, job = self.row_of.get(uid), self.workloads.get(uid)
        where = found.namespace if found else job["metadata"].get("namespace") if job else its
        return uid if where == its else uid_of(pod)

    def _groups(self) -> dict[str, Object]:
        """Return the object that represents each group with pods in the cluster."""
        found: dict[str, Object] = {}
        for row in self.rows.fluxjobs:
            pods = [pod for pod in self.pods_of.get(row.uid, ()) if uid_of(pod) in self.group_of]
            if pods:
                found[row.uid] = Assembly(
                    uid=row.uid,
                    name=row.workload_name,
                    fluxjob=row.name,
                    namespace=row.namespace,
                    user="",
                    created=min(pod["metadata"].get("creationTimestamp", "") for pod in pods),
                    spec={"minimum": row.size, "maximum": None},
                    members={uid_of(pod): pod for pod in pods},
                    slot_kinds={uid_of(pod): self.group_of[uid_of(pod)].slot_kind for pod in pods},
                    jobs={},
                ).assemble()
        return found

    def _owners(self) -> dict[str, Object]:
        """Return the owners held by suspension, with the pods that rows assign to them."""
        jobs = {uid_of(job): job for job in self.cluster.jobs}
        found: dict[str, Object] = {}
        for owner in self.cluster.owners:
            entry = self.owner_kinds.find(owner["apiVersion"].rpartition("/")[0], owner["kind"])
            if uid_of(owner) not in self.row_of or entry is None:
                continue
            known = self.group_of
            pods = {uid_of(one): one for one in self.pods_of.get(uid_of(owner), ())}
            makers = [(controller_owner(one) or {}).get("uid") for one in pods.values()]
            found[uid_of(owner)] = assemble_owner(
                owner,
                entry,
                owner["apiVersion"],
                members=pods,
                slot_kinds={uid: known[uid].slot_kind if uid in known else "" for uid in pods},
                jobs={uid: jobs[uid] for uid in makers if uid in jobs},
            )
        return found

    def is_ours(self, pod: Object) -> bool:
        """Return whether a row knows the workload of the pod, or its Job has our gate."""
        uid = self.workload_of(pod)
        if uid in self.row_of:
            return True
        workload = self.workloads.get(uid)
        return workload is not None and is_taken_in(workload)

    def live_pods(self, uid: str) -> list[Object]:
        """Return the pods of a workload that have not ended, terminating pods included."""
        return [pod for pod in self.pods_of.get(uid, ()) if not is_terminal(pod)]

    def bound_pods(self) -> Iterable[Object]:
        """Return the pods that use a node now."""
        return (pod for pod in self.cluster.pods if node_of(pod) and not is_terminal(pod))


def uid_of(obj: Object) -> str:
    """Return the UID of the object."""
    return str(obj["metadata"]["uid"])


def subject_of(obj: Object, kind: str) -> str:
    """Return the name of the object for people."""
    return f"{kind} {obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def is_terminal(pod: Object) -> bool:
    """Return whether the containers of the pod have ended for good."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def is_gated(pod: Object) -> bool:
    """Return whether our gate keeps the pod from being scheduled."""
    return gate_index(pod.get("spec") or {}) is not None


def node_of(pod: Object) -> str:
    """Return the node that the pod is bound to, or an empty string."""
    return str((pod.get("spec") or {}).get("nodeName") or "")
