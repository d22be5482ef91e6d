"""``Connection``: requests to one API server, with credentials, slots and retries.

``KubeClient`` adds the verbs of Kubernetes to it. It retries what is safe to retry, and turns
refusals into the exceptions of ``fluxqueue.errors``.

429 is retried for every method, because the server did not act. 5xx with Retry-After and broken
connections are retried only for requests that may be repeated. After ``ATTEMPTS_MAX`` sends it
raises ApiUnavailable.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Self
from urllib.parse import urlencode

import orjson

from fluxqueue import __version__
from fluxqueue.errors import ApiUnavailable
from fluxqueue.kube.answer_times import AnswerTimes
from fluxqueue.kube.answers import (
    REFUSED_FROM,
    RETRY_AFTER_MAX_S,
    as_error,
    decode,
    retry_after_s,
)
from fluxqueue.kube.backoff import Backoff
from fluxqueue.kube.config import ClusterConfig
from fluxqueue.kube.slots import Slots, lane_of
from fluxqueue.kube.transport import HttpTransport, Reply, Transport, TransportError
from fluxqueue.process import metrics

ATTEMPTS_MAX = 4
FOLLOW_IDLE_S = 24 * 3600.0
TOKEN_MAX_AGE_S = 60.0
RESERVED_CONCURRENCY = 2
WHOLE = "application/json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
RETRY_BASE_S = 0.1
RETRY_CAP_S = 5.0


class Connection:
    """The connections to one API server. ``async with`` closes them.

    Parameters
    ----------
    concurrency : Maximum number of requests in flight. Watches do not count.
    timeout_s : Seconds that one send may take.
    attempts_max : Maximum number of sends of one request.
    transport : Replaces HTTP. The embedded cluster talks to itself in-process.

    ``answer_times`` measures how long the API server takes to answer at present.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        concurrency: int = 50,
        timeout_s: float = 10.0,
        attempts_max: int = ATTEMPTS_MAX,
        user_agent: str = f"fluxqueue/{__version__}",
        transport: Transport | None = None,
    ) -> None:
        self.config = config
        self._timeout_s = timeout_s
        self._attempts_max = attempts_max
        self._user_agent = user_agent
        self._given_transport = transport
        self._transport: Transport = transport or HttpTransport(config)
        self._slots = Slots(concurrency)
        self._is_background = False
        self._authorization: str | None = None
        self._authorization_until = float("-inf")
        self._reserved: Self | None = None
        self._headers_added: dict[str, str] = {}
        self.answer_times = AnswerTimes()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections, those of ``reserved()`` too."""
        if self._reserved is not None:
            await self._reserved.close()
        await self._transport.close()

    def reserved(self) -> Self:
        """Return a client with its own connections and slots and no retries, for Lease renewal.

        A burst of pod patches that fills the ordinary slots must not cost the leadership. The
        elector retries by itself, so a failed send is reported at once.
        """
        if self._reserved is None:
            self._reserved = type(self)(
                self.config,
                concurrency=RESERVED_CONCURRENCY,
                timeout_s=min(self._timeout_s, 5.0),
                attempts_max=1,
                user_agent=self._user_agent,
                transport=self._given_transport,
            )
        return self._reserved

    def acting_as(self, user: str) -> Self:
        """Return a view of this client that makes every request as ``user``.

        It needs the right to impersonate, and shares connections and slots. The view must not be
        closed, and must not outlive this client.
        """
        return self.sending({"Impersonate-User": user})

    def in_background(self) -> Self:
        """Return a view of this client for requests that no job waits for, such as statuses.

        It shares connections and slots. The view must not be closed, and must not outlive this
        client.
        """
        view = self.sending({})
        view._is_background = True
        return view

    def sending(self, headers: Mapping[str, str]) -> Self:
        """Return a view of this client that sends ``headers`` with every request.

        It shares connections and slots. The view must not be closed, and must not outlive this
        client.
        """
        view = copy.copy(self)
        view._headers_added = {**self._headers_added, **headers}
        view._reserved = None
        return view

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        timeout_s: float | None = None,
        is_repeatable: bool | None = None,
        accept: str = WHOLE,
    ) -> dict[str, Any]:
        """Send any request and return the decoded answer, {} if it is empty.

        Parameters
        ----------
        is_repeatable : Whether sending it twice is harmless. By default everything except POST.
        accept : The form of the answer. METADATA_ONLY saves both sides the rest of an object.

        Raises
        ------
        ApiError
            The server refused. Its subclasses tell why.
        ApiUnavailable
            Any other failure.
        """
        target = f"{path}?{urlencode(query)}" if query else path
        data = orjson.dumps(body) if body is not None else None
        if is_repeatable is None:
            is_repeatable = method != "POST"
        async with self._slots.hold(lane_of(path), is_background=self._is_background):
            reply = await self._send_with_retries(
                method,
                target,
                data,
                content_type=content_type,
                timeout_s=timeout_s or self._timeout_s,
                is_repeatable=is_repeatable,
                accept=accept,
            )
        if reply.status >= REFUSED_FROM:
            raise as_error(reply.status, reply.headers, reply.body, what=f"{method} {path}")
        decoded: dict[str, Any] = decode(reply.body) if reply.body else {}
        return decoded

    async def get_text(self, path: str, *, timeout_s: float | None = None) -> str:
        """GET text that is not JSON (``/readyz``, pod logs)."""
        async with self._slots.hold(lane_of(path), is_background=self._is_background):
            reply = await self._send_with_retries(
                "GET",
                path,
                None,
                content_type="",
                timeout_s=timeout_s or self._timeout_s,
                is_repeatable=True,
            )
        if reply.status >= REFUSED_FROM:
            raise as_error(reply.status, reply.headers, reply.body, what=f"GET {path}")
        return reply.body.decode("utf-8", "replace")

    async def lines(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a text as they are written, without line ends (a pod's log).

        It ends when the server closes the stream. Raises ApiError, ApiUnavailable.
        """
        target = f"{path}?{urlencode(query)}"
        rest = b""
        async with self._transport.stream(target, self._headers(), FOLLOW_IDLE_S) as reply:
            metrics.API_REQUESTS.labels("GET", str(reply.status)).inc()
            if reply.status >= REFUSED_FROM:
                body = b"".join([chunk async for chunk in reply.chunks()])
                raise as_error(reply.status, reply.headers, body, what=f"GET {path}")
            async with aclosing(reply.chunks()) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        yield line
        if rest:
            yield rest

    async def _send_with_retries(
        self,
        method: str,
        target: str,
        data: bytes | None,
        *,
        content_type: str,
        timeout_s: float,
        is_repeatable: bool,
        accept: str = WHOLE,
    ) -> Reply:
        backoff = Backoff(base_s=RETRY_BASE_S, cap_s=RETRY_CAP_S)
        for attempt in range(1, self._attempts_max + 1):
            is_last = attempt == self._attempts_max
            headers = self._headers(content_type if data is not None else None, accept)
            sent_s = time.monotonic()
            try:
                reply = await self._transport.send(method, target, headers, data, timeout_s)
            except TransportError as error:
                metrics.API_REQUESTS.labels(method, "0").inc()
                if is_last or not (is_repeatable or error.is_unsent):
                    raise
                metrics.API_RETRIES.labels(method).inc()
                await asyncio.sleep(backoff.next_delay_s())
                continue
            self.answer_times.note(time.monotonic() - sent_s)
            metrics.API_REQUESTS.labels(method, str(reply.status)).inc()
            wait_s = self._wait_before_retry(reply, is_repeatable)
            if wait_s is None or is_last:
                return reply
            metrics.API_RETRIES.labels(method).inc()
            await asyncio.sleep(backoff.next_delay_s(wait_s))
        raise ApiUnavailable("attempts_max must be at least 1")

    def _wait_before_retry(self, reply: Reply, is_repeatable: bool) -> float | None:
        """Return the seconds to wait before sending again, or None if this answer is final."""
        if reply.status == 401 and self._authorization is not None:
            # The token was rotated: read it again, once. The second time the value is the same.
            stale, self._authorization_until = self._authorization, float("-inf")
            self._headers()
            return 0.0 if self._authorization != stale else None
        after_s = retry_after_s(reply.headers)
        if after_s is not None and after_s > RETRY_AFTER_MAX_S:
            return None
        if reply.status == 429:
            return after_s or 0.0
        if reply.status >= 500 and after_s is not None and is_repeatable:
            return after_s
        return None

    def _headers(self, content_type: str | None = None, accept: str = WHOLE) -> dict[str, str]:
        now = time.monotonic()
        if now >= self._authorization_until:
            self._authorization = self.config.authorization_header()
            self._authorization_until = now + TOKEN_MAX_AGE_S
        headers = {"Accept": accept, "User-Agent": self._user_agent}
        if self._authorization is not None:
            headers["Authorization"] = self._authorization
        if content_type:
            headers["Content-Type"] = content_type
        headers.update(self._headers_added)
        return headers
