"""The HTTPS server around ``fluxqueue_webhook.admit``.

It serves ``/mutate``, ``/healthz``, ``/readyz`` and ``/metrics``. ``fluxqueue_webhook.__main__``
calls it and, in the same process tree, ``fluxqueue up``. It decides nothing, and counters are its
only state.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from fluxqueue.errors import InvalidInput
from fluxqueue.process.certs.serving import Listener
from fluxqueue.workload.holding import AdmitSettings
from fluxqueue.workload.labels import PATH, PATH_ALL_ASK, PATH_PLACE
from fluxqueue_webhook.admit import (
    AdmissionAnswer,
    admit,
    leave_gated,
    place,
    refuse_unread,
)
from fluxqueue_webhook.bounded import CPU_MAX_S, BoundedThreads, TooLong
from fluxqueue_webhook.fair_queue import Lane, lane_of
from fluxqueue_webhook.large_bodies import LargeBodies
from fluxqueue_webhook.review_metrics import AdmissionMetrics
from fluxqueue_webhook.review_rules import malformed

logger = logging.getLogger(__name__)

ReviewAndAnswer = tuple[Any, AdmissionAnswer]

_MAX_BODY_BYTES = 8 * 2**20
"""A larger review is refused unread.

The API server accepts objects of up to 3 MiB, and a review may contain its object twice. Defaults
may make it far larger: each empty container in a list gets 150 bytes of them.
"""
_HEAD_BYTES = 2**16
"""The part of a request that is read at once. The rest of a larger one needs room.

The identity of a review comes first."""
_BODY_MAX_S = 30.0
"""A body comes within this time (seconds). No API server waits longer for an answer."""
_ANSWER_SHARE = 0.8
"""The part of an API server's patience after which a request is refused.

Once its patience ends, the API server tells its user of a timeout without a reason. The rest is for
the two ways, and for a busy machine."""
_TIMEOUT_DEFAULT_S = 5.0
"""The patience of an API server that does not tell it (seconds)."""
_TIMEOUT = re.compile(r"(?P<seconds>[0-9]{1,3})s")
"""How an API server tells its patience, as the parameter ``timeout``."""
_LINGER_S = 1.0
"""How long a connection stays open behind an early answer, unread (seconds).

