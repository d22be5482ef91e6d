"""Metaflow: the Job of one task, as ``@kubernetes`` makes it, and the waiting of its own client.

A whole flow needs a metadata service and an object store. The classes of the plugin do not.
"""

from __future__ import annotations

import time

from common import LIMIT_S, NAMESPACE, POOL, SECONDS, interrupt, main, queue_labels, remember
from kubernetes import client
from metaflow.plugins.kubernetes.kubernetes_client import KubernetesClient
from metaflow.plugins.kubernetes.kubernetes_job import RunningJob


def _submit(name: str) -> RunningJob:
    job = KubernetesClient().job(
        generate_name=f"{name}-",
        namespace=NAMESPACE,
        step_name="start",
        command=["sleep", SECONDS],
        image="busybox",
        image_pull_policy=None,
        service_account=None,
        cpu=4,
        memory=64,
        disk=10,
        qos="Burstable",
        gpu=None,
        gpu_vendor="nvidia",
        timeout_in_seconds=LIMIT_S,
        retries=0,
        port=None,
        use_tmpfs=False,
        tmpfs_size=None,
        tmpfs_path=None,
        shared_memory=None,
        persistent_volume_claims=None,
        node_selector={"pool": POOL},
        labels=queue_labels(),
        # @kubernetes(annotations={...})
        annotations={"fluxqueue/on-node-loss": "requeue"},
    )
    return job.create().execute()


def run(name: str) -> bool:
    """Submit, and look as the runtime of Metaflow does."""
    job = _submit(name)
    remember()
    try:
        while not job.is_done:
            time.sleep(0.5)
    except KeyboardInterrupt:
        job.kill()
        return False
    selector = f"job-name={job._name}"
    for pod in client.CoreV1Api().list_namespaced_pod(NAMESPACE, label_selector=selector).items:
        print("logs:", client.CoreV1Api().read_namespaced_pod_log(pod.metadata.name, NAMESPACE))
    return bool(job.has_succeeded)


main(run, interrupt)
