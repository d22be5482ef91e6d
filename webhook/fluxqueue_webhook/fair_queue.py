"""Admissions that wait for a thread, with turns for each namespace and each user in it.

``bounded`` uses it. Without turns, a hundred costly requests of one tenant delay the next request
of every other tenant by all of their processor time.

The namespace comes first because a tenant can create many service accounts in its namespace, and
each of them is a user.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict, deque
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")

HEAD_BYTES = 16_384
"""The part of a review that is searched for its requester. The object comes after it."""
_REQUESTER = re.compile(
    rb'"operation":"[A-Z]{1,10}","userInfo":\{"username":"(?P<user>(?:[^"\\]|\\.){0,500})"'
)
_NAMESPACE = re.compile(rb'"namespace":"(?P<namespace>[a-z0-9.-]{0,253})","operation":"')


class Lane(NamedTuple):
    """The tenant that a request counts for."""

    namespace: str
    user: str


NO_LANE = Lane("", "")
"""All requests without a readable requester share one lane."""


def lane_of(body: bytes) -> Lane:
    """Return the lane of a review without parsing it.

    An API server writes the namespace and the user before the object. Inside a JSON text the
    quotes of these patterns are escaped, so an object cannot contain them earlier.
    """
    head = body[:HEAD_BYTES]
    requester = _REQUESTER.search(head)
    if requester is None:
        return NO_LANE
    namespace = _NAMESPACE.search(head, 0, requester.start() + len(b'"operation":"'))
    found = b"" if namespace is None else namespace["namespace"]
    return Lane(found.decode(), requester["user"].decode(errors="replace"))


class FairQueue(Generic[Item]):
    """Items by lane, safe between threads. Namespaces take turns, and so do their users.

    Parameters
    ----------
    at_once : The most items of one namespace that are taken and not done.
    waiting_max : The most items of one namespace that wait.
    """

    def __init__(self, *, at_once: int, waiting_max: int) -> None:
        self._at_once, self._waiting_max = at_once, waiting_max
        self._lanes: OrderedDict[str, OrderedDict[str, deque[Item]]] = OrderedDict()
        self._waiting: dict[str, int] = {}
        self._taken: dict[str, int] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, lane: Lane, item: Item) -> bool:
        """Add an item. Return False if too many of its namespace wait."""
        with self._changed:
            waiting = self._waiting.get(lane.namespace, 0)
            if waiting >= self._waiting_max:
                return False
            self._waiting[lane.namespace] = waiting + 1
            users = self._lanes.setdefault(lane.namespace, OrderedDict())
            users.setdefault(lane.user, deque()).append(item)
            self._changed.notify()
            return True

    def take(self, done: str | None = None) -> tuple[str, Item] | None:
        """Wait for the next item, and return it with its namespace. None: the queue is closed.

        Parameters
        ----------
        done : The namespace of the item that the calling thread took before, and needs no longer.
            It is reported here because a report by itself would wake another thread for the next
            item. That costs more than an admission.
        """
        with self._changed:
            if done is not None:
                self._give_back(done)
            while True:
                for namespace in self._lanes:
                    if self._taken.get(namespace, 0) < self._at_once:
                        return namespace, self._take_of(namespace)
                if self._is_closed and not self._lanes:
                    return None
                self._changed.wait()

    def _give_back(self, namespace: str) -> None:
        self._taken[namespace] -= 1
        if not self._taken[namespace]:
            del self._taken[namespace]

    def _take_of(self, namespace: str) -> Item:
        users = self._lanes[namespace]
        user, items = next(iter(users.items()))
        item = items.popleft()
        # To the end: the other users and namespaces come first the next time.
        if items:
            users.move_to_end(user)
        else:
            del users[user]
        if users:
            self._lanes.move_to_end(namespace)
        else:
            del self._lanes[namespace]
        self._taken[namespace] = self._taken.get(namespace, 0) + 1
        self._waiting[namespace] -= 1
        if not self._waiting[namespace]:
            del self._waiting[namespace]
        # After the last item, the threads that wait for a turn have to end, too.
        if self._is_closed and not self._lanes:
            self._changed.notify_all()
        return item

    def close(self) -> None:
        """Let ``take`` return None after the waiting items."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
