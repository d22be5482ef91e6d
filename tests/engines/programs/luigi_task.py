"""Luigi: its KubernetesJobTask, which asserts a pod five seconds after the Job."""

from __future__ import annotations

import os

import luigi
from common import NAMESPACE, main, pod_spec, queue_labels
from luigi.contrib.kubernetes import KubernetesJobTask


class Work(KubernetesJobTask):  # type: ignore[misc]
    """One pod."""

    name = luigi.Parameter()
    backoff_limit = 3
    kubernetes_namespace = NAMESPACE
    auth_method = "kubeconfig"
    kubeconfig_path = os.environ["KUBECONFIG"]
    print_pod_logs_on_exit = True
    labels = queue_labels()
    spec_schema = pod_spec()
    is_done = False

    def signal_complete(self) -> None:
        """Note the success, which has no file."""
        self.is_done = True

    def complete(self) -> bool:
        """Tell whether it has succeeded."""
        return self.is_done


def run(name: str) -> bool:
    """Run the task, as a worker of Luigi does."""
    return bool(luigi.build([Work(name=name)], local_scheduler=True, log_level="INFO"))


def cancel(name: str) -> None:
    """Luigi has no command for this: a user deletes the Job."""
    raise SystemExit(4)


main(run, cancel)
