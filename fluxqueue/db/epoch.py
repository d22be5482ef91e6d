"""Whether the database has gone back: to a backup, or to a replica that lacked the last commits.

Each transaction that decides counts itself in the row of its role (``leadership.check_term``). A
process remembers the highest counts that it has seen (``Marks``). A database that shows less has
lost commits, so the rows know less than the cluster. The timeline of Postgres changes with each
failover and each recovery to a point in time. It tells the same to processes without memory. The
controller also keeps the marks on its Lease, for a time after all processes have restarted.

``begin_anew`` follows, whichever process sees it first. It ends all terms and takes back the
confirmation that the rows match the cluster. The next controller compares them before any decision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import orjson

from fluxqueue.db.queries import Q
from fluxqueue.errors import DatabaseWentBack
from fluxqueue.process import metrics

logger = logging.getLogger(__name__)

ANNOTATION = "fluxqueue/database-marks"
"""Annotation of the controller's Lease: ``Marks.to_text``."""

_MARK_MAX = 2**53

T = TypeVar("T")


@dataclass(slots=True)
class Marks:
    """The highest term and count of commits by role, and the highest jobid, that were seen."""

    roles: dict[str, tuple[int, int]] = field(default_factory=dict)
    jobid: int = 0

    def note(self, other: Marks) -> None:
        """Add what was seen otherwise."""
        for role, (term, commits) in other.roles.items():
            before = self.roles.get(role, (0, 0))
            self.roles[role] = max(before[0], term), max(before[1], commits)
        self.jobid = max(self.jobid, other.jobid)

    def count(self, role: str) -> None:
        """Add a commit of a role."""
        term, commits = self.roles[role]
        self.roles[role] = term, commits + 1

    def copy(self) -> Marks:
        """Return a copy that later notes do not change."""
        return Marks(dict(self.roles), self.jobid)

    def exceed(self, other: Marks) -> bool:
        """Return whether a role has less in ``other`` than was seen."""
        return any(
            term > other.roles.get(role, (0, 0))[0] or commits > other.roles.get(role, (0, 0))[1]
            for role, (term, commits) in self.roles.items()
        )

    def to_text(self) -> str:
        """Return the form of the annotation."""
        return orjson.dumps({"roles": self.roles, "jobid": self.jobid}).decode()


class MarksRow(NamedTuple):
    """What the database shows: term and count of commits by role, and the highest jobid."""

    roles: Mapping[str, Sequence[int]]
    jobid: int
    is_same_timeline: bool


class RoleRow(NamedTuple):
    """The same with the term of one role, and whether a controller compares the rows."""

    term: int
    jobid: int
    roles: Mapping[str, Sequence[int]]
    is_same_timeline: bool
    is_observed: bool


class Marking(Protocol):
    """An open transaction with the marks that its process has seen, and those that it finds."""

    seen: Marks
    found: Marks

    async def fetch(self, query: str, row: Callable[..., T], /, **values: Any) -> list[T]:
        """Run one statement and return its rows."""

    async def execute(self, query: str, /, **values: Any) -> int:
        """Run one statement and return the number of rows it touched."""


def read_marks(text: str) -> Marks:
    """Read the annotation. What is not in its form counts as nothing seen."""
    try:
        found = orjson.loads(text)
        roles = {str(role): (int(term), int(n)) for role, (term, n) in found["roles"].items()}
        marks = Marks(roles, int(found["jobid"]))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return Marks()
    numbers = [marks.jobid, *(number for pair in roles.values() for number in pair)]
    return marks if all(0 <= one <= _MARK_MAX for one in numbers) else Marks()


def compare(seen: Marks, row: MarksRow | RoleRow) -> Marks:
    """Return what a statement found of all roles.

    Parameters
    ----------
    seen : copied before the statement began: another transaction may commit meanwhile.

    Raises
    ------
    DatabaseWentBack
        It is less than was seen, or the timeline is another one.
    """
    roles = {role: (term, commits) for role, (term, commits) in row.roles.items()}
    found = Marks(roles, row.jobid)
    if not row.is_same_timeline:
        raise DatabaseWentBack("the timeline of Postgres is another one: it may lack commits")
    if seen.exceed(found):
        raise DatabaseWentBack(f"seen were {seen.to_text()}, and it shows {found.to_text()}")
    return found


async def look(tx: Marking) -> None:
    """Compare and note the marks, in a transaction without ``leadership.check_term``.

    Raises
    ------
    DatabaseWentBack
        As of ``compare``.
    """
    seen = tx.seen.copy()
    (row,) = await tx.fetch(Q.marks, MarksRow)
    tx.found = compare(seen, row)


async def begin_anew(tx: Marking) -> None:
    """End all terms, and have the rows compared before any decision. Once for all processes."""
    await tx.execute(Q.lock_leadership)
    try:
        await look(tx)
    except DatabaseWentBack as error:
        metrics.DATABASE_WENT_BACK.inc()
        logger.warning("the database went back", extra={"action": "epoch", "error": str(error)})
    else:
        return
    for role, (term, commits) in sorted(tx.seen.roles.items()):
        await tx.execute(
            Q.raise_marks,
            role=role,
            term=term,
            commits=commits,
        )
    await tx.execute(Q.end_terms_anew)
    # Numbers that were given are not given again, also where nothing in the cluster has them now.
    await tx.execute(
        Q.pass_jobids,
        jobid=tx.seen.jobid,
    )
