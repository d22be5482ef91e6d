"""The times that can be replayed. Pure.

``recorded_day`` checks files with it, and the command line and the view server what they are asked
for, before they read the database.
"""

from __future__ import annotations

from fluxqueue.errors import InvalidInput

JOBS_MAX = 50_000
SPAN_MAX_S = 31 * 86_400


def check_period(since_s: int, until_s: int, now_s: int) -> None:
    """Refuse a time that cannot be replayed. All times are epoch seconds.

    Raises
    ------
    InvalidInput
        It is empty, too long, or has not begun yet. ``where`` is ``from`` or ``until``.
    """
    if since_s >= now_s:
        raise InvalidInput(
            "is not in the past", where="from", hint="give a time before now: 1d, 2030-01-31"
        )
    if until_s <= since_s:
        raise InvalidInput("is not after `from`", where="until", hint="give a later time")
    if until_s - since_s > SPAN_MAX_S:
        days = SPAN_MAX_S // 86_400
        raise InvalidInput(
            f"is more than {days} days after `from`", where="until", hint="replay a shorter time"
        )
