"""Airflow: a DAG of one task. ``ENGINE_VARIANT`` chooses the operator.

Airflow imports this as a DAG file. ``airflow_program`` runs it.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.cncf.kubernetes.operators.job import KubernetesJobOperator
from airflow.providers.cncf.kubernetes.operators.kueue import KubernetesStartKueueJobOperator
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import DAG
from common import LIMIT_S, NAMESPACE, POOL, QUEUE, SECONDS, queue_labels
from kubernetes.client import V1ResourceRequirements

NAME = os.environ.get("ENGINE_NAME", "work")
VARIANT = os.environ.get("ENGINE_VARIANT", "job")

IS_DEFERRABLE = VARIANT.endswith("-deferrable")

_TASK: dict[str, Any] = {
    "task_id": "work",
    "name": NAME,
    "namespace": NAMESPACE,
    "image": "busybox",
    "cmds": ["sleep", SECONDS],
    "config_file": os.environ.get("KUBECONFIG"),
    "in_cluster": False,
    "node_selector": {"pool": POOL},
    "container_resources": V1ResourceRequirements(requests={"cpu": "4"}),
    "startup_timeout_seconds": LIMIT_S,
    "schedule_timeout_seconds": LIMIT_S,
    "deferrable": IS_DEFERRABLE,
}
_JOB: dict[str, Any] = {
    "annotations": {"fluxqueue/wait": "gated"},
    "backoff_limit": 3,
    "wait_until_job_complete": True,
    "job_poll_interval": 1,
    "on_kill_propagation_policy": "Background",
}


def _ours() -> None:
    from fluxqueue.client.airflow_operator import FluxQueueOperator

    FluxQueueOperator(
        task_id="work",
        work=["sleep", SECONDS],
        options={
            "image": "busybox",
            "name": NAME,
            "queue": QUEUE,
            "requeue": True,
            # Only a node that joins later is as large.
            "cpus": 32 if POOL == "late" else 4,
        },
        namespace=NAMESPACE,
        deferrable=IS_DEFERRABLE,
    )


with DAG("engine", start_date=datetime(2026, 1, 1, tzinfo=UTC), schedule=None) as dag:
    match VARIANT.removesuffix("-deferrable"):
        case "job":
            KubernetesJobOperator(**_TASK, **_JOB, labels=queue_labels())
        case "kueue":
            KubernetesStartKueueJobOperator(**_TASK, **_JOB, queue_name=QUEUE)
        case "pod":
            KubernetesPodOperator(
                **_TASK,
                labels=queue_labels(),
                # A pod is not made again, so Airflow does the task again.
                retries=int(POOL == "late"),
                retry_delay=timedelta(seconds=1),
            )
        case "ours":
            _ours()