A client reads an answer while it still sends. If the connection ended at once, the client could
see its own request fail instead.
"""
_PLACED_MAX_BYTES = 2**18
"""A larger review of a pod with a placement is not read: the event loop would stand still."""
_ENVELOPE = re.compile(
    rb'\{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":'
    rb'\{"uid":"(?P<uid>[0-9a-f-]{36})",'
)
"""The text with which an API server begins a review."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Hold where the server listens and how it behaves.

    ``cert_dir``: contains ``tls.crt`` and ``tls.key``.
    ``client_ca``: the CA of the API servers' client certificates. Nothing else is admitted then.
    ``port``: 0 takes a free one.
    ``reload_interval_s``: the interval at which these files are checked.
    ``drain_s``: how long the server still answers after it is no longer ready, before it closes.
    """

    cert_dir: Path
    client_ca: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8443
    reload_interval_s: float = 5.0
    drain_s: float = 0.0
    shutdown_timeout_s: float = 5.0
    admit: AdmitSettings = field(default_factory=AdmitSettings)


class WebhookServer:
    """Serve admission. Call ``start`` once and ``stop`` once, or use an async context."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._listener = Listener(
            config.cert_dir, config.client_ca, reload_interval_s=config.reload_interval_s
        )
        self._metrics = AdmissionMetrics(one.kind for one in config.admit.owner_kinds)
        self._threads = BoundedThreads()
        self._large = LargeBodies()
        self._is_open = self._is_stopping = False
        self.port = config.port

    @property
    def url(self) -> str:
        """Return the URL of the server, without a path."""
        host = f"[{self._config.host}]" if ":" in self._config.host else self._config.host
        return f"https://{host}:{self.port}"

    async def start(self) -> None:
        """Load the certificate and listen.

        Raises
        ------
        InvalidSettings
            There is no usable certificate, or the server cannot listen on the address.
        """
        config = self._config
        runner = web.AppRunner(
            self._build_app(), access_log=None, shutdown_timeout=config.shutdown_timeout_s
        )
        self.port = await self._listener.open(runner, config.host, config.port)
        self._is_open = True
        logger.info("webhook listens", extra={"action": "start", "url": self.url})

    async def stop(self) -> None:
        """Stop being ready, wait for the balancer, answer open requests, then close."""
        # The wait comes first: the balancer still sends requests until it sees that this is not
        # ready.
        self._is_stopping = True
        if self._config.drain_s and self._is_open:
            await asyncio.sleep(self._config.drain_s)
        await self._listener.close()
        self._threads.close()
        if self._is_open:
            self._is_open = False
            logger.info("webhook stopped", extra={"action": "stop"})

    async def __aenter__(self) -> WebhookServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _build_app(self) -> web.Application:
        app = web.Application()
        app.router.add_post(PATH, self._mutate)
        app.router.add_post(PATH_ALL_ASK, self._mutate)
        app.router.add_post(PATH_PLACE, self._mutate)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._render_metrics)
        return app

    async def _mutate(self, request: web.Request) -> web.Response:
        body, started_s = _Body(request), time.perf_counter()
        if self._config.client_ca is not None and not _has_client_certificate(request):
            self._metrics.count("", "no_certificate", 0.0)
            response = web.Response(
                status=403, text="only API servers with a certificate may ask\n"
            )
            await _end_early(request, response)
            return response
        try:
            review, answer = await self._read_and_answer(request, body)
        except (orjson.JSONDecodeError, InvalidInput) as error:
            self._metrics.count("", "malformed", time.perf_counter() - started_s)
            logger.warning("malformed review", extra={"action": "admit", "error": str(error)[:200]})
            response = web.Response(status=400, text=f"{error}\n")
        else:
            self._note(review, answer, time.perf_counter() - started_s)
            found = orjson.dumps(answer.review)
            response = web.Response(body=found, content_type="application/json")
        if not body.is_whole:
            await _end_early(request, response)
        return response

    async def _read_and_answer(self, request: web.Request, body: _Body) -> ReviewAndAnswer:
        """Read as much of a request as its answer needs.

        Raises
        ------
        InvalidInput, orjson.JSONDecodeError
            Not even the envelope of the review can be read.
        """
        is_short = await body.read(_HEAD_BYTES)
        # Processor time and places to wait have bounds of their own. This one holds whatever else
        # the machine is doing.
        try:
            async with asyncio.timeout_at(body.began_s + _answer_within_s(request)):
                if is_short:
                    return await self._answer(request, bytes(body.text))
                return await self._read_and_answer_large(request, body)
        except TimeoutError:
            return too_long(bytes(body.text[:_HEAD_BYTES]), is_placed=request.path == PATH_PLACE)

    async def _read_and_answer_large(self, request: web.Request, body: _Body) -> ReviewAndAnswer:
        """Read the rest of a request of which the head has been read, and answer it.

        Raises
        ------
        InvalidInput, orjson.JSONDecodeError
            Not even the envelope of the review can be read.
        """
        is_placed = request.path == PATH_PLACE
        most = _PLACED_MAX_BYTES if is_placed else _MAX_BODY_BYTES
        head, size = bytes(body.text[:_HEAD_BYTES]), request.content_length or most
        if size > most:
            return too_large(head, is_placed=is_placed)
        # Pods with a placement are small, and never refused.
        room = nullcontext() if is_placed else self._large.hold(_lane(request, head), size)
        try:
            async with room:
                if await body.read(most):
                    return await self._answer(request, bytes(body.text), waited_s=body.age_s())
                return too_large(head, is_placed=is_placed)
        except TooLong:
            return too_long(head)

    async def _answer(
        self, request: web.Request, body: bytes, *, waited_s: float = 0.0
    ) -> ReviewAndAnswer:
        if request.path == PATH_PLACE:
            # On the event loop: it costs less than the way to a thread and back, and large
            # gangs would fill the queue of their namespace.
            return self._place(body)
        all_ask = request.path == PATH_ALL_ASK
        try:
            found: ReviewAndAnswer = await self._threads.run(
                lambda: self._admit(body, all_ask=all_ask), _lane(request, body), waited_s=waited_s
            )
        except TooLong:
            return too_long(body)
        return found

    def _note(self, review: Any, answer: AdmissionAnswer, took_s: float) -> None:
        """Count an answer, and log it."""
        self._metrics.count(answer.kind, answer.verdict, took_s)
        asked = review["request"]
        is_frequent = answer.verdict in {"untouched", "placed"}
        level = logging.DEBUG if is_frequent else logging.INFO
        logger.log(
            level,
            "review answered",
            extra={
                "action": "admit",
                "verdict": answer.verdict,
                "kind": answer.kind,
                "namespace": asked.get("namespace"),
                "workload": asked.get("name") or "(generated)",
                "why": answer.why,
            },
        )

    def _place(self, body: bytes) -> ReviewAndAnswer:
        """Answer for a pod with a placement. One with a defect comes gated.

        Raises
        ------
        InvalidInput, orjson.JSONDecodeError
            Not even the envelope of the review can be read.
        """
        review = orjson.loads(body)
        try:
            return review, place(review, self._config.admit, now_s=time.time())
        except InvalidInput:
            raise
        except Exception:
            logger.exception("a placement broke", extra={"action": "admit"})
            return review, leave_gated(review, "it cannot be read; the log says more")

    def _admit(self, body: bytes, *, all_ask: bool) -> ReviewAndAnswer:
        """Read and answer a review, in a thread. A defect refuses this one request with a reason.

        Raises
        ------
        InvalidInput, orjson.JSONDecodeError
            Not even the envelope of the review can be read.
        """
        try:
            review = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            envelope = read_envelope(body)
            if envelope is None:
                raise
            return envelope, refuse_unread(envelope, f"cannot be read: {error}")
        try:
            return review, admit(review, self._config.admit, all_ask=all_ask)
        except InvalidInput as error:
            return review, refuse_unread(review, str(error))
        except Exception:
            logger.exception("an admission broke", extra={"action": "admit"})
            return review, refuse_unread(review, "admission cannot read it; the log says more")

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if self._is_stopping:
            return web.Response(status=503, text="stopping\n")
        if not self._listener.certificate.is_valid():
            return web.Response(status=503, text="the certificate is not valid now\n")
        return web.Response(text="ok\n")

    async def _render_metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self._metrics.render())


