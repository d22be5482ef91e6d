"""When a workload may start, as its author writes it: dependencies and a begin time.

Called by ``annotations``. The grammar is Slurm's: ``afterok:a:b,afterany:c``. Commas and blanks
both separate. An item without a type continues the last one. ``singleton:a`` names what takes
turns. Errors name the field, the value and the fix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.dependency import DependencyKind
from fluxqueue.workload.spans import read_span

DEPENDENCIES_MAX = 100
"""Maximum number of edges of one workload."""
DEPENDS_ON_MAX = 40_000
"""Longest text that names them (characters). A name has 253 at most."""

BEGIN_MAX_S = 10 * 366 * 86_400
"""Farthest relative begin time: ten years (seconds)."""

BEGIN_LEAST_S, BEGIN_LAST_S = 0, 253_402_300_799
"""Earliest and latest absolute begin time: the epoch, and the last second of the year 9999."""

_JOB = re.compile(r"[0-9]{1,18}|[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")
_DEPENDS_HINT = (
    "write afterok:<job>[,<job>...], also afterany:, afternotok:, after:, where <job> is the name"
    " of a Job or FluxJob of this namespace, or a jobid; or singleton:<name>"
)
_BEGIN_HINT = "write a time with its zone, 2030-01-31T08:00:00Z, or a time from now: +2h, now+1d6h"


@dataclass(frozen=True, slots=True)
class Dependency:
    """One edge: ``job`` is the name or the jobid that the author wrote."""

    kind: DependencyKind
    job: str

    def to_json(self) -> dict[str, str]:
        """Return the form of the FluxJob's ``spec.dependsOn`` and of the row."""
        return {"type": str(self.kind), "job": self.job}


@dataclass(frozen=True, slots=True)
class BeginTime:
    """The earliest start: epoch seconds, or seconds after the workload's creation."""

    at_s: int | None = None
    after_s: int | None = None

    def resolve(self, created_at_s: int) -> int:
        """Return epoch seconds for a workload that was created at ``created_at_s``."""
        return self.at_s if self.at_s is not None else created_at_s + (self.after_s or 0)


def parse_depends_on(text: str, where: str) -> tuple[Dependency, ...]:
    """Read ``afterok:a,b afterany:c``. Repeated edges count once.

    Raises
    ------
    InvalidInput
        An unknown type, a name that no workload can have, nothing at all, or too many.
    """
    if len(text) > DEPENDS_ON_MAX:
        raise _error(f"is longer than {DEPENDS_ON_MAX} characters", text, where)
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
        It is something else, has no zone, is more than ten years after the creation, or is a time
        that no FluxJob and no row can hold.
    """
    said = text.strip()
    # Each step consumes what it has read, so that no text is read twice.
    after = said.removeprefix("now").lstrip()
    if after.startswith("+"):
        return BeginTime(after_s=_relative(after[1:].lstrip(), text, where))
    try:
        at = datetime.fromisoformat(said)
        if "T" not in said.upper() or at.tzinfo is None:
            raise ValueError(text)
        at_s = int(at.astimezone(UTC).timestamp())
    except (ValueError, OverflowError):
        raise _no_begin_time(text, where) from None
    if not BEGIN_LEAST_S <= at_s <= BEGIN_LAST_S:
        raise InvalidInput(
            f"{text!r} is outside the years 1970 to 9999",
            where=where,
            value=text,
            hint="leave it out to start at any time",
        )
    return BeginTime(at_s=at_s)


def _relative(span: str, text: str, where: str) -> int:
    """Return seconds from now. A number without a unit counts seconds and comes last."""
    after_s = read_span(span, may_end_bare=True)
    if after_s is None:
        raise _no_begin_time(text, where)
    if after_s > BEGIN_MAX_S:
        raise InvalidInput(
            f"{text!r} is too far", where=where, value=text, hint="at most ten years"
        )
    return after_s


def _no_begin_time(text: str, where: str) -> InvalidInput:
    return InvalidInput(f"{text!r} is no begin time", where=where, value=text, hint=_BEGIN_HINT)
