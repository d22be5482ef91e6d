"""As many large requests at once as an API server sends: the webhook stays within its memory.

A process that takes more than the chart gives it is killed, and admission stops for all namespaces.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import sys
from asyncio.subprocess import PIPE
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest
import yaml

from fluxqueue.process.certs.folder import ensure
from tests.support.large_objects import LARGE
from tests.support.workloads import admission_review

VALUES = Path(__file__).resolve().parents[2] / "chart" / "values.yaml"
AT_ONCE = 200
"""The default of an API server for requests that change objects."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long("200 requests of up to 3 MiB at once, to a process of their own"),
    pytest.mark.timeout(300),
]


def _body(obj: Any, number: int) -> bytes:
    """A review as an API server writes it: identity, namespace and user come first."""
    asked = admission_review(obj)["request"]
    head = {
        "uid": str(UUID(int=number)),
        "kind": asked["kind"],
        "namespace": f"ns-{number % 3}",
        "operation": "CREATE",
        "userInfo": {"username": "mallory"},
        "object": asked["object"],
    }
    review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": head}
    return json.dumps(review, separators=(",", ":")).encode()


async def _post(session: aiohttp.ClientSession, url: str, body: bytes) -> bool:
    async with session.post(url, data=body) as answer:
        assert answer.status == 200, await answer.text()
        return bool((await answer.json())["response"]["allowed"])


async def test_the_webhook_stays_within_its_memory(tmp_path: Path) -> None:
    """All of them are answered, and so is a small one meanwhile."""
    folder = ensure(tmp_path, ("localhost", "127.0.0.1"), now=datetime.now(tz=UTC)).folder
    bodies = [_body(make(), n + 1) for n, make in enumerate(LARGE.values())]
    command = ("-m", "fluxqueue_webhook", "--cert-dir", str(folder), "--port", "0")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=PIPE, stderr=asyncio.subprocess.STDOUT, limit=2**22
    )
    assert process.stdout is not None
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    try:
        while (found := re.search(rb":(\d{4,5})\b", await process.stdout.readline())) is None:
            pass
        url = f"https://localhost:{int(found[1])}"
        reading = asyncio.create_task(process.stdout.read())
        async with aiohttp.ClientSession(connector=connector) as session:
            posts = [
                asyncio.create_task(_post(session, f"{url}/mutate", bodies[n % len(bodies)]))
                for n in range(AT_ONCE)
            ]
            async with session.get(f"{url}/healthz") as answer:
                assert answer.status == 200
            allowed = await asyncio.gather(*posts)
        status = Path(f"/proc/{process.pid}/status").read_text()
    finally:
        process.terminate()
        await process.wait()
    reading.cancel()
    assert any(allowed), "some of them are taken"
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    limit = yaml.safe_load(VALUES.read_text())["webhook"]["resources"]["limits"]["memory"]
    assert peak is not None
    assert int(peak[1]) / 1024 < int(limit.removesuffix("Mi")), f"{int(peak[1]) // 1024} MiB"
