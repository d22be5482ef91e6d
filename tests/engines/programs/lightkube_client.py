"""lightkube: a Job, its ``wait``, and the logs of its pods."""

from __future__ import annotations

from common import NAMESPACE, job, main
from lightkube import Client
from lightkube.core.exceptions import ObjectDeleted
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod
from lightkube.types import CascadeType


def run(name: str) -> bool:
    """Create, wait for a condition, read the logs."""
    client = Client(namespace=NAMESPACE)
    client.create(Job.from_dict(job(name)))
    try:
        found = client.wait(Job, name, for_conditions=["Complete", "Failed"])
    except ObjectDeleted:
        return False
    for pod in client.list(Pod, labels={"batch.kubernetes.io/job-name": name}):
        print("logs:", "".join(client.log(pod.metadata.name)))
    return any(one.type == "Complete" for one in found.status.conditions or ())


def cancel(name: str) -> None:
    """Delete the Job."""
    Client(namespace=NAMESPACE).delete(Job, name, cascade=CascadeType.BACKGROUND)


main(run, cancel)
