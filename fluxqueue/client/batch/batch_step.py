"""How a batch script begins in its pod: its variables, ``srun`` on its PATH, and its signal.

``job_of_script`` calls it. Pure. A few lines of shell come before the script, so its image needs
/bin/sh. A script that runs once starts its tasks by ``srun.sh``, which stands in the pod as srun,
scontrol and flux. On several nodes it runs in the first pod, and ``agent.sh`` in the others.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fluxqueue.client.batch.batch_variables import OF_NODE, cpus_of, variables_of
from fluxqueue.workload import labels

if TYPE_CHECKING:
    from fluxqueue.client.batch.script_request import ScriptRequest

RUN = "/run/fluxqueue"
"""A folder of the pod for srun and its steps."""
VOLUME = "fluxqueue-run"
ARRAY_STRIDE = 10_000_000
"""The jobid of a task is that of its array times this, plus its index."""

_PICK_INDEX = (
    'n=$JOB_COMPLETION_INDEX; for SLURM_ARRAY_TASK_ID in {indexes}; do [ "$n" -eq 0 ] && break;'
    " n=$((n - 1)); done; export SLURM_ARRAY_TASK_ID"
)
_STEP_INDEX = (
    "SLURM_ARRAY_TASK_ID=$(($JOB_COMPLETION_INDEX * {step} + {first})); export SLURM_ARRAY_TASK_ID"
)
IN_POD = {
    "slurm": 'export SLURMD_NODENAME="$here" SLURM_SUBMIT_DIR="$PWD"',
    "pbs": ('export PBS_O_WORKDIR="$PWD" PBS_O_HOST="$here" PBS_NODEFILE="$run/nodes"'),
    "lsf": (
        'export LS_SUBCWD="$PWD" LSB_JOBINDEX="${SLURM_ARRAY_TASK_ID:-0}"'
        ' LSB_MCPU_HOSTS="${counts# }" LSB_DJOB_HOSTFILE="$run/nodes"'
        ' LSB_HOSTS="$(echo $(cat "$run/nodes"))"'
    ),
}
"""The variables that are known in the pod, by the system."""
NODE_LIST = 'export SLURM_JOB_NODELIST="$hosts" SLURM_NODELIST="$hosts"'
_HERE = "here=$(uname -n) hosts=$(uname -n)"
_HOSTS = """\
i=0 hosts=
while [ $i -lt {nodes} ]; do hosts=$hosts${{hosts:+,}}{name}-$i.{service} i=$((i + 1)); done
here={name}-${{JOB_COMPLETION_INDEX:-0}}.{service}"""
"""The host names of an Indexed Job's pods under a Service."""
_NODE_FILE = """\
i=0 counts= IFS=,
for host in $hosts; do
n=$(({each} + (i < {more} ? 1 : 0))) i=$((i + 1))
counts="$counts $host $n"
while [ $n -gt 0 ]; do echo "$host"; n=$((n - 1)); done
done >"$run/nodes"
unset IFS"""
_OF_TASK = {
    "slurm": (
        f"SLURM_JOB_ID=$((SLURM_ARRAY_JOB_ID * {ARRAY_STRIDE} + SLURM_ARRAY_TASK_ID));"
        " SLURM_JOBID=$SLURM_JOB_ID; export SLURM_JOB_ID SLURM_JOBID"
    ),
    "pbs": 'export PBS_ARRAY_INDEX="$SLURM_ARRAY_TASK_ID" PBS_ARRAYID="$SLURM_ARRAY_TASK_ID"',
}
_INSTALL = """\
cat >"$run/srun" <<'END_OF_SRUN'
{srun}END_OF_SRUN
chmod +x "$run/srun"
ln -sf srun "$run/scontrol"
ln -sf srun "$run/flux"
export PATH="$run:$PATH" FLUXQUEUE_RUN="$run"
export FLUXQUEUE_TASKS={tasks} FLUXQUEUE_CPUS="{cpus}\""""
_CONNECT = """\
cat >"$run/agent" <<'END_OF_AGENT'
{agent}END_OF_AGENT
for name in rsh part signal; do ln -sf srun "$run/$name"; done
export FLUXQUEUE_NODES={nodes} FLUXQUEUE_NODE="${{JOB_COMPLETION_INDEX:-0}}"
export FLUXQUEUE_HOSTS="$hosts"
[ "$FLUXQUEUE_NODE" = 0 ] || exec "$run/busybox" sh "$run/agent" join
"$run/busybox" sh "$run/agent" serve"""
_SIGNALLED = """\
trap '{send}; again=1' TERM
"$@" &
script=$!
code=
while :; do
again=
wait "$script"
now=$?
[ "$now" = 127 ] && [ "${{code:-143}}" != 143 ] || code=$now
[ "$again" ] || break
done
{leave}exit "$code\""""
"""A signal interrupts ``wait`` (143), or comes as it returns. Then the process is gone (127)."""
_LEAVE = '"$run/busybox" sh "$run/agent" end "$code"\n'
_TO_SCRIPT = 'kill -s {signal} "$script"'
_TO_STEPS = (
    'for step in "$run"/steps/*; do read -r srun cpus <"$step" && kill -s {signal} "$srun";'
    " done 2>/dev/null"
)
_STARTERS = re.compile(r"\b(?:srun|scontrol|flux)\b")
_JOBID = {"slurm": ("SLURM_JOB_ID", "SLURM_JOBID"), "pbs": ("PBS_JOBID",), "lsf": ("LSB_JOBID",)}


