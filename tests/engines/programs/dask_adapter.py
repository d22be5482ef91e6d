"""Dask: a ``FluxQueueCluster`` of dask-jobqueue, and one call on its real worker."""

from __future__ import annotations

import logging
import time

from common import LIMIT_S, POOL, QUEUE, SECONDS, interrupt, main, remember
from dask.distributed import Client as DaskClient

from fluxqueue.client.dask_cluster import FluxQueueCluster


def work(seconds: float) -> str:
    """What the worker does."""
    time.sleep(seconds)
    logging.getLogger("distributed.worker").warning("from the worker")
    return "worked"


def run(_: str) -> bool:
    """Ask for one worker, call the function, and close the cluster."""
    remember()
    cluster = FluxQueueCluster(
        # Only a node that joins later is as large.
        cores=32 if POOL == "late" else 4,
        memory="256MiB",
        options={"image": "host", "queue": QUEUE},
        job_extra_directives=[],
        worker_extra_args=["--host", "127.0.0.1", "--no-dashboard"],
        scheduler_options={"host": "127.0.0.1", "dashboard_address": None},
    )
    try:
        cluster.scale(jobs=1)
        with DaskClient(cluster) as client:
            answer = client.submit(work, float(SECONDS)).result(timeout=LIMIT_S)
            print(answer, flush=True)
            for log in cluster.get_logs(cluster=False, scheduler=False).values():
                print("logs:", log, flush=True)
    finally:
        cluster.close()
    return answer == "worked"


main(run, interrupt)
