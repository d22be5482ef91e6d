"""``GET pods/NAME/log``: what a simulated container has written, once or with ``follow``.

``routes`` calls it. A real API server asks the kubelet. Here the pod's status says how far its
containers have come (``kinds.pod_log``), so this reads only the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping

from localcluster.kinds.pod_log import (
    LogOptions,
    Written,
    check_options,
    container_of,
    shown,
    written,
)
from localcluster.obj import Obj
from localcluster.server.machinery import Machinery
from localcluster.server.reads import bucket_of
from localcluster.server.request import Answer, ApiRequest, Target, bool_parameter
from localcluster.server.store import Event
from localcluster.server.subresources import present
from localcluster.types.decode import DecodeError, parse_time
from localcluster.types.refusals import StatusError, bad_request, not_found

TEXT = "text/plain"
_NUMBERS = ("tailLines", "limitBytes", "sinceSeconds")


def read_log(machinery: Machinery, request: ApiRequest, target: Target) -> Answer | LogStream:
    """Return the log of one container, whole or as a stream.

    A pod without a node has none (204).

    Raises
    ------
    StatusError
        400, 404 or 422, in the words of the API server or of the kubelet behind it.
    """
    options = _options(machinery, request.query, target.name)
    pod = present(machinery, target).obj
    container = container_of(pod, options.container)
    node = pod["spec"].get("nodeName")
    if not node:
        return Answer(204, b"")
    if machinery.store.get("", "nodes", "", node) is None:
        raise not_found("", "pods", node)
    so_far = written(pod, container, is_previous=options.is_previous)
    stream = LogStream(machinery, target, options, container, so_far)
    if bool_parameter(request.query, "follow"):
        return stream
    return Answer(200, stream.first(), TEXT)


def _options(machinery: Machinery, query: Mapping[str, str], name: str) -> LogOptions:
    numbers = {option: _number(query[option]) for option in _NUMBERS if option in query}
    since = _time(query["sinceTime"]) if "sinceTime" in query else ""
    check_options(
        name, numbers, has_time="sinceTime" in query, has_stream=bool(query.get("stream"))
    )
    if "sinceSeconds" in numbers:
        since_s = machinery.wall_s() - numbers["sinceSeconds"]
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since_s))
    return LogOptions(
        container=query.get("container", ""),
        is_previous=bool_parameter(query, "previous"),
        has_timestamps=bool_parameter(query, "timestamps"),
        since=since,
        tail_lines=numbers.get("tailLines"),
        limit_bytes=numbers.get("limitBytes"),
    )


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def _time(text: str) -> str:
    try:
        return parse_time(text, is_micro=False)
    except DecodeError as error:
        raise bad_request(str(error)) from None


class LogStream:
    """A followed log: an iterator of chunks that ends with the container's run."""

    content_type = TEXT

    def __init__(
        self,
        machinery: Machinery,
        target: Target,
        options: LogOptions,
        container: str,
        so_far: Written,
    ) -> None:
        self._machinery, self._target, self._options = machinery, target, options
        self._container, self._run = container, so_far
        self._left_bytes = options.limit_bytes
        self._sent = 0

    def first(self) -> bytes:
        """Return what is written now."""
        self._sent = len(self._run.lines)
        return self._bytes(shown(self._run.lines, self._options))

    def _next(self) -> bytes:
        """Return what was written since the last call."""
        new = self._run.lines[self._sent :]
        self._sent += len(new)
        return self._bytes(shown(new, self._options, is_first=False))

    def _bytes(self, lines: list[str]) -> bytes:
        text = "".join(f"{line}\n" for line in lines).encode()
        if self._left_bytes is not None:
            text = text[: self._left_bytes]
            self._left_bytes -= len(text)
        return text

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield lines as they are written.

        This ends when the run is over, the pod is deleted or the limit is reached.
        """
        follower = _Follower(self._target)
        bucket = bucket_of(self._machinery, self._target.info)
        bucket.watchers.append(follower)
        try:
            # Register first, then read: changes since the request are not lost.
            follower.begin(present(self._machinery, self._target).obj)
            if text := self.first():
                yield text
            while not self._run.is_over and self._left_bytes != 0:
                if (pod := await follower.next()) is None:
                    return
                self._run = written(pod, self._container, began=self._run.began)
                if text := self._next():
                    yield text
        except StatusError:  # The pod was deleted, or another one has its name.
            return
        finally:
            bucket.watchers.remove(follower)


class _Follower:
    """A ``store.Watching`` for the states of one pod, one after another."""

    def __init__(self, target: Target) -> None:
        self._namespace, self._name = target.namespace, target.name
        self._states: asyncio.Queue[Obj | None] = asyncio.Queue()

    def begin(self, pod: Obj) -> None:
        """Add the present state."""
        self._states.put_nowait(pod)

    def offer(self, event: Event) -> None:
        """Add a state of that pod."""
        entry = event.entry
        if (entry.namespace, entry.name) == (self._namespace, self._name):
            self._states.put_nowait(entry.obj)
            if event.type == "DELETED":
                self._states.put_nowait(None)

    def cut(self) -> None:
        """End because the server stops."""
        self._states.put_nowait(None)

    async def next(self) -> Obj | None:
        """Return the next state, or None if there will be no more."""
        return await self._states.get()
