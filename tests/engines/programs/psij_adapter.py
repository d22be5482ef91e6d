"""PSI/J: one job of the executor ``fluxqueue``, with its output in a file."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from common import POOL, QUEUE, SECONDS, interrupt, main, remember
from psij import Job as PsijJob
from psij import JobAttributes, JobExecutor, JobSpec, JobState, ResourceSpecV1


def run(name: str) -> bool:
    """Submit, wait for the end, show the output."""
    remember()
    output = Path(os.environ["HOME"]) / "output"
    executor = JobExecutor.get_instance("fluxqueue")
    spec = JobSpec(
        name=name,
        executable="sleep",
        arguments=[SECONDS],
        stdout_path=output,
        resources=ResourceSpecV1(
            process_count=1,
            # Only a node that joins later is as large.
            cpu_cores_per_process=32 if POOL == "late" else 4,
            exclusive_node_use=False,
        ),
        attributes=JobAttributes(
            duration=timedelta(minutes=10),
            queue_name=QUEUE,
            custom_attributes={"fluxqueue.image": "busybox", "fluxqueue.requeue": True},
        ),
    )
    job = PsijJob(spec)
    executor.submit(job)
    try:
        status = job.wait()
    except KeyboardInterrupt:
        job.cancel()
        job.wait()
        return False
    print(status, output.read_text(encoding="utf-8"), flush=True)
    return bool(status is not None and status.state is JobState.COMPLETED)


main(run, interrupt)
