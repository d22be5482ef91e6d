"""The Kubeflow SDK: a TrainJob of a function, with a runtime of the suite."""

from __future__ import annotations

from common import LIMIT_S, NAMESPACE, main, queue_labels
from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.trainer import CustomTrainer, TrainerClient
from kubeflow.trainer.options import Labels, Name


def train() -> None:
    """The work of a node. Simulated pods take the time of the runtime instead."""
    print("worked")


def _client() -> TrainerClient:
    return TrainerClient(backend_config=KubernetesBackendConfig(namespace=NAMESPACE))


def run(name: str) -> bool:
    """Train, and wait as a notebook does."""
    client = _client()
    job = client.train(
        runtime=client.get_runtime("engine"),
        trainer=CustomTrainer(func=train, num_nodes=1),
        options=[Name(name), Labels({"fluxqueue/managed": "true", **queue_labels()})],
    )
    try:
        client.wait_for_job_status(job, timeout=LIMIT_S, polling_interval=1)
    except RuntimeError as error:
        print(error)
        return False
    for line in client.get_job_logs(job):
        print("logs:", line)
    return True


def cancel(name: str) -> None:
    """Delete the TrainJob."""
    _client().delete_job(name)


main(run, cancel)
