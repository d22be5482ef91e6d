"""Places for requests that are answered at once, with a bounded share for each caller.

``server`` takes one for each request that needs the database or the API server. A public file, a
login and a logout need none. Users and unknown callers have places of their own. So requests
without a valid token never keep a user out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fluxqueue.errors import FluxQueueError


class TooManyRequests(FluxQueueError):
    """All places are taken, or all those of this caller."""


class RequestPlaces:
    """Places by caller, within one event loop.

    Parameters
    ----------
    most, of_each : The most places of all callers, and of one.
    """

    def __init__(self, most: int, of_each: int) -> None:
        self._most, self._of_each = most, of_each
        self._taken: Counter[str] = Counter()

    @contextmanager
    def hold(self, caller: str) -> Iterator[Callable[[], None]]:
        """Hold a place, and yield a function that gives it back before the end.

        Raises
        ------
        TooManyRequests
            None is free for this caller.
        """
        if self._taken[caller] >= self._of_each or self._taken.total() >= self._most:
            raise TooManyRequests("too many requests at once: try again")
        self._taken[caller] += 1
        is_held = True

        def leave() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._taken[caller] -= 1
                if not self._taken[caller]:
                    del self._taken[caller]

        try:
            yield leave
        finally:
            leave()
