"""Parsl: a block of our ``FluxQueueProvider``, as an executor of Parsl asks for it."""

from __future__ import annotations

import time

from common import POOL, QUEUE, SECONDS, interrupt, main, remember
from parsl.jobs.states import JobState

from fluxqueue.client.parsl_provider import FluxQueueProvider


def run(name: str) -> bool:
    """Submit a block, and look at its state until it has ended."""
    remember()
    # Only a node that joins later has 32 processors.
    provider = FluxQueueProvider(image="busybox", queue=QUEUE, cpus=32 if POOL == "late" else 4)
    block = provider.submit(f"sleep {SECONDS}", tasks_per_node=1, job_name=name)
    try:
        while not (status := provider.status([block])[0]).terminal:
            time.sleep(0.5)
    except KeyboardInterrupt:
        provider.cancel([block])
        return False
    print(f"state: {status.state.name}", flush=True)
    return bool(status.state is JobState.COMPLETED)


main(run, interrupt)
