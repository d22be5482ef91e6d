"""An API server that takes FluxJobs and Events, and refuses those of some: the rest of it is idle.

For tests of what the controller makes of refusals that an embedded cluster never gives: quotas,
policies, names that it does not like.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

Refuse = Callable[[str, str], int]
"""(plural, name) to the code of the refusal. 0 takes the object."""


class RefusingApi:
    """``taken`` and ``refused`` count by plural. ``objects`` are those taken."""

    def __init__(self, refuse: Refuse = lambda _plural, _name: 0) -> None:
        self.refuse = refuse
        self.url = ""
        self.taken: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.objects: list[dict[str, Any]] = []

    async def handle(self, request: web.Request) -> web.Response:
        """Take or refuse. Names are judged as API servers do."""
        plural = request.path.rpartition("/")[2]
        if request.method != "POST":
            return _status(404)
        body = orjson.loads(await request.read())
        name = body["metadata"]["name"]
        is_valid = len(name) <= 253 and _SUBDOMAIN.fullmatch(name)
        code = self.refuse(plural, name) if is_valid else 422
        if code:
            self.refused[plural] += 1
            return _status(code)
        self.taken[plural] += 1
        number = len(self.objects) + 1
        body["metadata"] |= {"uid": f"uid-{number}", "resourceVersion": str(number)}
        self.objects.append(body)
        return web.json_response(body, status=201)


def _status(code: int) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": "Why", "message": "this test says so"}
    return web.json_response(body, status=code)


@asynccontextmanager
async def serve(api: RefusingApi) -> AsyncIterator[RefusingApi]:
    """Listen on loopback."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", api.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield api
    finally:
        await runner.cleanup()
