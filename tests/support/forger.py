"""A process that sends forged reviews straight to a webhook until its input ends.

``python -m tests.support.forger PORT CONNECTIONS ADDRESS``: costly Jobs of 50 kB, each in the name
of another tenant, from connections of one address. It writes a line once it has sent a request on
each connection, and the number of requests at its end.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.support.workloads import admission_review, batch_job

CONNECTIONS = 120
BODIES = 40


def review(job: dict[str, Any], namespace: str, user: str) -> bytes:
    """A review as an API server writes it."""
    made = admission_review(job)
    asked = made["request"]
    asked |= {"namespace": namespace, "operation": "CREATE", "userInfo": {"username": user}}
    order = ("uid", "kind", "name", "namespace", "operation", "userInfo", "object")
    made["request"] = {key: asked[key] for key in order}
    return json.dumps(made, separators=(",", ":")).encode()


def forged(number: int) -> bytes:
    """A costly Job of another tenant for each number."""
    kinds = [
        {"type": "slot", "count": 1, "label": f"s{n}", "with": [{"type": "core", "count": 1}]}
        for n in range(480)
    ]
    job = batch_job(annotations={"fluxqueue/jobspec": json.dumps(kinds)}, parallelism=480)
    return review(job, f"n{number}", f"u{number}")


@asynccontextmanager
async def flood(port: int, address: str = "127.0.0.2") -> AsyncIterator[None]:
    """Forged reviews meanwhile, from another process and another address."""
    command = [sys.executable, "-m", __name__, str(port), str(CONNECTIONS), address]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"under way\n"
        yield
    finally:
        process.stdin.close()
        told = await process.stdout.read()
        await process.wait()
    assert int(told) >= CONNECTIONS


async def _main(port: int, connections: int, address: str) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connector = aiohttp.TCPConnector(ssl=context, local_addr=(address, 0), limit=0)
    bodies, sent = [forged(number) for number in range(BODIES)], 0

    async def send(number: int) -> None:
        nonlocal sent
        turn = number
        while True:
            turn += 1
            sent += 1
            if sent == connections:
                print("under way", flush=True)
            try:
                url = f"https://127.0.0.1:{port}/mutate"
                async with session.post(url, data=bodies[turn % BODIES]) as told:
                    await told.read()
            except aiohttp.ClientError:
                pass  # it was refused while it still sent

    async with aiohttp.ClientSession(connector=connector) as session:
        sending = [asyncio.create_task(send(number)) for number in range(connections)]
        await asyncio.to_thread(sys.stdin.read)
        for one in sending:
            one.cancel()
    print(sent, flush=True)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