@cache
def _program(name: str) -> str:
    return (files("fluxqueue.client.batch") / name).read_text(encoding="utf-8")


def uses_steps(request: ScriptRequest) -> bool:
    """Return whether srun stands on the PATH of the script."""
    return (
        request.is_script
        and request.system != ""
        and (request.layout.tasks > 1 or any(map(_STARTERS.search, request.command)))
    )


def needs_folder(request: ScriptRequest) -> bool:
    """Return whether the pod needs the folder ``RUN``."""
    return uses_steps(request) or request.system in {"pbs", "lsf"} or request.is_for_steps


def command_of(request: ScriptRequest) -> tuple[str, ...]:
    """Return the command of the container."""
    lines = [*_index(request), *_begin(request)]
    if not lines and not request.signal:
        return request.command
    if request.signal or request.layout.has_agents:
        send = (_TO_STEPS if request.is_for_steps else _TO_SCRIPT).format(
            signal=request.signal or "TERM"
        )
        leave = _LEAVE if request.layout.has_agents else ""
        lines.append(_SIGNALLED.format(send=send, leave=leave))
    else:
        lines.append('exec "$@"')
    command = request.command
    if uses_steps(request):
        # A login shell sets its own PATH. The first line of a script is a comment to its shell.
        command = tuple(re.sub(r"\A(#!.*sh\b)", rf"PATH={RUN}:$PATH \1", one) for one in command)
    return ("/bin/sh", "-c", "\n".join(lines), "script", *command)


def _index(request: ScriptRequest) -> list[str]:
    """Return what computes the index of a task, if it is not that of the Job."""
    array = request.array
    if not array or array == tuple(range(len(array))):
        return []
    step = array[1] - array[0] if len(array) > 1 else 1
    if array == tuple(range(array[0], array[-1] + 1, step)):
        return [_STEP_INDEX.format(step=step, first=array[0])]
    return [_PICK_INDEX.format(indexes=shlex.join(map(str, array)))]


def _begin(request: ScriptRequest) -> list[str]:
    """Return the lines before a script of a batch system."""
    if not request.is_script or (not request.system and not request.signal):
        return []
    layout = request.layout
    is_one = layout.pods == 1
    names = {"nodes": layout.nodes, "name": request.name, "service": request.service}
    hosts = _HOSTS.format(**names) if layout.has_agents else _HERE
    lines = [f"run=${{FLUXQUEUE_RUN:-{RUN}}}", hosts]
    if request.system in {"pbs", "lsf"}:
        each, more = divmod(layout.tasks, layout.pods)
        lines.append(_NODE_FILE.format(each=each, more=more))
    for name, value in variables_of(request).items():
        if value.startswith("$("):
            lines.append(f'export {name}="{value}"')
    if request.system in IN_POD:
        lines.append(IN_POD[request.system])
    if request.system == "slurm" and (is_one or layout.has_agents):
        lines.append(NODE_LIST)
    if request.array:
        lines.append(_OF_TASK.get(request.system, ""))
    if uses_steps(request):
        cpus = OF_NODE if request.is_exclusive else cpus_of(request)
        lines.append(_INSTALL.format(srun=_program("srun.sh"), tasks=layout.tasks, cpus=cpus))
        if layout.has_agents:
            lines.append(_CONNECT.format(agent=_program("agent.sh"), nodes=layout.nodes))
        elif not is_one:
            lines.append("export FLUXQUEUE_EACH_POD=1")
    return lines


def environment_of(request: ScriptRequest) -> list[dict[str, Any]]:
    """Return the variables of the container, but for those of its author."""
    found: list[dict[str, Any]] = []
    index = of_pod("annotations", labels.COMPLETION_INDEX)
    array = request.array
    if array and array == tuple(range(len(array))):
        found.append({"name": "SLURM_ARRAY_TASK_ID", **index})
    if array:
        limits = (("COUNT", len(array)), ("MIN", array[0]), ("MAX", array[-1]))
        found += [{"name": f"SLURM_ARRAY_TASK_{name}", "value": str(one)} for name, one in limits]
    jobid = of_pod("labels", labels.JOBID)
    found += [{"name": name, **jobid} for name in _JOBID.get(request.system, ())]
    if request.system == "slurm":
        if array:
            found.append({"name": "SLURM_ARRAY_JOB_ID", **jobid})
        layout = request.layout
        is_first = layout.pods == 1 or layout.is_once
        found.append({"name": "SLURM_PROCID", **({"value": "0"} if is_first else index)})
        if layout.pods == 1:
            found.append({"name": "SLURM_NODEID", "value": "0"})
        elif layout.nodes == layout.pods:
            found.append({"name": "SLURM_NODEID", **index})
    fixed = ((name, one) for name, one in variables_of(request).items() if not one.startswith("$("))
    return [*found, *({"name": name, "value": value.replace("$", "$$")} for name, value in fixed)]


def of_pod(part: str, key: str) -> dict[str, Any]:
    """Return the source of a variable that has a label or an annotation of the pod."""
    return {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.{part}['{key}']"}}}


def names_set(request: ScriptRequest) -> frozenset[str]:
    """Return the names of all variables that the script finds."""
    names = {one["name"] for one in environment_of(request)} | variables_of(request).keys()
    lines = [*_index(request), *(one for one in _begin(request) if "END_OF_" not in one)]
    return frozenset(names.union(*(re.findall(r"\b([A-Z][A-Z0-9_]+)=", one) for one in lines)))
