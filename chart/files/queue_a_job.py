"""``helm test``: queue a Job of two pods, see it run, delete it.

It runs in a pod of fluxqueue's image, in another namespace than the Job. If the Job is not queued
or has not succeeded in time, it fails with the last state that it saw.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from fluxqueue.errors import ApiError, ApiUnavailable, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_config
from fluxqueue.kube.resources import FLUXJOBS, JOBS
from fluxqueue.workload import labels

POLL_S = 0.5


async def queue_a_job(namespace: str, job: dict[str, Any], timeout_s: float) -> None:
    """Create ``job``, follow it to its end, and delete it. Raises SystemExit if it fails."""
    async with KubeClient(load_config()) as client:
        made: dict[str, Any] | None = None
        try:
            async with asyncio.timeout(timeout_s):
                made = await _create(client, namespace, job)
                await _follow(client, namespace, made["metadata"]["name"])
        except TimeoutError:
            sys.exit(f"not done within {timeout_s:g} s")
        finally:
            if made is not None:
                await client.delete(JOBS, namespace, made["metadata"]["name"])


async def _create(client: KubeClient, namespace: str, job: dict[str, Any]) -> dict[str, Any]:
    """Create it. Right after an installation the webhook may need a moment."""
    while True:
        try:
            made: dict[str, Any] = await client.create(JOBS, namespace, job)
            break
        except (ApiError, ApiUnavailable) as error:
            print(f"not accepted yet: {error}", flush=True)
            await asyncio.sleep(POLL_S)
    if made["metadata"].get("labels", {}).get(labels.MANAGED) != "true":
        await client.delete(JOBS, namespace, made["metadata"]["name"])
        sys.exit(f"the webhook did not take the Job in: is namespace {namespace} managed?")
    print(f"created Job {namespace}/{made['metadata']['name']}, suspended", flush=True)
    return made


async def _follow(client: KubeClient, namespace: str, name: str) -> None:
    shown = ""
    while True:
        shown = await _show(client, namespace, name, shown)
        status = (await client.get(JOBS, namespace, name)).get("status") or {}
        ended = {one["type"] for one in status.get("conditions") or () if one["status"] == "True"}
        if "Complete" in ended:
            print(f"Job {name}: {status.get('succeeded')} pods succeeded", flush=True)
            return
        if "Failed" in ended:
            sys.exit(f"Job {name} failed: {status}")
        await asyncio.sleep(POLL_S)


async def _show(client: KubeClient, namespace: str, name: str, shown: str) -> str:
    """Print what the FluxJob says where that is new."""
    try:
        status = (await client.get(FLUXJOBS, namespace, f"{name}-job")).get("status") or {}
    except NotFound:
        return shown
    text = " ".join(str(status[key]) for key in ("state", "nodes", "reason") if status.get(key))
    if text != shown:
        print(f"FluxJob {name}-job: {text}", flush=True)
    return text


if __name__ == "__main__":
    asyncio.run(
        queue_a_job(
            os.environ["TEST_NAMESPACE"],
            json.loads(os.environ["TEST_JOB"]),
            float(os.environ["TEST_TIMEOUT_S"]),
        )
    )
