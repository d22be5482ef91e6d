"""``/healthz``, ``/readyz`` and ``/metrics`` of controller and worker, and heartbeats of loops.

Made by the processes' entry points, before anything that may have to be waited for. *healthy*: the
process lives and its loops turn; nothing that a restart would not mend counts. *ready*: what it
needs can be reached. The webhook has a server of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from aiohttp import web

from fluxqueue import metrics
from fluxqueue.errors import InvalidSettings

CHECK_TIMEOUT_S = 2.0
"""One readiness check; the chart's probes wait for three seconds."""

ReadyCheck = Callable[[], Awaitable[str | None]]
LiveCheck = Callable[[], str | None]


class Heartbeats:
    """When each loop has to have turned again at the latest."""

    def __init__(self) -> None:
        self._due_s: dict[str, float] = {}

    def beat(self, loop: str, *, within_s: float) -> None:
        """``loop`` turns now, and will again within ``within_s`` unless something is wrong."""
        self._due_s[loop] = time.monotonic() + within_s

    def stop(self, loop: str) -> None:
        """``loop`` has ended as it should."""
        self._due_s.pop(loop, None)

    def problem(self) -> str | None:
        """Which loops have stopped turning, if any."""
        now = time.monotonic()
        late = sorted(loop for loop, due_s in self._due_s.items() if now > due_s)
        return f"stuck: {', '.join(late)}" if late else None


class Endpoint:
    """The server; an async context manager. Port 0 means none, so everything is accepted.

    ``live_checks`` and ``ready_checks`` may be added to while it runs; each gives what is wrong, in
    words, or None. Until ``started`` is called it is not ready.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._waits_for = "starting"
        self._runner: web.AppRunner | None = None
        self.live_checks: dict[str, LiveCheck] = {}
        self.ready_checks: dict[str, ReadyCheck] = {}

    def waits_for(self, what: str) -> None:
        """Say in ``/readyz`` what the start waits for."""
        self._waits_for = f"waits for {what}"

    def started(self) -> None:
        """The start is over: from now on the checks decide."""
        self._waits_for = ""

    async def __aenter__(self) -> Self:
        if self._port:
            await self._listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
            # No host: all addresses, whichever IP family the cluster has.
            await web.TCPSite(runner, None, self._port).start()
        except OSError as error:
            await runner.cleanup()
            raise InvalidSettings(
                f"cannot listen: {error.strerror}",
                where="FLUXQUEUE_HTTP_PORT",
                value=self._port,
                hint="choose another port for each process of a machine; 0: none",
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
