"""The use of each node: its capacity, what jobs have of it, what others use.

``nodes`` and ``tree`` of the command line and ``Client.nodes`` show it. Amounts are base units.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fluxqueue.client.cluster_view import ClusterView
    from fluxqueue.fluxjob.levels import Levels
    from fluxqueue.fluxjob.node import NodeFact
    from fluxqueue.kube.client import KubeClient

STATES = ("idle", "mixed", "allocated", "draining", "drained", "down")


@dataclass
class NodeUse:
    """Amounts in base units: capacity, our use, the use of unmanaged pods."""

    nodes: int = 0
    has: dict[str, int] = field(default_factory=dict)
    ours: dict[str, int] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)

    def free(self, name: str) -> int:
        """Return what is left, at least 0: a node may be promised more than it has."""
        taken = self.ours.get(name, 0) + self.others.get(name, 0)
        return max(0, self.has.get(name, 0) - taken)

    def take_whole(self) -> None:
        """Count everything that unmanaged pods do not use as ours: one FluxJob holds the node."""
        self.ours = {
            name: has - min(has, self.others.get(name, 0)) for name, has in self.has.items()
        }

    def add(self, more: NodeUse) -> None:
        """Add the amounts of ``more``."""
        self.nodes += more.nodes
        for into, amounts in (
            (self.has, more.has), (self.ours, more.ours), (self.others, more.others),
            (self.states, more.states),
        ):  # fmt: skip
            for name, amount in amounts.items():
                into[name] = into.get(name, 0) + amount

    def to_json(self) -> dict[str, Any]:
        """Return the form of ``-o json``."""
        names = sorted(self.has)
        return {
            "nodes": self.nodes,
            "states": self.states,
            "resources": {
                name: {
                    "total": self.has[name],
                    "ours": self.ours.get(name, 0),
                    "others": self.others.get(name, 0),
                    "free": self.free(name),
                }
                for name in names
            },
        }


@dataclass(frozen=True)
class NodeLine:
    """One node: its place in the levels, its state, and its use."""

    name: str
    path: tuple[str | None, ...]
    state: str
    why: str
    use: NodeUse


def node_lines(view: ClusterView, levels: Levels, why: Mapping[str, str]) -> list[NodeLine]:
    """Return a line for each node. ``why`` is node -> reason for its drain."""
    from fluxqueue.fluxjob.levels import path_of

    ours, whole = _allocated(view.fluxjobs)
    lines = []
    for node in view.nodes:
        held = ours.get(node.name, {})
        use = NodeUse(1, dict(node.capacity), held, view.foreign.get(node.name, {}))
        if node.name in whole:
            use.take_whole()
        state = _state(node, use)
        use.states = {state: 1}
        lines.append(
            NodeLine(node.name, path_of(levels, node.labels), state, why.get(node.name, ""), use)
        )
    return lines


def _allocated(
    fluxjobs: Iterable[Mapping[str, Any]],
) -> tuple[dict[str, dict[str, int]], set[str]]:
    """Return node -> resource -> what FluxJobs hold, and the nodes that one holds whole.

    An unreadable R counts nothing.
    """
    from fluxqueue.errors import InvalidInput as Unreadable
    from fluxqueue.scheduler.resource_set import read_resource_set

    found: dict[str, dict[str, int]] = {}
    whole: set[str] = set()
    for one in fluxjobs:
        try:
            given = read_resource_set((one.get("status") or {}).get("R"))
        except Unreadable:
            continue
        for node, resources in given.kept:
            on_node = found.setdefault(node, {})
            for name, amount in resources.items():
                on_node[name] = on_node.get(name, 0) + amount
        whole.update(given.held)
        if _is_exclusive(one):
            whole.update(node for node, _ in given.kept)
    return found, whole


def _is_exclusive(fluxjob: Mapping[str, Any]) -> bool:
    from fluxqueue.errors import InvalidInput as Unreadable
    from fluxqueue.jobspec.parse import read_stored
    from fluxqueue.jobspec.shape import takes_whole_nodes

    try:
        return takes_whole_nodes(read_stored(fluxjob["spec"].get("jobspec") or {}))
    except Unreadable:
        return False


def _state(node: NodeFact, use: NodeUse) -> str:
    if not node.is_up:
        return "down"
    if not node.is_schedulable:
        return "draining" if use.ours else "drained"
    if not use.free("cpu"):
        return "allocated"
    return "mixed" if use.ours else "idle"


def node_record(line: NodeLine, levels: Levels) -> dict[str, Any]:
    """Return a node as plain data, the form of ``-o json``."""
    where = {level.name: place for level, place in zip(levels, line.path, strict=True) if place}
    return {
        "name": line.name,
        "state": line.state,
        "reason": line.why,
        "levels": where,
        "resources": line.use.to_json()["resources"],
    }


async def read_nodes(client: KubeClient) -> tuple[list[NodeLine], Levels]:
    """Return a line for each node of the cluster, and its levels."""
    from fluxqueue.client.cluster_view import view_cluster
    from fluxqueue.kube.resources import NODES
    from fluxqueue.workload.labels import DRAIN_REASON

    def reason(node: Mapping[str, Any]) -> tuple[str, str]:
        annotations = node["metadata"].get("annotations") or {}
        return node["metadata"]["name"], annotations.get(DRAIN_REASON, "")

    view = await view_cluster(client)
    why, _ = await client.collect(NODES, keep=reason)
    levels = await read_levels(client)
    return node_lines(view, levels, dict(why)), levels


async def read_levels(client: KubeClient) -> Levels:
    """Return the levels that the cluster's FluxQueues show, or the defaults if none does."""
    from fluxqueue.errors import ApiError
    from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, Level
    from fluxqueue.kube.resources import FLUXQUEUES

    try:
        found = (await client.list(FLUXQUEUES)).items
    except ApiError as error:
        if error.code not in {403, 404}:
            raise
        return DEFAULT_LEVELS
    for queue in found:
        if told := (queue.get("status") or {}).get("levels"):
            return tuple(Level(one["name"], tuple(one["labels"])) for one in told)
    return DEFAULT_LEVELS
