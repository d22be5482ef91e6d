"""Dagster: the Job that its run launcher makes with the profile of our docs, and its waiting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes
import yaml
from common import LIMIT_S, NAMESPACE, SECONDS, main, pod_spec, queue_labels
from dagster_k8s.client import DagsterK8sError, DagsterKubernetesClient
from dagster_k8s.job import (
    DagsterK8sJobConfig,
    UserDefinedDagsterK8sConfig,
    construct_dagster_k8s_job,
)

PROFILE = Path(__file__).parents[3] / "docs" / "examples" / "dagster" / "dagster.yaml"


def _settings() -> dict[str, Any]:
    """Return the settings of runs, with the queue of the suite."""
    launcher = yaml.safe_load(PROFILE.read_text(encoding="utf-8"))["run_launcher"]
    settings: dict[str, Any] = launcher["config"]["run_k8s_config"]
    settings["job_metadata"]["labels"] = queue_labels()
    return settings


def _client() -> DagsterKubernetesClient:
    kubernetes.config.load_kube_config()
    return DagsterKubernetesClient.production_client()


def run(name: str) -> bool:
    """Launch, wait as its executor does, read the logs."""
    client, pod = _client(), pod_spec()
    made = construct_dagster_k8s_job(
        DagsterK8sJobConfig(job_image="busybox", dagster_home="/opt/dagster"),
        args=["sleep", SECONDS],
        job_name=name,
        user_defined_k8s_config=UserDefinedDagsterK8sConfig(
            pod_spec_config={"node_selector": pod["nodeSelector"]},
            container_config={"resources": pod["containers"][0]["resources"]},
            **_settings(),
        ),
        component="run_worker",
    )
    client.batch_api.create_namespaced_job(namespace=NAMESPACE, body=made)
    try:
        client.wait_for_job_success(name, NAMESPACE, wait_timeout=LIMIT_S)
    except DagsterK8sError as error:
        print(error)
        return False
    for pod_name in client.get_pod_names_in_job(name, NAMESPACE):
        print("logs:", client.retrieve_pod_logs(pod_name, NAMESPACE))
    return True


def cancel(name: str) -> None:
    """Terminate the run."""
    if not _client().delete_job(name, NAMESPACE):
        raise SystemExit(5)


main(run, cancel)
