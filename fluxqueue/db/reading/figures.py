"""Figures for people, read from the rows: FluxJobs as a table, nodes as bars, a run in numbers.

The demo calls it, and so does other code that shows the queue. Reads only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fluxqueue.db.database import Database
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns


@dataclass(frozen=True, slots=True)
class FluxJobLine:
    """One FluxJob as shown. ``nodes`` are those of its last allocation, times are in seconds.

    ``waited_s`` counts from submission to allocation (or its end, or now). ``ran_s`` counts from
    then to its end (or now). None before.
    """

    uid: str
    jobid: int
    name: str
    state: str
    reason: str
    size: int
    nodes: Sequence[str]
    waited_s: float
    ran_s: float | None


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """One node's cpu, in millicores."""

    node: str
    capacity_m: int
    allocated_m: int
    foreign_m: int


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What the rows say of all FluxJobs of one namespace; times in seconds.

    ``makespan_s``: first submission to last end, of those that ran. ``mean_wait_s``: submission to
    allocation. ``leaked_slots``: slots still counted although their FluxJob has ended.
    """

    states: Mapping[str, int]
    makespan_s: float
    mean_wait_s: float
    leaked_slots: int

    @property
    def jobs(self) -> int:
        """All FluxJobs."""
        return sum(self.states.values())


async def fluxjob_lines(database: Database, namespace: str) -> list[FluxJobLine]:
    """All FluxJobs of a namespace in order of submission."""
    return await database.fetch(Q.fluxjob_lines, FluxJobLine, namespace=namespace)


async def node_lines(database: Database) -> list[NodeFigures]:
    """Cpu of every node, from the view ``node_usage``."""
    return await database.fetch(Q.node_lines, NodeFigures)


async def run_figures(database: Database, namespace: str) -> RunFigures:
    """The numbers at the end of a run."""
    async with database.begin() as tx:
        states = dict(await tx.fetch(Q.count_by_state, columns, namespace=namespace))
        ((makespan_s, mean_wait_s),) = await tx.fetch(Q.run_times, columns, namespace=namespace)
        (leaked,) = await tx.fetch(Q.count_leaked_slots, int, namespace=namespace)
    return RunFigures(states, makespan_s, mean_wait_s, leaked)
