"""Parsl: a block of its KubernetesProvider, which is a bare Pod with ``restartPolicy: Always``.

A block ends when Parsl cancels it. So the work counts as good when the block has run.
"""

from __future__ import annotations

import time

from common import LIMIT_S, NAMESPACE, SECONDS, main, queue_labels, remember, remembered
from parsl.jobs.states import JobState
from parsl.providers import KubernetesProvider


def _provider() -> KubernetesProvider:
    return KubernetesProvider(
        image="busybox",
        namespace=NAMESPACE,
        init_cpu=4,
        max_cpu=4,
        init_mem="64Mi",
        max_mem="64Mi",
        run_as_non_root=False,
        annotations=queue_labels(),
    )


def run(name: str) -> bool:
    """Submit a block, wait until it runs, and let it end."""
    provider = _provider()
    block = provider.submit(f"sleep {SECONDS}", tasks_per_node=1, job_name=name)
    remember(f"{block} {provider.resources[block]['pod_name']}")
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        (status,) = provider.status([block])
        print(f"state: {status.state.name}", flush=True)
        if status.state is JobState.RUNNING:
            time.sleep(float(SECONDS))
            provider.cancel([block])
            return True
        if status.terminal:
            return False
        time.sleep(0.5)
    return False


def cancel(name: str) -> None:
    """Cancel the block."""
    block, pod = remembered().split()
    provider = _provider()
    provider.resources[block] = {"job_id": block, "pod_name": pod, "status": None}
    provider.cancel([block])


main(run, cancel)
