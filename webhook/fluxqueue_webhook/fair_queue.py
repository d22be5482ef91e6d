"""Admissions that wait for a thread, with turns for peers, namespaces and users.

``bounded`` uses it. Without turns, a hundred costly requests of one tenant delay the next request
of every other tenant by all of their processor time.

The address of the connection comes first: a request from elsewhere can name any namespace
and any user. The namespace is before the user because a tenant can create many service accounts in
its namespace, and each of them is a user.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from fluxqueue.fluxjob.turns import Turns

Item = TypeVar("Item")

HEAD_BYTES = 16_384
"""The part of a review that is searched for its requester. The object comes after it."""
_REQUESTER = re.compile(
    rb'"operation":"[A-Z]{1,10}","userInfo":\{"username":"(?P<user>(?:[^"\\]|\\.){0,500})"'
)
_NAMESPACE = re.compile(rb'"namespace":"(?P<namespace>[a-z0-9.-]{0,253})","operation":"')


class Lane(NamedTuple):
    """The tenant that a request counts for, from the outermost level."""

    peer: str
    namespace: str
    user: str


NO_LANE = Lane("", "", "")


def lane_of(body: bytes, peer: str = "") -> Lane:
    """Return the lane of a review without parsing it.

    All requests of one peer without a readable requester share one lane.

    An API server writes the namespace and the user before the object. Inside a JSON text the
    quotes of these patterns are escaped, so an object cannot contain them earlier.
    """
    head = body[:HEAD_BYTES]
    requester = _REQUESTER.search(head)
    if requester is None:
        return Lane(peer, "", "")
    namespace = _NAMESPACE.search(head, 0, requester.start() + len(b'"operation":"'))
    found = b"" if namespace is None else namespace["namespace"]
    return Lane(peer, found.decode(), requester["user"].decode(errors="replace"))


class FairQueue(Generic[Item]):
    """Items by lane, safe between threads. Peers take turns, their namespaces, and their users.

    Parameters
    ----------
    at_once : The most items of one peer, and of one namespace, that are taken and not done.
    waiting_max : The most items of each that wait.
    """

    def __init__(self, *, at_once: Sequence[int], waiting_max: Sequence[int]) -> None:
        self._at_once, self._waiting_max = at_once, waiting_max
        self._turns: Turns[int] = Turns()
        self._items: dict[str, tuple[Lane, Item]] = {}
        self._waiting: Counter[tuple[str, ...]] = Counter()
        self._taken: Counter[tuple[str, ...]] = Counter()
        self._number = 0
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, lane: Lane, item: Item) -> bool:
        """Add an item. Return False if too many of its peer or namespace wait."""
        with self._changed:
            bounds = enumerate(self._waiting_max, 1)
            if any(self._waiting[lane[:level]] >= most for level, most in bounds):
                return False
            _count(self._waiting, lane, 1)
            self._number += 1
            key = str(self._number)
            self._items[key] = lane, item
            self._turns.put(key, lane, self._number)
            self._changed.notify()
            return True

    def take(self, done: Lane | None = None) -> tuple[Lane, Item] | None:
        """Wait for the next item, and return it with its lane. None: the queue is closed.

        Parameters
        ----------
        done : The lane of the item that the calling thread took before, and needs no longer.
            It is reported here because a report by itself would wake another thread for the next
            item. That costs more than an admission.
        """
        with self._changed:
            if done is not None:
                _count(self._taken, done, -1)
            while (key := self._turns.take_next(self._may_take)) is None:
                if self._is_closed and not self._items:
                    return None
                self._changed.wait()
            lane, item = self._items.pop(key)
            _count(self._waiting, lane, -1)
            _count(self._taken, lane, 1)
            # After the last item, the threads that wait for a turn have to end, too.
            if self._is_closed and not self._items:
                self._changed.notify_all()
            return lane, item

    def _may_take(self, path: tuple[str, ...]) -> bool:
        level = len(path)
        return level > len(self._at_once) or self._taken[path] < self._at_once[level - 1]

    def close(self) -> None:
        """Let ``take`` return None after the waiting items."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


def _count(counter: Counter[tuple[str, ...]], lane: Lane, more: int) -> None:
    """Add ``more`` to the counts of a lane's peer and namespace. Counts of zero are dropped."""
    for path in (lane[:1], lane[:2]):
        counter[path] += more
        if not counter[path]:
            del counter[path]