class _Body:
    """The text of a request, read as far as its answer needs it.

    The rest of a body that is too large is never read. Defaults can make a review 100 times as
    large as its object.
    """

    def __init__(self, request: web.Request) -> None:
        self._content = request.content
        self.began_s = asyncio.get_running_loop().time()
        self.text, self.is_whole = bytearray(), False

    def age_s(self) -> float:
        """Return how long the request is here (seconds)."""
        return asyncio.get_running_loop().time() - self.began_s

    async def read(self, most: int) -> bool:
        """Read until the end, or until there are more than ``most`` bytes. Return whether it ends.

        Raises
        ------
        HTTPRequestTimeout
            The body does not come.
        """
        try:
            async with asyncio.timeout_at(self.began_s + _BODY_MAX_S):
                while len(self.text) <= most and not self.is_whole:
                    # At most so much: the rest stays in the buffers, and is not held twice.
                    chunk = await self._content.read(most + 1 - len(self.text))
                    self.text += chunk
                    self.is_whole = not chunk
        except TimeoutError as error:
            raise web.HTTPRequestTimeout(text="the body does not come\n") from error
        return self.is_whole and len(self.text) <= most


def _lane(request: web.Request, head: bytes) -> Lane:
    """Return the lane of a request. The address of its connection cannot be made up."""
    return lane_of(head, request.remote or "")


def _has_client_certificate(request: web.Request) -> bool:
    """Return whether the connection has shown a certificate, which TLS has verified."""
    return bool(request.transport and request.transport.get_extra_info("peercert"))


def _answer_within_s(request: web.Request) -> float:
    """Return the time that a request has for its answer (seconds)."""
    told = _TIMEOUT.fullmatch(request.query.get("timeout", ""))
    return _ANSWER_SHARE * (float(told["seconds"]) if told else _TIMEOUT_DEFAULT_S)


async def _end_early(request: web.Request, answer: web.Response) -> None:
    """Answer a request of which the rest is not read, and end its connection."""
    answer.force_close()
    with suppress(ConnectionError):
        await answer.prepare(request)
        await answer.write_eof()
    # Unread, the rest stays in the buffers of the two systems, and the client stops sending.
    await asyncio.sleep(_LINGER_S)
    if request.transport is not None:
        request.transport.abort()
    request.protocol.force_close()


def read_envelope(body: bytes) -> dict[str, Any] | None:
    """Return the identity of a review with an unreadable object, or None.

    An API server accepts objects of 10,000 levels, and this parser accepts a tenth of that. The
    identity comes before the object.
    """
    found = _ENVELOPE.match(body)
    if found is None:
        return None
    request = {"uid": found["uid"].decode()}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def too_large(head: bytes, *, is_placed: bool) -> ReviewAndAnswer:
    """Refuse a review of which only the beginning was kept. A pod with a placement comes gated.

    Raises
    ------
    InvalidInput
        Not even the envelope of the review can be read.
    """
    review = read_envelope(head)
    if review is None:
        raise malformed(f"a body of more than {_MAX_BODY_BYTES} bytes is no review")
    if is_placed:
        return review, leave_gated(review, "it is too large to be placed")
    why = f"is larger than {_MAX_BODY_BYTES >> 20} MiB with the defaults of its fields"
    way_out = "use fewer containers, variables or volumes, or keep data in a ConfigMap or in a file"
    return review, refuse_unread(review, why, way_out)


def too_long(head: bytes, *, is_placed: bool = False) -> ReviewAndAnswer:
    """Refuse a request that took too long, or that met too many others. A placed pod comes gated.

    Only the envelope is read: this runs on the event loop.
    """
    review = read_envelope(head) or orjson.loads(head)
    if is_placed:
        return review, leave_gated(review, "it did not come in time")
    why = (
        f"admission takes more than {CPU_MAX_S} s of processor time, or too many requests wait;"
        " make it smaller, or try again"
    )
    return review, refuse_unread(review, why)
