"""The asyncio client: a Job, followed by a watch, and the logs of its pods."""

from __future__ import annotations

import asyncio

from common import NAMESPACE, is_over, job, main
from kubernetes_asyncio import client, config, watch


async def _run(name: str) -> bool:
    await config.load_kube_config()
    async with client.ApiClient() as api:
        batch, core = client.BatchV1Api(api), client.CoreV1Api(api)
        await batch.create_namespaced_job(NAMESPACE, job(name))
        is_good = None
        async with watch.Watch() as watching:
            jobs = watching.stream(
                batch.list_namespaced_job, NAMESPACE, field_selector=f"metadata.name={name}"
            )
            async for event in jobs:
                is_good = is_over(event["raw_object"].get("status", {}).get("conditions"))
                if is_good is not None:
                    break
        selector = f"batch.kubernetes.io/job-name={name}"
        for pod in (await core.list_namespaced_pod(NAMESPACE, label_selector=selector)).items:
            print("logs:", await core.read_namespaced_pod_log(pod.metadata.name, NAMESPACE))
        return bool(is_good)


async def _cancel(name: str) -> None:
    await config.load_kube_config()
    async with client.ApiClient() as api:
        batch = client.BatchV1Api(api)
        await batch.delete_namespaced_job(name, NAMESPACE, propagation_policy="Background")


main(lambda name: asyncio.run(_run(name)), lambda name: asyncio.run(_cancel(name)))
