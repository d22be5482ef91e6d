"""The four scenes as data: which Jobs are submitted when, and how each must end. Pure.

The pods do no work. The embedded cluster reads from annotations how long they run and how they end
(``localcluster/...``). Everything else is an ordinary batch/v1 Job.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

PI_CORES, PI_NODE = 16, "pi-1"
BATCH_NODES, BATCH_CORES, BATCH_MEMORY_GI = 20, 32, 128
BATCH_NODE_NAMES = tuple(f"node-{number}" for number in range(1, BATCH_NODES + 1))
POOL_LABEL = "demo"
"""Node label that separates the first two scenes from the third."""

GPU_NODES, GPU_CORES, GPU_MEMORY_GI, GPUS = 4, 16, 64, 4
GPU_POOL = "gpu"
GPU_NODE_NAMES = tuple(f"{GPU_POOL}-{number}" for number in range(1, GPU_NODES + 1))
"""The nodes of the fourth scene. They do not exist when it begins."""
GPU_DELAY_S, GPU_IDLE_S = 2, 1
"""How long the simulated autoscaler needs for a node, and how long it keeps an idle one."""

BURST_SHARE = 0.7
TRICKLE_S = 6.0
IMPOSSIBLE_CORES = 40
SEGFAULT = 139
GPU_RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Submission:
    """A Job, when it is submitted (seconds after the scene's start), and how it must end."""

    manifest: Mapping[str, Any]
    at_s: float = 0.0
    must_end: str = "Completed"

    @property
    def name(self) -> str:
        """Return the Job's name."""
        return str(self.manifest["metadata"]["name"])

    @property
    def completions(self) -> int:
        """Return how many of its pods must succeed."""
        return int(self.manifest["spec"]["completions"]) if self.must_end == "Completed" else 0


@dataclass(frozen=True, slots=True)
class Scene:
    """Jobs in a namespace of their own.

    ``together_max`` is the number of pods that may hold a node at one moment, and must do so at
    some moment. None means that only the nodes' capacity limits it. ``node_pool`` is a
    FluxNodePool that exists from the beginning of the scene. All its nodes must come and go.
    """

    title: str
    namespace: str
    pool: str
    submissions: tuple[Submission, ...]
    together_max: int | None = None
    timeout_s: float = 120.0
    node_pool: Mapping[str, Any] | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the scene's nodes."""
        return {"pi": (PI_NODE,), GPU_POOL: GPU_NODE_NAMES}.get(self.pool, BATCH_NODE_NAMES)

    @property
    def new_nodes(self) -> tuple[str, ...]:
        """Return the nodes that must come and go."""
        return () if self.node_pool is None else self.nodes

    @property
    def cores(self) -> int:
        """Return the cores of the scene's nodes."""
        each = {"pi": PI_CORES, GPU_POOL: GPU_CORES}.get(self.pool, BATCH_CORES)
        return each * len(self.nodes)


def node_arguments() -> list[str]:
    """Return arguments of the embedded cluster: one node for pi, twenty for the batch.

    The nodes with GPUs are added by its autoscaler, when pods need them.
    """
    batch = f"cpu={BATCH_CORES},memory={BATCH_MEMORY_GI}Gi,{POOL_LABEL}=batch"
    nodes = [f"{PI_NODE},cpu={PI_CORES},memory=64Gi,{POOL_LABEL}=pi"]
    nodes += [f"{name},{batch}" for name in BATCH_NODE_NAMES]
    gpu = f"cpu={GPU_CORES},memory={GPU_MEMORY_GI}Gi,gpus={GPUS},{POOL_LABEL}={GPU_POOL}"
    times = f"max={GPU_NODES},delay={GPU_DELAY_S},idle={GPU_IDLE_S}"
    arguments = [word for node in nodes for word in ("--node", node)]
    return [*arguments, "--node-pool", f"{GPU_POOL},{times},{gpu}"]


def pi_scene() -> Scene:
    """Return four pods of 8 cores on 16: two run, two wait, all complete."""
    jobs = [_DemoJob(f"pi-{n}", "demo-pi", "pi", cpu=8, duration_s=2.0) for n in range(1, 5)]
    return Scene(
        title="four pods of 8 cores on one node of 16: two run, two wait",
        namespace="demo-pi",
        pool="pi",
        submissions=tuple(Submission(job.manifest()) for job in jobs),
        together_max=2,
    )


def retry_scene() -> Scene:
    """Return the same with pods that fail and are retried, and one Job that fails for good."""
    jobs = [
        _DemoJob(
            f"pi-{n}",
            "demo-retry",
            "pi",
            cpu=8,
            duration_s=1.0,
            backoff_limit=3,
            simulate={"exit-code": str(SEGFAULT), "fail-times": "1"},
        ).manifest()
        for n in range(1, 5)
    ]
    failing = _DemoJob(
        "segfault",
        "demo-retry",
        "pi",
        cpu=8,
        duration_s=1.0,
        backoff_limit=1,
        simulate={"exit-code": str(SEGFAULT)},
    ).manifest()
    return Scene(
        title="each pod fails once and is replaced; one Job fails for good; every core comes back",
        namespace="demo-retry",
        pool="pi",
        submissions=(*(Submission(job) for job in jobs), Submission(failing, 0.0, "Failed")),
        together_max=2,
    )


def batch_scene(jobs: int, seed: int) -> Scene:
    """Return ``jobs`` mixed Jobs, most of them in one burst.

    The first of them can never run.
    """
    dice = random.Random(seed)
    impossible = _DemoJob(
        "impossible", "demo-batch", "batch", cpu=IMPOSSIBLE_CORES, duration_s=1.0
    ).manifest()
    submissions = [Submission(impossible, 0.0, "Unsatisfiable")]
    trickle = round((jobs - 1) * (1 - BURST_SHARE))
    for number in range(1, jobs):
        at_s = TRICKLE_S * number / trickle if number <= trickle else TRICKLE_S
        submissions.append(Submission(_mixed_job(number, dice), at_s))
    return Scene(
        title=f"{jobs} mixed Jobs on {BATCH_NODES} nodes of {BATCH_CORES} cores (seed {seed})",
        namespace="demo-batch",
        pool="batch",
        submissions=tuple(submissions),
        timeout_s=300.0,
    )


def pool_scene() -> Scene:
    """Return a gang for four GPU nodes, on a cluster that has none."""
    job = _DemoJob(
        "train",
        "demo-pool",
        GPU_POOL,
        pods=GPU_NODES,
        cpu=GPU_CORES,
        duration_s=2.0,
        is_indexed=True,
        gpus=GPUS,
    ).manifest()
    return Scene(
        title=f"a job for {GPU_NODES} GPU nodes on a cluster that has none: they come, and go",
        namespace="demo-pool",
        pool=GPU_POOL,
        submissions=(Submission(job),),
        node_pool=_node_pool(),
    )


def _node_pool() -> dict[str, Any]:
    """Return the FluxNodePool of the nodes that the simulated autoscaler can add."""
    shape = {
        "cpu": str(GPU_CORES),
        "memory": f"{GPU_MEMORY_GI}Gi",
        GPU_RESOURCE: str(GPUS),
        "pods": "110",
    }
    return {
        "apiVersion": "jobs.converged-computing.org/v1alpha1",
        "kind": "FluxNodePool",
        "metadata": {"name": GPU_POOL},
        "spec": {
            "node": {"labels": {POOL_LABEL: GPU_POOL}, "allocatable": shape},
            "max": GPU_NODES,
            "provisioningTime": "5s",
            "pricePerHour": "3.10",
            "provider": {"placeholder": {}},
        },
    }


def _mixed_job(number: int, dice: random.Random) -> dict[str, Any]:
    """Return one Job of a kind drawn by weight.

    Every Job is a gang: all its pods start at once or none.
    """
    kind = dice.choices(("small", "medium", "gang", "memory", "big"), (52, 28, 5, 10, 5))[0]
    pods, cpu, memory_gi = _dimensions(kind, dice)
    return _DemoJob(
        f"{kind}-{number:03}",
        "demo-batch",
        "batch",
        pods=pods,
        cpu=cpu,
        memory_gi=memory_gi,
        duration_s=round(dice.uniform(0.5, 4.0), 1),
        is_indexed=kind in {"gang", "big"},
    ).manifest()


def _dimensions(kind: str, dice: random.Random) -> tuple[int, int, int]:
    """Return the number of pods, and the cores and GiB of memory of each."""
    match kind:
        case "small":
            return dice.randint(1, 4), dice.randint(1, 4), 1
        case "medium":
            return dice.randint(5, 16), dice.randint(1, 4), 1
        case "gang":
            return dice.randint(32, 64), dice.randint(1, 4), 1
        case "memory":
            return dice.randint(1, 6), 2, dice.choice((48, 64, 96))
        case _:
            return dice.randint(4, 12), 16, 8


@dataclass(frozen=True, slots=True)
class _DemoJob:
    name: str
    namespace: str
    pool: str
    _: KW_ONLY
    cpu: int
    duration_s: float
    pods: int = 1
    memory_gi: int = 1
    backoff_limit: int = 0
    is_indexed: bool = False
    gpus: int = 0
    simulate: Mapping[str, str] = field(default_factory=dict)

    def manifest(self) -> dict[str, Any]:
        script = {"duration": f"{self.duration_s}s", **self.simulate}
        notes = {f"localcluster/{key}": value for key, value in script.items()}
        limits = {"limits": {GPU_RESOURCE: str(self.gpus)}} if self.gpus else {}
        requests = {"cpu": str(self.cpu), "memory": f"{self.memory_gi}Gi"}
        command = ["perl", "-Mbignum=bpi", "-wle", "print bpi(2000)"]
        image, resources = "perl:5.34", {"requests": requests, **limits}
        container = {"name": "main", "image": image, "command": command, "resources": resources}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "parallelism": self.pods,
                "completions": self.pods,
                "completionMode": "Indexed" if self.is_indexed else "NonIndexed",
                "backoffLimit": self.backoff_limit,
                "template": {
                    "metadata": {"annotations": notes},
                    "spec": {
                        "restartPolicy": "Never",
                        "nodeSelector": {POOL_LABEL: self.pool},
                        "containers": [container],
                    },
                },
            },
        }
