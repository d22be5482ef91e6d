"""The official client: a Job, polled, and the logs of its pods."""

from __future__ import annotations

import time

from common import NAMESPACE, is_over, job, main
from kubernetes import client, config


def run(name: str) -> bool:
    """Create, poll, read the logs."""
    config.load_kube_config()
    batch, core = client.BatchV1Api(), client.CoreV1Api()
    batch.create_namespaced_job(NAMESPACE, job(name))
    while True:
        found = batch.read_namespaced_job_status(name, NAMESPACE)
        conditions = [one.to_dict() for one in found.status.conditions or ()]
        if (is_good := is_over(conditions)) is not None:
            break
        time.sleep(0.3)
    selector = f"batch.kubernetes.io/job-name={name}"
    for pod in core.list_namespaced_pod(NAMESPACE, label_selector=selector).items:
        print("logs:", core.read_namespaced_pod_log(pod.metadata.name, NAMESPACE))
    return is_good


def cancel(name: str) -> None:
    """Delete the Job."""
    config.load_kube_config()
    client.BatchV1Api().delete_namespaced_job(name, NAMESPACE, propagation_policy="Background")


main(run, cancel)
