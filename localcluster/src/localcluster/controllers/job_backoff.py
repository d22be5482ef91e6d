"""How long a Job waits before it replaces failed pods. Pure.

It follows ``backoff_utils.go``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from localcluster.controllers.job_pods import finished_at
from localcluster.obj import Obj


@dataclass(frozen=True, slots=True)
class BackoffRecord:
    """Failures since the last success, and the time of the last failure."""

    failures: int = 0
    last_failure: datetime | None = None


NO_FAILURES = BackoffRecord()


def with_finished_pods(
    record: BackoffRecord, succeeded: list[Obj], failed: list[Obj]
) -> BackoffRecord:
    """Return the record after newly finished pods."""
    if not succeeded and not failed:
        return record
    failures, last = record.failures, record.last_failure
    ends = sorted(finished_at(pod) for pod in failed)
    if succeeded:
        last_success = max(finished_at(pod) for pod in succeeded)
        ends = [end for end in ends if end > last_success]
        failures, last = 0, None
    if ends:
        failures, last = failures + len(ends), ends[-1]
    return BackoffRecord(failures, last)


def delay_s(failures: int, base_s: float, cap_s: float) -> float:
    """Return the back-off in seconds after this many failures in a row."""
    if failures <= 0:
        return 0.0
    return min(cap_s, base_s * float(1 << min(failures - 1, 30)))


def remaining_s(record: BackoffRecord, now: datetime, base_s: float, cap_s: float) -> float:
    """Return the seconds to wait before new pods may be made."""
    if record.failures == 0 or record.last_failure is None:
        return 0.0
    elapsed_s = (now - record.last_failure).total_seconds()
    return max(0.0, delay_s(record.failures, base_s, cap_s) - elapsed_s)
