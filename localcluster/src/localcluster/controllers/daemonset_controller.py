"""The DaemonSet controller: one pod on every node that takes it, placed by the scheduler."""

from __future__ import annotations

from localcluster.client.informer import Key
from localcluster.client.resources import DAEMONSETS, NODES, PODS
from localcluster.controllers.claims import PodClaims
from localcluster.controllers.templates import (
    available_in_s,
    pod_from_template,
    safe_hash,
)
from localcluster.loops.context import Context, QueueController
from localcluster.loops.objects import (
    controller_of,
    is_active,
    is_deleting,
    is_finished,
    is_ready,
    key_of,
    node_name,
    now,
)
from localcluster.loops.workqueue import WorkQueue
from localcluster.loops.writing import create_all, delete_object
from localcluster.obj import Obj
from localcluster.scheduler.decision import (
    NodeState,
    demand_of,
    matches_node,
    tolerates,
)

COMPONENT = "daemonset-controller"
HASH_LABEL = "controller-revision-hash"
GENERATION_LABEL = "pod-template-generation"
TOLERATED = (
    ("not-ready", "NoExecute"),
    ("unreachable", "NoExecute"),
    ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"),
    ("pid-pressure", "NoSchedule"),
    ("unschedulable", "NoSchedule"),
)


def daemon_pod(daemon: Obj, node: str) -> Obj:
    """Return the body of the pod for one node."""
    template = daemon["spec"]["template"]
    labels = {
        HASH_LABEL: safe_hash(template),
        GENERATION_LABEL: str(daemon["metadata"]["generation"]),
    }
    pod = pod_from_template(daemon, DAEMONSETS, extra_labels=labels)
    spec = pod["spec"]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    # Terms are alternatives, so the node's name goes into each existing term.
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [{**old, **term} for old in terms]
    spec.setdefault("tolerations", []).extend(
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect}
        for key, effect in TOLERATED
    )
    return pod


def wants_node(daemon: Obj, node: Obj) -> bool:
    """Return whether a pod belongs on that node: selector, affinity and NoSchedule taints."""
    state = NodeState(node["metadata"]["name"])
    state.take_object(node)
    pod = daemon_pod(daemon, state.name)
    demand = demand_of(pod)
    if not matches_node(demand, state):
        return False
    return all(tolerates(demand.tolerations, taint) for taint in state.taints)


def daemon_status(daemon: Obj, wanted: set[str], pods: list[Obj], target: dict[str, str]) -> Obj:
    """Return the status. ``target`` maps a pod's uid to its node."""
    digest = safe_hash(daemon["spec"]["template"])
    living = [pod for pod in pods if not is_deleting(pod)]
    here = [pod for pod in living if target[pod["metadata"]["uid"]] in wanted]
    min_ready_s = daemon["spec"].get("minReadySeconds") or 0
    available = sum(available_in_s(pod, min_ready_s, now()) == 0 for pod in here)
    nodes = {target[pod["metadata"]["uid"]] for pod in here}
    status: Obj = {
        "currentNumberScheduled": len(nodes),
        "numberMisscheduled": len(living) - len(here),
        "desiredNumberScheduled": len(wanted),
        "numberReady": sum(is_ready(pod) for pod in here),
        "observedGeneration": daemon["metadata"]["generation"],
    }
    updated = sum((pod["metadata"]["labels"] or {}).get(HASH_LABEL) == digest for pod in here)
    optional = {
        "updatedNumberScheduled": updated,
        "numberAvailable": available,
        "numberUnavailable": len(wanted) - available,
    }
    return status | {name: count for name, count in optional.items() if count}


def target_node(pod: Obj) -> str:
    """Return the node that a daemon pod is bound to, or is meant for."""
    bound = node_name(pod)
    if bound:
        return bound
    terms = (
        ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
            "requiredDuringSchedulingIgnoredDuringExecution"
        )
        or {}
    ).get("nodeSelectorTerms") or [{}]
    fields = terms[0].get("matchFields") or [{"values": [""]}]
    name: str = fields[0]["values"][0]
    return name


