"""How fast the embedded API server writes: creates/s, patches/s, CPU per write, with watchers.

Not a test. Run it by hand: ``python tests/integration/localcluster/bench_api.py --pods 1000``.
The server runs in a process of its own, so that only its CPU time is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import yaml

PATCH = {"content-type": "application/strategic-merge-patch+json"}


def pod(index: int) -> dict[str, Any]:
    """A pod as a Job controller makes it."""
    labels = {"job-name": "bench", "batch.kubernetes.io/job-name": "bench", "index": str(index)}
    container = {
        "name": "main",
        "image": "registry.example/app:1",
        "command": ["sleep", "60"],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"bench-{index:05d}", "labels": labels},
        "spec": {"restartPolicy": "Never", "containers": [container], "schedulerName": "none"},
    }


def running(phase: str) -> bytes:
    """A kubelet's status patch."""
    now = "2026-01-01T00:00:00Z"
    types = ("Initialized", "Ready", "ContainersReady")
    conditions = [{"type": t, "status": "True", "lastTransitionTime": now} for t in types]
    return orjson.dumps({"status": {"phase": phase, "startTime": now, "conditions": conditions}})


class Bench:
    """One session against one server process."""

    def __init__(self, url: str, token: str, server_pid: int) -> None:
        self._url, self._pid = url, server_pid
        self._headers = {"authorization": f"Bearer {token}"}
        self.lines = 0

    def cpu_s(self) -> tuple[float, float]:
        """CPU time of the server so far, in user mode and in the kernel."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        tick = os.sysconf("SC_CLK_TCK")
        return int(fields[11]) / tick, int(fields[12]) / tick

    def session(self) -> aiohttp.ClientSession:
        """A client that trusts any certificate (the server is ours)."""
        connector = aiohttp.TCPConnector(ssl=ssl._create_unverified_context(), limit=0)
        return aiohttp.ClientSession(connector=connector, headers=self._headers)

    async def watch(self, session: aiohttp.ClientSession, selector: str) -> None:
        """Count the lines of one watch."""
        params = {"watch": "1", "fieldSelector": selector} if selector else {"watch": "1"}
        timeout = aiohttp.ClientTimeout(total=None)
        url = f"{self._url}/api/v1/pods"
        async with session.get(url, params=params, timeout=timeout) as response:
            async for chunk in response.content.iter_any():
                self.lines += chunk.count(b"\n")

    async def measure(self, name: str, count: int, one: Callable[[int], Awaitable[int]]) -> None:
        """Run ``one`` for each index, 16 at a time, and print rates."""
        started_s, cpu_s, lines = time.perf_counter(), self.cpu_s(), self.lines
        indexes = iter(range(count))

        async def work() -> None:
            for index in indexes:
                status = await one(index)
                assert status < 300, f"{name} {index}: {status}"

        await asyncio.gather(*(work() for _ in range(16)))
        took_s = time.perf_counter() - started_s
        user_ms, kernel_ms = (
            (now_s - then_s) / count * 1000
            for now_s, then_s in zip(self.cpu_s(), cpu_s, strict=True)
        )
        await asyncio.sleep(0.3)
        sys.stdout.write(
            f"{name:<28} {count / took_s:8.0f}/s  {user_ms:6.3f} + {kernel_ms:5.3f} ms CPU each "
            f"(user + kernel)  {self.lines - lines} watch lines\n"
        )


async def run(bench: Bench, pods: int, watchers: int, node_watchers: int) -> None:
    """Creates, bindings, patches and deletes under watch."""
    async with bench.session() as session:
        tasks = [asyncio.create_task(bench.watch(session, "")) for _ in range(watchers)]
        tasks += [
            asyncio.create_task(bench.watch(session, f"spec.nodeName=node-{index}"))
            for index in range(node_watchers)
        ]
        await asyncio.sleep(0.5)
        base = f"{bench._url}/api/v1/namespaces/default/pods"

        async def send(method: str, path: str, body: bytes, **headers: str) -> int:
            async with session.request(method, base + path, data=body, headers=headers) as answer:
                await answer.read()
                return answer.status

        json_type = {"content-type": "application/json"}
        bodies = [orjson.dumps(pod(index)) for index in range(pods)]
        await bench.measure("create", pods, lambda i: send("POST", "", bodies[i], **json_type))

        def bind(index: int) -> Awaitable[int]:
            meta, target = {"name": f"bench-{index:05d}"}, {"name": f"node-{index % 20}"}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
            raw = orjson.dumps(body)
            return send("POST", f"/bench-{index:05d}/binding", raw, **json_type)

        await bench.measure("bind", pods, bind)
        for phase in ("Running", "Succeeded"):
            body = running(phase)
            await bench.measure(
                f"status patch {phase}",
                pods,
                lambda i, body=body: send("PATCH", f"/bench-{i:05d}/status", body, **PATCH),
            )
        label = orjson.dumps({"metadata": {"labels": {"x": "y"}}})
        merge = {"content-type": "application/merge-patch+json"}
        await bench.measure(
            "merge patch label", pods, lambda i: send("PATCH", f"/bench-{i:05d}", label, **merge)
        )
        await bench.measure("get", pods, lambda i: send("GET", f"/bench-{i:05d}", b""))
        await bench.measure("list all", 20, lambda _: send("GET", "", b""))
        await bench.measure("delete", pods, lambda i: send("DELETE", f"/bench-{i:05d}", b""))
        for task in tasks:
            task.cancel()


async def main() -> None:
    """Start a server, measure, stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--watchers", type=int, default=5)
    parser.add_argument("--node-watchers", type=int, default=0)
    parser.add_argument("--data-dir", type=Path)
    arguments = parser.parse_args()
    kubeconfig = Path(f"/tmp/bench-kubeconfig-{os.getpid()}")
    command = ["-m", "localcluster", "--api-only", "--kubeconfig-out", str(kubeconfig)]
    if arguments.data_dir is not None:
        command += ["--data-dir", str(arguments.data_dir)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    sys.stdout.write((await process.stdout.readline()).decode())
    config = yaml.safe_load(kubeconfig.read_text())
    kubeconfig.unlink()
    url = config["clusters"][0]["cluster"]["server"]
    bench = Bench(url, config["users"][0]["user"]["token"], process.pid)
    try:
        await run(bench, arguments.pods, arguments.watchers, arguments.node_watchers)
    finally:
        process.terminate()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(main())
