"""kr8s: a Job, its ``wait``, and the logs of its pods."""

from __future__ import annotations

import kr8s
from common import LIMIT_S, NAMESPACE, is_over, job, main
from kr8s.objects import Job


def run(name: str) -> bool:
    """Create, wait for a condition, read the logs."""
    made = Job(job(name))
    made.create()
    made.wait(["condition=Complete", "condition=Failed"], timeout=LIMIT_S)
    made.refresh()
    selector = {"batch.kubernetes.io/job-name": name}
    for pod in kr8s.get("pods", namespace=NAMESPACE, label_selector=selector):
        print("logs:", "\n".join(pod.logs()))
    return bool(is_over(made.raw["status"].get("conditions")))


def cancel(name: str) -> None:
    """Delete the Job."""
    Job.get(name, namespace=NAMESPACE).delete(propagation_policy="Background")


main(run, cancel)
