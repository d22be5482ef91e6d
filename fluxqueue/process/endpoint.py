"""``/healthz``, ``/readyz`` and ``/metrics`` of controller and worker, and loop heartbeats.

The entry points of the processes create it before anything that they may wait for. *healthy*: the
process lives and its loops run. Only problems that a restart would fix count. *ready*: everything
it needs can be reached. The webhook has its own server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Self

from aiohttp import web

from fluxqueue.errors import InvalidSettings
from fluxqueue.process import metrics

CHECK_TIMEOUT_S = 2.0
"""Seconds for one readiness check. The chart's probes wait for three seconds."""

ReadyCheck = Callable[[], Awaitable[str | None]]
LiveCheck = Callable[[], str | None]


class Heartbeats:
    """The latest time at which each loop must run again."""

    def __init__(self) -> None:
        self._due_s: dict[str, float] = {}

    def beat(self, loop: str, *, within_s: float) -> None:
        """Record that ``loop`` runs now. It must run again within ``within_s`` seconds."""
        self._due_s[loop] = time.monotonic() + within_s

    def stop(self, loop: str) -> None:
        """Record that ``loop`` has ended as intended."""
        self._due_s.pop(loop, None)

    def problem(self) -> str | None:
        """Name the loops that have stopped running, or return None."""
        now = time.monotonic()
        late = sorted(loop for loop, due_s in self._due_s.items() if now > due_s)
        return f"stuck: {', '.join(late)}" if late else None


class Endpoint:
    """The server, as an async context manager. Port 0 means no server, and calls have no effect.

    ``live_checks`` and ``ready_checks`` may grow while it runs. Each check returns the problem in
    words, or None. The process is not ready before ``started`` is called.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._waits_for = "starting"
        self._runner: web.AppRunner | None = None
        self.live_checks: dict[str, LiveCheck] = {}
        self.ready_checks: dict[str, ReadyCheck] = {}

    def waits_for(self, what: str) -> None:
        """Show in ``/readyz`` what the start waits for."""
        self._waits_for = f"waits for {what}"

    def started(self) -> None:
        """Mark the start as over: from now on the checks decide."""
        self._waits_for = ""

    async def __aenter__(self) -> Self:
        if self._port:
            await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _listen(self) -> None:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            # No host: listen on all addresses, because the IP family of the cluster is unknown.
            await web.TCPSite(runner, None, self._port).start()
        except OSError as error:
            await runner.cleanup()
            raise InvalidSettings(
                f"cannot listen: {error.strerror}",
                where="FLUXQUEUE_HTTP_PORT",
                value=self._port,
                hint="choose another port for each process of a machine, or 0 for none",
            ) from error
        self._runner = runner

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer([check() for check in self.live_checks.values()])

    async def _readyz(self, _: web.Request) -> web.Response:
        if self._waits_for:
            return _answer([self._waits_for])
        checks = [_in_time(name, check) for name, check in self.ready_checks.items()]
        return _answer(await asyncio.gather(*checks))

    async def _metrics(self, _: web.Request) -> web.Response:
        text = metrics.render()
        return web.Response(body=text, headers={"Content-Type": metrics.CONTENT_TYPE})


def _answer(problems: list[str | None]) -> web.Response:
    found = [problem for problem in problems if problem]
    return web.Response(status=503 if found else 200, text="\n".join(found or ["ok"]) + "\n")


async def _in_time(name: str, check: ReadyCheck) -> str | None:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            problem = await check()
    except TimeoutError:
        problem = f"no answer within {CHECK_TIMEOUT_S:g} s"
    return f"{name}: {problem}" if problem else None
