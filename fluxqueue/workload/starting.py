"""When a workload may start, as its author writes it: dependencies and a begin time.

Called by ``annotations``. The grammar is Slurm's: ``afterok:a:b,afterany:c``; commas and blanks
both separate, and what names no type continues the last one. Errors name field, value and the way
out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.dependency import DependencyKind

DEPENDENCIES_MAX = 100
"""Edges of one workload."""

BEGIN_MAX_S = 10 * 366 * 86_400
"""Farthest relative begin time: ten years (seconds)."""

_JOB = re.compile(r"[0-9]{1,18}|(?=.{1,253}$)[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")
_RELATIVE = re.compile(r"(?:now)?\s*\+\s*((?:[0-9]{1,9}[dhms]?)+)")
_PART = re.compile(r"([0-9]{1,9})([dhms]?)")
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1, "": 1}
_DEPENDS_HINT = (
    "write afterok:<job>[,<job>...], also afterany:, afternotok:, after:, where <job> is the name"
    " of a Job or FluxJob of this namespace, or a jobid"
)
_BEGIN_HINT = "write a time with its zone, 2030-01-31T08:00:00Z, or a time from now: +2h, now+1d6h"


@dataclass(frozen=True, slots=True)
class Dependency:
    """One edge: ``job`` is the name or the jobid that the author wrote."""

    kind: DependencyKind
    job: str

    def to_json(self) -> dict[str, str]:
        """The form of the FluxJob's ``spec.dependsOn`` and of the row."""
        return {"type": str(self.kind), "job": self.job}


@dataclass(frozen=True, slots=True)
class BeginTime:
    """Not before: epoch seconds, or seconds after the workload's creation."""

    at_s: int | None = None
    after_s: int | None = None

    def resolve(self, created_at_s: int) -> int:
        """Epoch seconds for a workload that was created at ``created_at_s``."""
        return self.at_s if self.at_s is not None else created_at_s + (self.after_s or 0)


def parse_depends_on(text: str, where: str) -> tuple[Dependency, ...]:
    """Read ``afterok:a,b afterany:c``; naming an edge twice is naming it once.

    Raises
    ------
    InvalidInput
        An unknown type, a name that no workload can have, nothing at all, or too many.
    """
    found: dict[Dependency, None] = {}
    kind: DependencyKind | None = None
    for word in re.split(r"[,\s]+", text.strip(", \t\r\n")):
        head, *rest = word.split(":")
        names = [head, *rest]
        if rest:
            kind, names = _kind(head, text, where), rest
        if kind is None:
            raise _error(f"{word!r} has no type", text, where)
        for name in names:
            if not _JOB.fullmatch(name):
                raise _error(f"{name!r} is no name of a job", text, where)
            found[Dependency(kind, name)] = None
    if len(found) > DEPENDENCIES_MAX:
        raise _error(f"{len(found)} are more than {DEPENDENCIES_MAX}", text, where)
    return tuple(found)


def _kind(word: str, text: str, where: str) -> DependencyKind:
    try:
        return DependencyKind(word)
    except ValueError:
        raise _error(f"{word!r} is no type of dependency", text, where) from None


def _error(message: str, text: str, where: str) -> InvalidInput:
    return InvalidInput(message, where=where, value=text, hint=_DEPENDS_HINT)


def parse_begin_time(text: str, where: str) -> BeginTime:
    """Read a begin time: RFC 3339 with its zone, or ``+2h`` / ``now+2h`` after the creation.

    Raises
    ------
    InvalidInput
        It is something else, has no zone, or lies more than ten years after the creation.
    """
    relative = _RELATIVE.fullmatch(text.strip())
    if relative:
        after_s = sum(int(n) * _SECONDS[unit] for n, unit in _PART.findall(relative[1]))
        if after_s > BEGIN_MAX_S:
            raise InvalidInput(
                f"{text!r} is too far", where=where, value=text, hint="at most ten years"
            )
        return BeginTime(after_s=after_s)
    try:
        at = datetime.fromisoformat(text.strip())
        if "T" not in text.upper() or at.tzinfo is None:
            raise ValueError(text)
        return BeginTime(at_s=int(at.astimezone(UTC).timestamp()))
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"{text!r} is no begin time", where=where, value=text, hint=_BEGIN_HINT
        ) from None
