"""What ``submit`` tells the author of a script: where its body runs, and what it will not find.

``submit`` calls it. Pure. A script that would do something else than at home without a word
is the worst of all results, so whatever differs is one line here, or a refusal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fluxqueue.client.batch.batch_step import names_set

if TYPE_CHECKING:
    from fluxqueue.client.batch.script_request import ScriptRequest

_VARIABLE = re.compile(r"\$\{?((?:SLURM|SLURMD|SRUN|PBS|LSB|FLUX)_\w+)(?![\w:=-]*[:=-])")
"""Not one with a default: ``${SLURM_RESTART_COUNT:-0}``."""
_COMMANDS = re.compile(
    r"(?<![\w./-])(sbatch|squeue|sacct|scancel|salloc|sbcast|sinfo|sstat|sattach|scontrol"
    r"(?! show hostname)|qsub|qstat|qdel|bsub|bjobs|bkill|blaunch|pbsdsh|module|ibrun|aprun|jsrun)"
    r"(?=[\s;|&)]|$)"
)
_NO_MEMORY = frozenset({"mem", "mem-per-cpu", "mem-per-gpu", "pod-memory", "job-memory"})


def notes_on(request: ScriptRequest) -> list[str]:
    """Return what the author of a script must know, one line each."""
    return list(_notes(request)) if request.is_script else []


def _notes(request: ScriptRequest) -> Iterator[str]:
    layout = request.layout
    nodes, tasks = layout.nodes, layout.tasks
    start = {"flux": "flux run"}.get(request.system, "srun")
    if layout.has_agents:
        yield f"runs once, on the first of {nodes} nodes. {start} reaches all (or --each-pod)"
        if tasks % nodes:
            yield f"keeps {request.cpus} cpus on each node, because its pods are alike"
    elif layout.is_once and tasks > 1:
        yield f"runs once, in one pod for {tasks} tasks. {start} starts them (or --each-pod)"
    elif layout.pods > 1:
        why = "" if nodes < 2 else f" on {nodes} nodes"
        yield f"runs in each of its {layout.pods} pods{why}, as if srun had started it"
    if request.system == "slurm":
        yield from _of_slurm(request)
    if request.system == "lsf":
        yield from _of_lsf(request)
    body = _body(request.script.text)
    known = names_set(request) | {name for name, _ in request.environment}
    known |= set(re.findall(r"(?:^|[\s;])(?:export\s+)?(\w+)=", body))
    unset = dict.fromkeys(one for one in _VARIABLE.findall(body) if one not in known)
    if unset and request.system:
        yield f"not set here: {', '.join(unset)}"
    if missing := dict.fromkeys(_COMMANDS.findall(body)):
        yield f"calls {', '.join(missing)}, which works only if the image has it"


def _of_slurm(request: ScriptRequest) -> Iterator[str]:
    """Tell where Slurm itself would do something else."""
    said = request.script.said
    is_one_pod = request.layout.is_once and request.layout.pods == 1
    if "gpus" in said and is_one_pod and sum(request.devices.values()) > 1:
        yield "takes all its GPUs from one node. With --nodes they come from several"
    if said and not (said.keys() & _NO_MEMORY or request.memory or request.is_exclusive):
        yield "asks for no memory, so none is kept for it: add --mem"
    if "nodelist" in said and "nodes" in said:
        yield "uses exactly the nodes of --nodelist. Slurm may add others"
    if any("aftercorr" in one.value.lower() for one in said.get("dependency", ())):
        yield "aftercorr waits for the whole array, not for the task of its index"


def _of_lsf(request: ScriptRequest) -> Iterator[str]:
    """Tell what depends on the site in LSF."""
    if not request.restarts_on_loss:
        yield "a lost node ends the job, as in LSF: add -r"
    if request.layout.tasks > 1 and "mem-per-cpu" in request.script.said:
        yield "memory is counted for each task. In LSF a site may count it for each host"


def _body(text: str) -> str:
    """Return the lines that are no comments."""
    return "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