class DaemonSetController(QueueController):
    """Reconciles DaemonSets and their pods. Updates roll one node at a time."""

    def __init__(self, context: Context) -> None:
        self._client, self._events = context.client_of(COMPONENT), context.events
        self._daemons = context.informers.get(DAEMONSETS)
        self._pods = context.informers.get(PODS)
        self._nodes = context.informers.get(NODES)
        self._claims = PodClaims(self._client, context.informers, DAEMONSETS)
        self._queue: WorkQueue[Key] = WorkQueue(COMPONENT, self._sync, workers=2)
        self._daemons.add_handler(self._changed)
        self._pods.add_handler(self._pod_changed)
        self._nodes.add_handler(self._node_changed)

    def _node_changed(self, old: Obj | None, new: Obj | None) -> None:
        if old is not None and new is not None:
            is_same_spec = old.get("spec") == new.get("spec")
            is_same_labels = old["metadata"].get("labels") == new["metadata"].get("labels")
            if is_same_spec and is_same_labels:
                return
        for daemon in self._daemons.items():
            self._queue.add(key_of(daemon))

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        pod = new or old
        owner = controller_of(pod) if pod is not None else None
        if pod is not None and owner is not None and owner["kind"] == DAEMONSETS.kind:
            self._queue.add((pod["metadata"]["namespace"], owner["name"]))

    async def _sync(self, key: Key) -> None:
        daemon = self._daemons.get(*key)
        if daemon is None or is_deleting(daemon):
            return
        pods = await self._claims.claim(daemon)
        nodes = list(self._nodes.items())
        wanted = {n["metadata"]["name"] for n in nodes if wants_node(daemon, n)}
        await self._manage(daemon, wanted, pods)
        pods = await self._claims.claim(daemon)
        target = {pod["metadata"]["uid"]: target_node(pod) for pod in pods}
        status = daemon_status(daemon, wanted, pods, target)
        if status != daemon.get("status"):
            body = {**daemon, "status": status}
            written = await self._client.replace(DAEMONSETS, *key, body, subresource="status")
            self._daemons.observe(written)

    async def _manage(self, daemon: Obj, wanted: set[str], pods: list[Obj]) -> None:
        by_node: dict[str, list[Obj]] = {}
        for pod in pods:
            by_node.setdefault(target_node(pod), []).append(pod)
        missing = [
            daemon_pod(daemon, name)
            for name in sorted(wanted)
            if not any(not is_finished(pod) for pod in by_node.get(name, ()))
        ]
        doomed = [pod for pod in pods if is_finished(pod) and not is_deleting(pod)]
        for name, members in by_node.items():
            active = [pod for pod in members if is_active(pod)]
            doomed += active if name not in wanted else active[1:]
        if not missing and not doomed:
            doomed = self._outdated(daemon, pods)
        for pod in doomed:
            if await delete_object(self._client, self._pods, pod):
                self._report(daemon, "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")
        _, failure = await create_all(
            self._client,
            self._pods,
            missing,
            lambda pod: self._report(
                daemon, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}"
            ),
        )
        if failure is not None:
            raise failure

    @staticmethod
    def _outdated(daemon: Obj, pods: list[Obj]) -> list[Obj]:
        """Return one pod of an older template if all others are ready, else none."""
        if (daemon["spec"].get("updateStrategy") or {}).get("type") == "OnDelete":
            return []
        digest = safe_hash(daemon["spec"]["template"])
        old = [p for p in pods if (p["metadata"].get("labels") or {}).get(HASH_LABEL) != digest]
        is_quiet = all(is_ready(pod) and not is_deleting(pod) for pod in pods)
        return old[:1] if is_quiet else []

    def _report(self, daemon: Obj, reason: str, message: str) -> None:
        self._events.record(COMPONENT, daemon, "Normal", reason, message)
