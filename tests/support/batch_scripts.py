"""Batch scripts of tests: how a header reads, the Job that it makes, and its shape in a line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from fluxqueue.client.batch.batch_step import RUN, command_of, environment_of
from fluxqueue.client.batch.job_of_script import manifest_of
from fluxqueue.client.batch.script import read_script
from fluxqueue.client.batch.script_request import ScriptRequest, translate, with_options
from fluxqueue.client.batch.site_names import read_site_names
from fluxqueue.jobspec import Resource
from fluxqueue.jobspec.model import NODE
from fluxqueue.workload.kinds.batch_job import BATCH_JOB

Obj = dict[str, Any]

RECORDED = Path(__file__).parents[3] / "shared" / "slurm-oracle" / "slurm-22.05.8.json"
"""Jobs that real Slurm ran, with the variables of their batch steps."""

NOW = datetime(2030, 5, 15, 10, 30, tzinfo=timezone(timedelta(hours=2)))
"""A Wednesday."""

SITE = read_site_names(
    """
constraints:
  ib: {example.com/fabric: infiniband}
  big: {example.com/size: big, example.com/disk: "yes"}
gres:
  "gpu:a100": {resource: nvidia.com/gpu, labels: {nvidia.com/gpu.product: A100}}
  fpga: {resource: example.com/fpga}
qos:
  high: {priority: 100}
  debug: {queue: debug}
""",
    "site.yaml",
)


def read(*lines: str, **options: Any) -> ScriptRequest:
    """A shell script with these lines at its head."""
    text = "\n".join(["#!/bin/bash", *lines, "srun app", "#SBATCH -n 99"])
    return translate(
        with_options(read_script(text, "job.sh"), **options), SITE, NOW, is_each_pod=True
    )


def sbatch(options: str) -> ScriptRequest:
    """A script that runs in a pod for each task."""
    return read(*(f"#SBATCH {line.strip()}" for line in options.split(";") if line.strip()))


def once(options: str, body: str = "srun app", mark: str = "#SBATCH") -> ScriptRequest:
    """A script that runs once."""
    lines = (f"{mark} {line.strip()}" for line in options.split(";") if line.strip())
    return translate(read_script("\n".join(["#!/bin/bash", *lines, body]), "job.sh"), SITE, NOW)


def manifest(request: ScriptRequest) -> Obj:
    """The Job, as the API server stores it."""
    from dataclasses import replace

    found = manifest_of(replace(request, name=request.name or "x", image="busybox"))
    found["metadata"] |= {"namespace": "default", "uid": "1"}
    return found


def command(request: ScriptRequest, folder: Path, program: str, shell: str) -> list[str]:
    """The command of the container, to run here. ``program`` replaces the script."""
    words = [one.replace(RUN, str(folder)) for one in command_of(request)]
    if program:
        start = f"PATH={folder}:$PATH\n{program}"
        words = [*words[:4], *([shell, "sh"] if shell == "busybox" else [shell]), "-c", start]
    return words


def environment(request: ScriptRequest, folder: Path, **more: str) -> dict[str, str]:
    """The variables of the container, as the kubelet makes them."""
    fields = {"labels['fluxqueue/jobid']": "17", "annotations['batch.kubernetes": "0"}
    found = {}
    for one in environment_of(request):
        path = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        known = [value for key, value in fields.items() if path.startswith(f"metadata.{key}")]
        found[one["name"]] = one["value"].replace("$$", "$") if "value" in one else known[0]
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return kept | {"FLUXQUEUE_RUN": str(folder)} | found | more


def shape(request: ScriptRequest) -> str:
    """The shape that the queue reads from the Job, in the notation of the table."""
    job = manifest(request)
    if request.array:
        job["spec"] |= {"parallelism": 1, "completions": 1}
    jobspec = BATCH_JOB.to_request(job)
    slots: list[Resource] = []

    def walk(one: Resource) -> str:
        if one.is_slot:
            slots.append(one)
            return str(one.count.minimum)
        if one.type == NODE:
            return f"{one.count.minimum}x{walk(one.with_[0])}"
        return walk(one.with_[0])

    words = ["+".join(walk(one) for one in jobspec.resources)]
    pools = {one.type: one for one in slots[0].with_}
    words.append(f"cpu={pools['cpu'].count.minimum // 1000}")
    if memory := pools.get("memory"):
        is_all = bool(memory.is_exclusive)
        words.append(f"mem={'all' if is_all else memory.count.minimum // 2**20}")
    if gpu := pools.get("nvidia.com/gpu"):
        words.append(f"gpu={gpu.count.minimum}")
    words += [f"{k}={one.count.minimum}" for k, one in pools.items() if k == "example.com/fpga"]
    is_whole = jobspec.is_node_exclusive or any(
        one.type == NODE and one.is_exclusive for one in jobspec.resources
    )
    words += ["whole"] if is_whole else []
    if request.array:
        spec = manifest(request)["spec"]
        words.append(f"array={spec['completions']} limit={spec['parallelism']}")
    return " ".join(words)


def recorded_runs() -> list[Obj]:
    """The jobs that real Slurm ran."""
    found: list[Obj] = json.loads(RECORDED.read_text(encoding="utf-8"))["running"]
    return found


def check_variables(ours: Mapping[str, str], case: Obj) -> None:
    """Compare a batch step's variables with Slurm's, but for names and hyperthreads."""
    of_site = {"JOB_ID", "JOBID", "JOB_NAME", "JOB_PARTITION", "JOB_NODELIST", "NODELIST"}
    of_threads = {"CPUS_ON_NODE", "JOB_CPUS_PER_NODE", "TASKS_PER_NODE"}
    words = " ".join(case["argv"])
    theirs, here = _slurm(case["jobs"][0]["env"]), _slurm(ours)
    assert here.keys() >= theirs.keys() - {"GPUS_ON_NODE"}, words
    assert not here.keys() - theirs.keys() - {"SUBMIT_DIR"}, f"{words}: unset in Slurm"
    for name in theirs.keys() - of_site - of_threads - {"ARRAY_JOB_ID", "GPUS_ON_NODE"}:
        assert here[name] == theirs[name], f"{words}: {name}"


def _slurm(found: Mapping[str, str]) -> dict[str, str]:
    names = [one for one in found if one.startswith("SLURM_")]
    return {one.removeprefix("SLURM_"): found[one] for one in names}
