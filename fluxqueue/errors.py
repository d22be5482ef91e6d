"""The one exception tree. Every layer raises from here. This module imports nothing of ours.

::

    FluxQueueError
    ├── InvalidInput            the user must change something, never retried
    │   ├── InvalidJobspec      a jobspec, or a Kubernetes object that cannot become one
    │   │   └── TooComplex      a request that costs more work than one request may
    │   ├── InvalidGraph        JGF, GRUG or node data that is not a containment graph
    │   └── InvalidSettings     configuration: environment, flags, kubeconfig
    │       └── WrongCluster    the database belongs to another cluster
    ├── MatchError              the two outcomes of a failed match, never confused
    │   ├── InsufficientResources   busy now, try later        (Fluxion: EBUSY)
    │   └── Unsatisfiable           can never fit as it is     (Fluxion: ENODEV)
    ├── Transient               the same call may succeed later, callers retry with back-off
    │   ├── DatabaseUnavailable
    │   ├── OlderCodeRuns       a migration would break processes that are still connected
    │   └── ApiUnavailable      connection refused, reset, 429, 5xx (``retry_after_s``)
    ├── ApiError                the API server refused (``code``, ``reason``, ``body``)
    │   ├── NotFound
    │   ├── Conflict            409: read again, then decide again
    │   ├── Invalid             422: the request contradicts the object's present state
    │   └── Gone                410: the watch is too old, list again
    ├── WorkFailed              a job that a client follows has failed, or was cancelled
    ├── NotQueued               the queue has not taken a workload
    ├── WaitTimeout             a client waited long enough, the job continues (a TimeoutError, too)
    │   ├── QueuedTimeout       in the queue
    │   └── RunningTimeout      while it ran
    ├── EffectsFailed           a part of a task has failed, and only that part is run again
    └── LostLeadership          this process no longer holds the term, nothing was committed
        └── DatabaseWentBack    because the database lacks commits that were seen before
"""

from __future__ import annotations

import re
from typing import Any

SHOWN_MAX = 60
"""Longest value shown in an error message, in characters."""
QUOTED_MAX = 250
"""Longest value that a message quotes whole: users must be able to read a path to its end."""
MESSAGE_MAX = 1000
"""Longest message, and longest place, of an error. Both may quote a user's text."""


class FluxQueueError(Exception):
    """Root of all errors raised on purpose.

    ``is_retryable``: the same call may succeed later without a change.
    """

    is_retryable = False


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


class InvalidInput(FluxQueueError):
    """Input that its author must change.

    Parameters
    ----------
    where : The field or place (``spec.template.spec...``, ``line 3``).
    value : The value that was found there.
    hint : The way to fix it.
    """

    def __init__(
        self, message: str, *, where: str = "", value: object = None, hint: str = ""
    ) -> None:
        if isinstance(value, str) and len(value) > QUOTED_MAX:
            message = message.replace(repr(value), _cut(repr(value), SHOWN_MAX))
        self.message, self.where = _cut(message, MESSAGE_MAX), _cut(where, MESSAGE_MAX)
        self.value, self.hint = value, _cut(hint, MESSAGE_MAX)
        super().__init__(str(self))

    def __str__(self) -> str:
        shown = self._shown_value()
        value = f" = {shown}" if shown and self.where else ""
        place = f"{self.where}{value}: " if self.where else ""
        hint = f". Fix: {self.hint}" if self.hint else ""
        return f"{place}{self.message}{hint}"

    def _shown_value(self) -> str:
        """Return the value as text if it is a scalar and the message does not have it already."""
        value = self.value
        if not isinstance(value, (str, int, float)):
            return ""
        if isinstance(value, str) and len(value) > QUOTED_MAX:
            # Searching a long value in the message would cost the square of its length.
            shown = _cut(repr(value[: 2 * SHOWN_MAX]), SHOWN_MAX)
            return "" if shown in self.message else shown
        if isinstance(value, int) and value.bit_length() > 64:
            return ""  # Python refuses to write very large numbers
        # A number in the field's name (``resources[0]``) is not the value.
        said = f"{self.message} {self.where}" if isinstance(value, str) else self.message
        if re.search(rf"(?<![\w.-]){re.escape(str(value))}(?![\w.])", said):
            return ""
        return _cut(repr(value), SHOWN_MAX)


class InvalidJobspec(InvalidInput):
    """A jobspec, or a Kubernetes object that cannot become one."""


class TooComplex(InvalidJobspec):
    """A request that is too large, or costs more work than one request may."""


class InvalidGraph(InvalidInput):
    """A resource graph document that is not a containment tree."""


class InvalidSettings(InvalidInput):
    """Configuration that cannot be used. Values may be secrets: only the message shows them."""

    def _shown_value(self) -> str:
        return ""


class WrongCluster(InvalidSettings):
    """The database belongs to another cluster."""


class MatchError(FluxQueueError):
    """A match that did not succeed. ``reason`` is a sentence for the user."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class InsufficientResources(MatchError):
    """Busy now: the same request can succeed when something ends (EBUSY)."""

    is_retryable = True


class Unsatisfiable(MatchError):
    """Never possible on the present graph (ENODEV)."""


class Transient(FluxQueueError):
    """The same call may succeed later."""

    is_retryable = True


class DatabaseUnavailable(Transient):
    """Postgres cannot be reached, or broke the connection."""


class SchemaMismatch(InvalidSettings):
    """The schema of the database is not what its revision says."""


class OlderCodeRuns(Transient):
    """A migration waits until processes of an older release are gone."""


class ApiUnavailable(Transient):
    """The API server cannot be reached, is overloaded or failed internally."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class ApiError(FluxQueueError):
    """The API server answered with a refusal. ``body`` is its Status object."""

    def __init__(self, code: int, reason: str, message: str, body: dict[str, Any]) -> None:
        self.code, self.reason, self.body = code, reason, body
        super().__init__(f"{code} {reason}: {message}")

    @property
    def is_namespace_ending(self) -> bool:
        """Return whether nothing new is accepted because the namespace is being deleted (a 403)."""
        causes = (self.body.get("details") or {}).get("causes") or ()
        return any(cause.get("reason") == "NamespaceTerminating" for cause in causes)


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: AlreadyExists or a stale resourceVersion. ``reason`` tells which."""


class Invalid(ApiError):
    """422: refused by validation, an immutable field or a JSON Patch ``test``."""


class Gone(ApiError):
    """410: the resourceVersion is too old for a watch."""


class WorkFailed(FluxQueueError):
    """A job that a client follows did not complete. ``state`` and ``reason`` are its last ones."""

    def __init__(self, name: str, state: str, reason: str, detail: str = "") -> None:
        self.name, self.state, self.reason = name, state, reason
        why = ": ".join(one for one in (reason, detail) if one)
        super().__init__(_cut(f"{name} {state}{f': {why}' if why else ''}", MESSAGE_MAX))


class NotQueued(FluxQueueError):
    """The queue has not taken a workload: it has no FluxJob."""


class WaitTimeout(FluxQueueError, TimeoutError):
    """A client waited for the longest time that it was given. The job continues."""


class QueuedTimeout(WaitTimeout):
    """The job was in the queue for too long."""


class RunningTimeout(WaitTimeout):
    """The job ran for too long."""


class EffectsFailed(FluxQueueError):
    """Effects of a task have failed. They stay pending in their rows, and the task is run again."""

    is_retryable = True


class LostLeadership(FluxQueueError):
    """The term has moved on. The transaction was rolled back."""


class DatabaseWentBack(LostLeadership):
    """The database knows less than a process has committed or read before. All terms are over."""
