"""The engines of the suite: their environments and programs, and what the table says of each.

``test_engines`` runs them, ``table`` writes ``docs/user/engines.md``. An engine is in the table
only if all of its tests ran.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
ENVIRONMENTS = ROOT / ".venv" / "engines"
CHOSEN = "FLUXQUEUE_ENGINES"
"""The variable with the environments that are run. Without it, all that are installed are."""
QUEUE = "engines"
"""The queue of the suite."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One row of the table.

    Attributes
    ----------
    environment : the lock, ``requirements/engines-ENVIRONMENT.lock``.
    distribution : the package with the version of the row.
    creates : the objects that it makes.
    setting : what a user must set, empty for nothing.
    limit : which of its limits count the time in the queue.
    variant : which of its ways the program takes.
    can_wait : False if it fails while its work waits, suspended or gated.
    ends_on_cancel : False if it leaves its work in the queue when it is cancelled.
    has_logs, has_cancel : it prints the logs of its pods, and can cancel its work.
    can_choose_nodes : its work can be sent to a node that is then lost.
    survives_requeue : its work succeeds although its pods were ended and made again.
    survives_loss : the same, after the loss of a node.
    runs_programs : its pods run their commands, as processes of this machine (``host_programs``).
    needs_client : its program imports ``fluxqueue``, as the adapters do.
    leaves_job : it cancels by ``parallelism: 0``, so its Job stays without pods.
    release : the version of the row, where the distribution does not have it.
    late_cpus : of the nodes that join and are lost. The adapters choose nodes by their size.
    log : what its pods write, and the program shows. The default is what all simulated ones write.
    """

    name: str
    environment: str
    program: str
    distribution: str
    creates: str
    setting: str = ""
    limit: str = "none of its own"
    queue: str = QUEUE
    variant: str = ""
    can_wait: bool = True
    has_logs: bool = True
    has_cancel: bool = True
    can_choose_nodes: bool = True
    survives_requeue: bool = True
    survives_loss: bool = True
    runs_programs: bool = False
    needs_client: bool = False
    log: str = "simulated container"
    late_cpus: str = "4"
    release: str = ""
    leaves_job: bool = False
    ends_on_cancel: bool = True

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return ENVIRONMENTS / self.environment / "bin" / "python"

    @property
    def lock(self) -> Path:
        """The versions of its environment."""
        return ROOT / "requirements" / f"engines-{self.environment}.lock"

    @property
    def version(self) -> str:
        """The version of the row: the locked one of its package, or its release."""
        if self.release:
            return self.release
        text = self.lock.read_text(encoding="utf-8")
        found = re.search(rf"^{re.escape(self.distribution)}==([^ \\]+)", text, re.MULTILINE)
        assert found is not None, f"{self.distribution} is not in {self.lock.name}"
        return found[1]


JOB_DEADLINE = "`activeDeadlineSeconds` does not, since the Job is suspended"

_GATED = '`annotations={"fluxqueue/wait": "gated"}` with `wait_until_job_complete`'
_AGAIN = "`schedule_timeout_seconds` as long as the wait. `retries` against the loss of a node"
_STARTS = "`startup_timeout_seconds`, `schedule_timeout_seconds`"
_LOSS = "the annotation `fluxqueue/on-node-loss: requeue` against the loss of a node"


def _airflow(operator: str, variant: str, **more: Any) -> Engine:
    """Return the row of an operator of Airflow."""
    return Engine(
        f"Airflow, {operator}",
        "airflow",
        "airflow_program.py",
        "apache-airflow-providers-cncf-kubernetes",
        variant=variant,
        **{"creates": "Job", "limit": _STARTS, **more},
    )


ENGINES = (
    Engine(
        "kubernetes",
        "clients",
        "kubernetes_client.py",
        "kubernetes",
        "Job",
        limit=JOB_DEADLINE,
    ),
    Engine(
        "kubernetes-asyncio",
        "clients",
        "kubernetes_asyncio_client.py",
        "kubernetes-asyncio",
        "Job",
        limit="`timeout_seconds` of a watch",
    ),
    Engine("kr8s", "clients", "kr8s_client.py", "kr8s", "Job", limit="`timeout` of `wait`"),
    Engine("lightkube", "clients", "lightkube_client.py", "lightkube", "Job", limit=JOB_DEADLINE),
    Engine(
        "Dagster",
        "dagster",
        "dagster_job.py",
        "dagster-k8s",
        "Job",
        limit="`wait_timeout` of the client (a day)",
    ),
    _airflow(
        "KubernetesJobOperator",
        "job",
        setting=f"{_GATED}. `deferrable` if it may be requeued",
        survives_requeue=False,
        survives_loss=False,
    ),
    # Its trigger has no ``on_kill``.
    _airflow(
        "KubernetesJobOperator, deferrable", "job-deferrable", setting=_GATED, ends_on_cancel=False
    ),
    _airflow(
        "KubernetesStartKueueJobOperator, deferrable",
        "kueue-deferrable",
        setting=_GATED,
        ends_on_cancel=False,
    ),
    _airflow("KubernetesPodOperator", "pod", creates="Pod", setting=_AGAIN),
    _airflow("KubernetesPodOperator, deferrable", "pod-deferrable", creates="Pod", setting=_AGAIN),
    Engine(
        "Snakemake",
        "snakemake",
        "snakemake_workflow.py",
        "snakemake",
        "Job",
        setting="`retries` against the loss of a node. Its Jobs have no labels: queue `default`",
        queue="default",
        has_logs=False,
    ),
    Engine(
        "Prefect",
        "prefect",
        "prefect_worker.py",
        "prefect-kubernetes",
        "Job",
        setting="our job template, with `backoff_limit` 3",
        # Its worker hears of cancelled runs only while it submits them.
        ends_on_cancel=False,
        runs_programs=True,
        log="logs: worked",
    ),
    Engine(
        "Toil",
        "toil",
        "toil_workflow.py",
        "toil",
        "Job",
        setting="`kubernetes<36`. Its Jobs have no labels: queue `default`",
        queue="default",
        log="logs: worked in a pod",
        runs_programs=True,
        late_cpus="32",
    ),
    Engine(
        "Metaflow, the Job of a task",
        "metaflow",
        "metaflow_job.py",
        "metaflow",
        "Job",
        setting=f"{_LOSS}. A cancelled Job stays, with `parallelism` 0, and is held",
        limit="none of its own: `@timeout` counts in the pod",
        leaves_job=True,
    ),
    Engine(
        "Kubeflow SDK",
        "kubeflow",
        "kubeflow_sdk.py",
        "kubeflow",
        "TrainJob",
        setting='`Labels({"fluxqueue/managed": "true"})`',
        limit="`timeout` of `wait_for_job_status` (ten minutes)",
    ),
    _airflow(
        "FluxQueueOperator",
        "ours-deferrable",
        setting="the option `requeue` against the loss of a node",
        limit="`queued_timeout`, which counts nothing else",
        needs_client=True,
        late_cpus="32",
    ),
    _airflow(
        "FluxQueueOperator, deferrable=False",
        "ours",
        setting="the option `requeue` against the loss of a node",
        limit="`queued_timeout`, which counts nothing else",
        needs_client=True,
        late_cpus="32",
    ),
    Engine(
        "Dask, FluxQueueCluster",
        "adapters",
        "dask_adapter.py",
        "dask-jobqueue",
        "Job",
        limit="`timeout` of `result` and of `wait_for_workers`",
        needs_client=True,
        runs_programs=True,
        log="from the worker",
        late_cpus="32",
    ),
    Engine(
        "Parsl, FluxQueueProvider",
        "adapters",
        "parsl_adapter.py",
        "parsl",
        "Job",
        needs_client=True,
        has_logs=False,
        late_cpus="32",
    ),
    Engine(
        "PSI/J, executor fluxqueue",
        "adapters",
        "psij_adapter.py",
        "psij-python",
        "Job",
        setting="`fluxqueue.requeue` against the loss of a node",
        limit="`timeout` of `wait`",
        needs_client=True,
        late_cpus="32",
    ),
    Engine(
        "Nextflow, the Job of a task",
        "clients",
        "nextflow_job.py",
        "kubernetes",
        "Job",
        release="nf-k8s 1.6.1",
        setting=_LOSS,
    ),
    Engine(
        "Parsl",
        "parsl",
        "parsl_provider.py",
        "parsl",
        "Pod",
        setting="the queue by `annotations`, because it sets no labels",
        has_logs=False,
        can_choose_nodes=False,
        survives_requeue=False,
    ),
    Engine(
        "Luigi",
        "luigi",
        "luigi_task.py",
        "luigi",
        "Job",
        setting="none helps: it asserts a pod after 5 s, and no gate on it",
        limit="the first 5 s",
        can_wait=False,
        has_cancel=False,
        survives_loss=False,
    ),
)


def is_chosen(engine: Engine) -> bool:
    """Tell whether the environment of an engine is among those of this run."""
    return engine.environment in os.environ.get(CHOSEN, engine.environment).split()
