"""Airflow: a DAG of one task. ``ENGINE_VARIANT`` chooses the operator.

Airflow imports this as a DAG file. ``airflow_program`` runs it.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from airflow.providers.cncf.kubernetes.operators.job import KubernetesJobOperator
from airflow.providers.cncf.kubernetes.operators.kueue import KubernetesStartKueueJobOperator
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import DAG
from common import LIMIT_S, NAMESPACE, POOL, QUEUE, SECONDS, queue_labels
from kubernetes.client import V1ResourceRequirements

NAME = os.environ.get("ENGINE_NAME", "work")
VARIANT = os.environ.get("ENGINE_VARIANT", "job")

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
}

with DAG("engine", start_date=datetime(2026, 1, 1, tzinfo=UTC), schedule=None) as dag:
    if VARIANT == "job":
        KubernetesJobOperator(
            **_TASK,
            labels=queue_labels(),
            annotations={"fluxqueue/wait": "gated"},
            backoff_limit=3,
            wait_until_job_complete=True,
        )
    elif VARIANT == "kueue":
        KubernetesStartKueueJobOperator(
            **_TASK,
            queue_name=QUEUE,
            annotations={"fluxqueue/wait": "gated"},
            backoff_limit=3,
            wait_until_job_complete=True,
        )
    elif VARIANT == "ours":
        from fluxqueue.client.airflow_operator import FluxQueueOperator

        FluxQueueOperator(
            task_id="work",
            work=["sleep", SECONDS],
            options={
                "image": "busybox",
                "name": NAME,
                "queue": QUEUE,
                # Only a node that joins later is as large.
                "requeue": True,
                "cpus": 32 if POOL == "late" else 4,
            },
            namespace=NAMESPACE,
        )
    else:
        KubernetesPodOperator(**_TASK, labels=queue_labels())
