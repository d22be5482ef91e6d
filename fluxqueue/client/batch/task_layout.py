"""How many tasks, in how many pods, on how many nodes, and what each pod gets of it.

``script_request`` calls it with the directives of a script as a whole. Pure. Slurm counts memory,
devices and GPUs by node, by job or by task, and Kubernetes counts by pod.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fluxqueue.errors import InvalidInput

NODES_MAX = 100_000
"""Largest number of nodes or pods of one job."""


@dataclass(frozen=True, slots=True)
class TaskLayout:
    """``tasks`` on ``nodes`` different nodes. 0 nodes: on any number of nodes.

    ``is_once``: the tasks of a node share a pod, and the script starts them. Otherwise each is a
    pod, and the script runs in each of them.
    """

    tasks: int
    nodes: int = 0
    is_once: bool = False

    @property
    def pods(self) -> int:
        """Return the number of pods."""
        return max(1, self.nodes) if self.is_once else self.tasks

    @property
    def tasks_in_pod(self) -> int:
        """Return the number of tasks of the fullest pod."""
        return -(-self.tasks // self.pods)

    @property
    def has_agents(self) -> bool:
        """Return whether the script runs in the first of several pods, and agents in the others."""
        return self.is_once and self.pods > 1

    @property
    def most_per_node(self) -> int:
        """Return the number of pods on the fullest node, or 0 if that is open."""
        if self.pods == 1 or self.is_once:
            return 1
        return -(-self.tasks // self.nodes) if self.nodes else 0

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """Return pairs of a number of nodes and the tasks on each, the fuller nodes first."""
        if not self.nodes:
            return ()
        each, more = divmod(self.tasks, self.nodes)
        found = ((more, each + 1), (self.nodes - more, each))
        return tuple(one for one in found if one[0])


def lay_out(
    nodes: Sequence[int], tasks: int | None, per_node: int | None, where: str
) -> TaskLayout:
    """Combine the three numbers as sbatch does, but that tasks are spread evenly over the nodes.

    Parameters
    ----------
    nodes : the numbers of nodes that are allowed, smallest first. Empty if the script is silent.
    tasks : number of tasks, None if the script is silent.
    per_node : tasks on each node. With ``tasks``: at most.

    Raises
    ------
    InvalidInput
        So many tasks do not fit on so many nodes.
    """
    if tasks is None:
        count = nodes[0] if nodes else 1
        if per_node is not None:
            return TaskLayout(_bounded(count * per_node, where), count)
        return TaskLayout(count, nodes[0] if nodes else 0)
    least = 1 if per_node is None else -(-tasks // per_node)
    if not nodes:
        return TaskLayout(tasks, 0 if per_node is None else least)
    # sbatch lowers a number of nodes that is above the number of tasks.
    allowed = sorted({min(one, tasks) for one in nodes})
    fits = [one for one in allowed if one >= least]
    if not fits:
        raise InvalidInput(
            f"{tasks} tasks do not fit on {nodes[-1]} nodes with {per_node} on each",
            where=where,
            hint=f"use {least} nodes or more",
        )
    even = [one for one in fits if tasks % one == 0]
    return TaskLayout(tasks, (even or fits)[0])


def read_nodes(text: str, where: str) -> tuple[int, ...]:
    """Read ``2``, ``2-4``, ``2-8:2`` or ``1,2,4``: the numbers that are allowed.

    Raises
    ------
    InvalidInput
        It is none of these, or a number is below 1.
    """
    found: set[int] = set()
    for part in text.split(","):
        one = re.fullmatch(r"(\d{1,6}k?)(?:-(\d{1,6}k?))?(?::(\d{1,6}))?", part.strip())
        if not one or (one[3] and not one[2]):
            raise InvalidInput(
                f"{text!r} is not a number of nodes", where=where, value=text, hint="2, 2-4, 1,2,4"
            )
        first, last = _kilo(one[1]), _kilo(one[2] or one[1])
        if not 1 <= first <= last <= NODES_MAX or one[3] == "0":
            raise InvalidInput(
                f"{text!r} is not a number of nodes", where=where, value=text,
                hint=f"from 1 to {NODES_MAX}",
            )  # fmt: skip
        found.update(range(first, last + 1, int(one[3] or 1)))
    return tuple(sorted(found))


def share_of_node(amount: int, layout: TaskLayout, what: str, where: str) -> int:
    """Return the part of a node's ``amount`` (MiB) that each of its pods gets, rounded up.

    Raises
    ------
    InvalidInput
        The number of pods on each node is open.
    """
    return -(-amount // _per_node(layout, what, where))


def device_share_of_node(count: int, layout: TaskLayout, what: str, where: str) -> int:
    """Return how many of a node's ``count`` devices each of its pods gets.

    Raises
    ------
    InvalidInput
        The number of pods on each node is open, or the devices cannot be shared out evenly.
    """
    pods = _per_node(layout, what, where)
    if layout.pods > 1 and not layout.is_once and layout.tasks % layout.nodes:
        raise InvalidInput(
            f"{layout.tasks} tasks on {layout.nodes} nodes are not the same number on each, so"
            f" {count} devices of a node cannot be shared out",
            where=where,
            hint="make --ntasks a multiple of --nodes, or use --gpus-per-task",
        )
    return _divided(count, pods, "on each node", where)


def device_share_of_job(count: int, layout: TaskLayout, where: str) -> int:
    """Return how many of the job's ``count`` devices each pod gets.

    Raises
    ------
    InvalidInput
        They cannot be shared out evenly.
    """
    return _divided(count, layout.pods, "in all", where)


def _per_node(layout: TaskLayout, what: str, where: str) -> int:
    pods = layout.most_per_node
    if not pods:
        raise InvalidInput(
            f"{what} is for each node, and {layout.tasks} tasks may use any number of nodes",
            where=where,
            hint="add --nodes or --ntasks-per-node, or use --mem-per-cpu, --gpus-per-task",
        )
    return pods


def _divided(count: int, pods: int, among: str, where: str) -> int:
    if count % pods:
        raise InvalidInput(
            f"{count} devices cannot be shared out to {pods} tasks {among}: each pod has its own",
            where=where,
            hint=f"use a multiple of {pods} devices, or as many tasks as devices",
        )
    return count // pods


def _bounded(count: int, where: str) -> int:
    if count > NODES_MAX:
        raise InvalidInput(
            f"{count} tasks are more than {NODES_MAX}",
            where=where,
            value=count,
            hint="use fewer nodes, or fewer tasks on each",
        )
    return count


def _kilo(text: str) -> int:
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)
