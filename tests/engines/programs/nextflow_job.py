"""Nextflow: the Job of a task, as its plugin nf-k8s writes it (``computeResourceType = 'Job'``).

Nextflow is a program for the Java virtual machine, so the official client applies its manifest. It
looks at the Job as nf-k8s does: at the newest pod, and at the Job if there is no pod.
"""

from __future__ import annotations

import time
from typing import Any

from common import NAMESPACE, POOL, SECONDS, main, queue_labels
from kubernetes import client, config


def _manifest(name: str) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": NAMESPACE,
        "labels": {
            # process.pod = [label: 'fluxqueue/queue', value: 'night']
            **queue_labels(),
            "nextflow.io/app": "nextflow",
            "nextflow.io/runName": "big-cray",
            "nextflow.io/taskName": "align_1",
            "nextflow.io/processName": "align",
            "nextflow.io/sessionId": "uuid-4b9dc0e4-0f2b-4a3c-a5a2-2f1c6f0a9a11",
        },
        # process.pod = [annotation: 'fluxqueue/on-node-loss', value: 'requeue']
        "annotations": {"fluxqueue/on-node-loss": "requeue"},
    }
    container = {
        "name": name,
        "image": "busybox",
        "command": [
            *("/bin/bash", "-ue", "-o", "pipefail", "-c"),
            f"sleep {SECONDS} && bash /scratch/.command.run 2>&1 | tee /scratch/.command.log",
        ],
        "resources": {"requests": {"cpu": "4", "memory": "64Mi"}, "limits": {"memory": "64Mi"}},
        "volumeMounts": [{"name": "vol-1", "mountPath": "/scratch"}],
    }
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        "nodeSelector": {"pool": POOL},
        "volumes": [{"name": "vol-1", "emptyDir": {}}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"backoffLimit": 0, "template": {"metadata": metadata, "spec": pod}},
    }


def _newest_pod(core: client.CoreV1Api, name: str) -> Any:
    pods = core.list_namespaced_pod(NAMESPACE, label_selector=f"job-name={name}").items
    return max(pods, key=lambda pod: pod.metadata.creation_timestamp, default=None)


def _exit_code(core: client.CoreV1Api, batch: client.BatchV1Api, name: str) -> int | None:
    """Return the exit code of the task, None while it waits or runs."""
    pod = _newest_pod(core, name)
    if pod is None:
        status = batch.read_namespaced_job_status(name, NAMESPACE).status
        return 0 if status.succeeded else 1 if status.failed else None
    states = pod.status.container_statuses
    ended = states[0].state.terminated if states else None
    return ended.exit_code if ended is not None else None


def run(name: str) -> bool:
    """Create the Job, poll each second, read the log."""
    config.load_kube_config()
    core, batch = client.CoreV1Api(), client.BatchV1Api()
    batch.create_namespaced_job(NAMESPACE, _manifest(name))
    while (code := _exit_code(core, batch, name)) is None:
        time.sleep(1)
    if (pod := _newest_pod(core, name)) is not None:
        print("logs:", core.read_namespaced_pod_log(pod.metadata.name, NAMESPACE))
    return code == 0


def cancel(name: str) -> None:
    """Delete the pods, then the Job."""
    config.load_kube_config()
    core, batch = client.CoreV1Api(), client.BatchV1Api()
    for pod in core.list_namespaced_pod(NAMESPACE, label_selector=f"job-name={name}").items:
        core.delete_namespaced_pod(pod.metadata.name, NAMESPACE)
    batch.delete_namespaced_job(name, NAMESPACE, propagation_policy="Background")


main(run, cancel)
