"""The variables that a batch script finds: those of Slurm, PBS or LSF, with their values.

``batch_step`` calls it for what follows from the directives, and adds what is known in the pod.
Pure. What is unset in these systems is unset here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fluxqueue.client.batch.directive_values import mebibytes
from fluxqueue.client.batch.site_names import GPU
from fluxqueue.workload.quantity import parse_quantity

if TYPE_CHECKING:
    from fluxqueue.client.batch.script_request import ScriptRequest

OF_NODE = "$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)"
"""The cpus of a whole node, which its pod counts."""
_UNBOUND = {
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "I_MPI_PIN": "off",
}
"""For mpirun of Open MPI 4 and 5, and of Intel. They would bind the ranks of each pod of a node to
the same first cores. Slurm confines each job to cores of its own."""
DEFAULT_QUEUE = "default"
_COPIED = {
    "gpus": "SLURM_GPUS",
    "gpus-per-node": "SLURM_GPUS_PER_NODE",
    "gpus-per-task": "SLURM_GPUS_PER_TASK",
    "cpus-per-task": "SLURM_CPUS_PER_TASK",
    "ntasks-per-node": "SLURM_NTASKS_PER_NODE",
    "account": "SLURM_JOB_ACCOUNT",
}
_IN_MEBIBYTES = {
    "mem": "SLURM_MEM_PER_NODE",
    "mem-per-cpu": "SLURM_MEM_PER_CPU",
    "mem-per-gpu": "SLURM_MEM_PER_GPU",
}


def variables_of(request: ScriptRequest) -> dict[str, str]:
    """Return the variables that follow from the directives. The shell expands ``$(...)``."""
    of_system = {"slurm": _slurm, "pbs": _pbs, "lsf": _lsf}.get(request.system)
    is_shared = request.is_script and cpus_of(request) > 1 and not request.is_exclusive
    return (_UNBOUND if is_shared else {}) | (of_system(request) if of_system else {})


def _nodes(request: ScriptRequest) -> int:
    """Return the number of nodes, or 0 if that is open."""
    return 1 if request.layout.pods == 1 else request.layout.nodes


def cpus_of(request: ScriptRequest) -> int:
    """Return the cpus of each pod, rounded up."""
    return math.ceil(parse_quantity(request.cpus, where="cpu"))


def _slurm(request: ScriptRequest) -> dict[str, str]:
    layout, nodes, said = request.layout, _nodes(request), request.script.said
    is_one_each = nodes == layout.pods
    cpus = OF_NODE if request.is_exclusive else str(cpus_of(request))
    found = {
        "SLURM_JOB_NAME": request.original_name or request.name,
        "SLURM_JOB_PARTITION": request.queue or DEFAULT_QUEUE,
        "SLURM_NODE_ALIASES": "(null)",
    }
    is_each_pod = layout.pods > 1 and not layout.is_once
    if is_each_pod or said.keys() & {"ntasks", "ntasks-per-node"}:
        found |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(layout.tasks))
    if nodes:
        found |= dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), str(nodes))
        parts = layout.parts or ((1, 1),)
        found["SLURM_TASKS_PER_NODE"] = _each((each, count) for count, each in parts)
    if is_one_each:
        found |= {"SLURM_LOCALID": "0", "SLURM_CPUS_ON_NODE": cpus}
        found["SLURM_JOB_CPUS_PER_NODE"] = cpus if nodes == 1 else f"{cpus}(x{nodes})"
        if gpus := request.devices.get(GPU):
            found["SLURM_GPUS_ON_NODE"] = str(gpus)
    found |= {name: said[key][-1].value for key, name in _COPIED.items() if key in said}
    for key, name in _IN_MEBIBYTES.items():
        if key in said and (amount := mebibytes(said[key][-1].value, said[key][-1].where)):
            found[name] = str(amount)
    if request.array:
        written = re.fullmatch(r"\[?\d+-\d+:(\d+)\]?(?:%\d*)?", said["array"][-1].value)
        found["SLURM_ARRAY_TASK_STEP"] = written[1] if written else "1"
    return found


def _each(parts: Iterable[tuple[int, int]]) -> str:
    """Return ``4(x2),3``: values, and on how many nodes."""
    return ",".join(f"{each}(x{count})" if count > 1 else str(each) for each, count in parts)


def _pbs(request: ScriptRequest) -> dict[str, str]:
    nodes, cpus = _nodes(request), cpus_of(request)
    found = {
        "PBS_JOBNAME": request.original_name or request.name,
        "PBS_QUEUE": request.queue or DEFAULT_QUEUE,
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_NP": str(request.layout.tasks),
        "NCPUS": str(cpus),
    }
    if nodes:
        each = -(-request.layout.tasks // nodes)
        found |= {"PBS_NUM_NODES": str(nodes), "PBS_NUM_PPN": str(each)}
    return found


def _lsf(request: ScriptRequest) -> dict[str, str]:
    tasks = str(request.layout.tasks)
    return {
        "LSB_JOBNAME": request.original_name or request.name,
        "LSB_QUEUE": request.queue or DEFAULT_QUEUE,
        "LSB_DJOB_NUMPROC": tasks,
        "LSB_MAX_NUM_PROCESSORS": tasks,
    }
