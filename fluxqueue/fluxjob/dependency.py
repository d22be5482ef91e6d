"""Dependencies of a job: edges to other jobs, and what the states of those mean. Pure.

``outcome`` is the rule for one edge. ``judge`` combines the edges of one job and returns in words
what it waits for. ``db.store.dependencies`` calls both. ``db/sql/31_dependencies.sql`` repeats the
rule for one edge, and a test compares the two. The words are those of Slurm and Flux: ``afterok``,
``afternotok``, ``afterany``, ``after``, ``singleton``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fluxqueue.fluxjob.states import FluxJobState

NAMED_MAX = 3
"""Edges named in one reason. The rest is counted."""


class DependencyKind(StrEnum):
    """What must happen to its target before an edge is satisfied.

    The targets of ``SINGLETON`` are all jobs of the same user and name that are ahead of it.
    """

    AFTEROK = "afterok"
    AFTERNOTOK = "afternotok"
    AFTERANY = "afterany"
    AFTER = "after"
    SINGLETON = "singleton"


class DependencyOutcome(StrEnum):
    """The result of an edge for the present state of its target."""

    UNKNOWN = "unknown"
    WAITING = "waiting"
    SATISFIED = "satisfied"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Target:
    """The job that an edge waits for, from its row."""

    jobid: int
    state: FluxJobState
    has_started: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """One dependency of a job.

    ``job`` is the target as its author wrote it. ``target`` is the job that this means, None if it
    does not exist yet. Of a singleton it is the newest one ahead, None if there is none.
    ``is_satisfied``: it was satisfied before and stays so.
    """

    kind: DependencyKind
    job: str
    target: Target | None = None
    is_satisfied: bool = False


@dataclass(frozen=True, slots=True)
class DependencyVerdict:
    """The result of all edges of a job.

    ``reason`` is empty if the job waits for nothing. ``is_never``: an edge can never be satisfied.
    """

    reason: str = ""
    is_never: bool = False


def outcome(edge: Edge) -> DependencyOutcome:
    """Return the outcome of one edge for the present state of its target."""
    target = edge.target
    if edge.is_satisfied or (target is None and edge.kind is DependencyKind.SINGLETON):
        return DependencyOutcome.SATISFIED
    if target is None:
        return DependencyOutcome.UNKNOWN
    if edge.kind is DependencyKind.AFTER and (
        target.has_started or target.state is FluxJobState.RUNNING
    ):
        return DependencyOutcome.SATISFIED
    if not target.state.is_final:
        return DependencyOutcome.WAITING
    is_ok = target.state is FluxJobState.COMPLETED
    satisfied_by = {
        DependencyKind.AFTERANY: True,
        DependencyKind.SINGLETON: True,
        DependencyKind.AFTEROK: is_ok,
        DependencyKind.AFTERNOTOK: not is_ok,
        DependencyKind.AFTER: False,  # it ended and never ran
    }
    return DependencyOutcome.SATISFIED if satisfied_by[edge.kind] else DependencyOutcome.NEVER


def judge(edges: Sequence[Edge], circle: Sequence[str] = ()) -> DependencyVerdict:
    """Combine all edges of one job: every edge must be satisfied.

    Parameters
    ----------
    circle : Names from the job along its dependencies and back to itself, empty if there is no
        circle.
    """
    outcomes = [(edge, outcome(edge)) for edge in edges]
    never = [edge for edge, one in outcomes if one is DependencyOutcome.NEVER]
    if never:
        return DependencyVerdict(_never(never), is_never=True)
    if circle:
        return DependencyVerdict(
            f"waits for itself: {' -> '.join(circle)}; change fluxqueue/depends-on of one of"
            " them, or cancel it",
            is_never=True,
        )
    left = [
        _wait(edge)
        for edge, one in outcomes
        if one in {DependencyOutcome.UNKNOWN, DependencyOutcome.WAITING}
    ]
    more = f" and {len(left) - NAMED_MAX} more" if len(left) > NAMED_MAX else ""
    return DependencyVerdict(f"depends on {'; on '.join(left[:NAMED_MAX])}{more}" if left else "")


def _wait(edge: Edge) -> str:
    if edge.target is None:
        return f"{edge.job}, which does not exist yet"
    number = "" if edge.job == str(edge.target.jobid) else f" (job {edge.target.jobid})"
    return f"{edge.job}{number}, which is {edge.target.state}"


def _never(edges: Sequence[Edge]) -> str:
    told = [
        f"{edge.kind}:{edge.job} (job {edge.target.jobid} is {edge.target.state})"
        for edge in edges[:NAMED_MAX]
        if edge.target is not None
    ]
    more = f" and {len(edges) - NAMED_MAX} more" if len(edges) > NAMED_MAX else ""
    return (
        f"can never run: {', '.join(told)}{more}; submit a new job of that name, change"
        " fluxqueue/depends-on, or cancel this job"
    )
