"""What a FluxJob may wait for: edges to other FluxJobs, and what their states make of it.

Pure. ``outcome`` is the rule for one edge; ``judge`` puts the edges of one FluxJob together and
says in words what it waits for. Called by ``db.life.dependencies``; the rule for one edge is
repeated in ``db/sql/31_dependencies.sql``, and a test compares the two. Slurm's and Flux's words
are kept: ``afterok``, ``afternotok``, ``afterany``, ``after``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fluxqueue.fluxjob.states import FluxJobState

NAMED_MAX = 3
"""Edges named in one reason; further ones are counted."""


class DependencyKind(StrEnum):
    """When an edge lets its FluxJob go."""

    AFTEROK = "afterok"
    AFTERNOTOK = "afternotok"
    AFTERANY = "afterany"
    AFTER = "after"


class Outcome(StrEnum):
    """What an edge says now."""

    UNKNOWN = "unknown"
    WAITING = "waiting"
    SATISFIED = "satisfied"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Target:
    """The FluxJob that an edge waits for, as its row says."""

    jobid: int
    state: FluxJobState
    has_started: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """One dependency: ``job`` as its author wrote it, and whom that means; None: nobody yet.

    ``is_satisfied``: it was satisfied before and stays so.
    """

    kind: DependencyKind
    job: str
    target: Target | None = None
    is_satisfied: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reason`` is empty where nothing is waited for; ``is_never``: it can never come true."""

    reason: str = ""
    is_never: bool = False


def outcome(edge: Edge) -> Outcome:
    """Say what one edge makes of the present state of its target."""
    target = edge.target
    if edge.is_satisfied:
        return Outcome.SATISFIED
    if target is None:
        return Outcome.UNKNOWN
    if edge.kind is DependencyKind.AFTER and (
        target.has_started or target.state is FluxJobState.RUNNING
    ):
        return Outcome.SATISFIED
    if not target.state.is_final:
        return Outcome.WAITING
    is_ok = target.state is FluxJobState.COMPLETED
    satisfied_by = {
        DependencyKind.AFTERANY: True,
        DependencyKind.AFTEROK: is_ok,
        DependencyKind.AFTERNOTOK: not is_ok,
        DependencyKind.AFTER: False,  # it ended and never ran
    }
    return Outcome.SATISFIED if satisfied_by[edge.kind] else Outcome.NEVER


def judge(edges: Sequence[Edge], circle: Sequence[str] = ()) -> Verdict:
    """Put all edges of one FluxJob together: every one must be satisfied.

    ``circle``: names from the FluxJob along what it waits for and back to itself, if it is so.
    """
    outcomes = [(edge, outcome(edge)) for edge in edges]
    never = [edge for edge, one in outcomes if one is Outcome.NEVER]
    if never:
        return Verdict(_never(never), is_never=True)
    if circle:
        return Verdict(
            f"waits for itself: {' -> '.join(circle)}; change fluxqueue/depends-on of one of"
            " them, or cancel it",
            is_never=True,
        )
    left = [_wait(edge) for edge, one in outcomes if one in {Outcome.UNKNOWN, Outcome.WAITING}]
    more = f" and {len(left) - NAMED_MAX} more" if len(left) > NAMED_MAX else ""
    return Verdict(f"depends on {'; on '.join(left[:NAMED_MAX])}{more}" if left else "")


def _wait(edge: Edge) -> str:
    if edge.target is None:
        return f"{edge.job}, which does not exist (yet)"
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
        f"can never run: {', '.join(told)}{more}; submit that again under its name, change"
        " fluxqueue/depends-on, or cancel this one"
    )
