"""Translate the directives of a script, as a whole, to the Job that they describe.

``submit`` and ``explain`` call it. Pure: the time and the site's names are arguments. A directive
that changes where or how the job runs is kept exactly or refused with a way out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from fluxqueue.client.batch.begin_time import begin_time
from fluxqueue.client.batch.directive_values import (
    SINGLETON,
    count_of,
    dependency,
    duration,
    folder,
    number,
    pair,
    read_array,
)
from fluxqueue.client.batch.node_choice import (
    ANYWHERE,
    Alternatives,
    NodeExpression,
    both,
    of_constraint,
    of_hosts,
    of_requires,
    unknown_name,
)
from fluxqueue.client.batch.refused_steps import refuse_steps
from fluxqueue.client.batch.script import Said, Script, WholeHeader
from fluxqueue.client.batch.script_resources import cpus_of, devices_of, memory_of
from fluxqueue.client.batch.site_names import GPU, SiteNames
from fluxqueue.client.batch.task_layout import (
    TaskLayout,
    lay_out,
    read_nodes,
)
from fluxqueue.errors import InvalidInput

FLUX_URGENCY, FLUX_URGENCY_MAX = 16, 31
_SIGNALS = {
    "1": "HUP", "2": "INT", "3": "QUIT", "10": "USR1", "12": "USR2", "15": "TERM", "18": "CONT",
}  # fmt: skip
"""Signals that a shell can send and a program can handle, by their numbers on Linux."""
SIGNAL_BEFORE_S = 60
"""sbatch's default time of ``--signal`` before the end (seconds)."""


@dataclass(frozen=True)
class ScriptRequest:
    """What to submit. Empty fields are left to the cluster.

    ``cpus``, ``memory``, ``devices``: of each pod. ``takes_node_memory``: the pod gets all memory
    of its node. ``array``: the indexes of an array, and ``array_limit`` how many of them run at
    once. ``signal``: what the script gets in place of TERM, and ``is_for_steps`` whether only what
    ``srun`` started gets it. ``script``: what it was translated from. ``busybox``: the image that
    brings the connections between several pods, and ``service`` the name by which these find each
    other.
    """

    name: str = ""
    original_name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    layout: TaskLayout = field(default_factory=lambda: TaskLayout(1))
    cpus: str = "1"
    memory: str = ""
    takes_node_memory: bool = False
    devices: Mapping[str, int] = field(default_factory=dict)
    nodes_allowed: Alternatives = ANYWHERE
    duration: str = ""
    grace_s: int = 0
    signal: str = ""
    is_for_steps: bool = False
    queue: str = ""
    priority: str = ""
    depends_on: str = ""
    begin: str = ""
    within: str = ""
    folder: str = ""
    account: str = ""
    comment: str = ""
    is_held: bool = False
    is_exclusive: bool = False
    restarts_on_loss: bool = False
    waits: bool = False
    array: tuple[int, ...] = ()
    array_limit: int = 0
    environment: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    busybox: str = ""
    service: str = ""
    script: Script = field(default_factory=lambda: Script(()))

    @property
    def is_script(self) -> bool:
        """Return whether it is a script, not a command."""
        return bool(self.script.text)

    @property
    def is_singleton(self) -> bool:
        """Return whether it takes turns with the jobs of its user that have the same name."""
        return bool(SINGLETON.search(self.depends_on))

    @property
    def system(self) -> str:
        """Return the batch system of its directives and of the variables that it finds."""
        return self.script.system


def translate(
    script: Script, site: SiteNames, now: datetime, *, is_each_pod: bool | None = None
) -> ScriptRequest:
    """Return the request of a script, or of a command, which runs in each of its pods.

    A script runs once, and starts its tasks itself. ``is_each_pod``: it runs in a pod for each
    task. None: as the site has it.

    Raises
    ------
    InvalidInput
        A value is invalid, two directives contradict each other, or the combination cannot be kept.
    """
    asked = WholeHeader(script.said)
    where = next((one[-1].where for one in script.said.values()), "")
    request = ScriptRequest(
        command=script.command,
        script=script,
        ignored=(*script.ignored, *_ignored_exports(asked)),
        name=asked.text("job-name"),
        image=asked.text("image"),
        within=asked.text("within"),
        folder=asked.read("chdir", folder, ""),
        account=asked.text("account"),
        comment=asked.text("comment"),
        queue=_queue(asked),
        duration=_duration(asked),
        begin=asked.read("begin", lambda text, at: begin_time(text, now, at), ""),
        depends_on=asked.read("dependency", dependency, ""),
        is_held=asked.has("hold"),
        restarts_on_loss=_restarts(asked, script.system),
        waits=asked.has("wait"),
        environment=_environment(asked),
        busybox=site.busybox,
    )
    request = _with_turn(request, asked, site)
    is_once = request.is_script and not (site.is_each_pod if is_each_pod is None else is_each_pod)
    request = _with_shape(request, asked, site, where, is_once=is_once)
    request = _with_array(request, asked)
    if is_once:
        refuse_steps(script.text, request.layout)
    return _with_signal(request, asked)


def with_options(
    script: Script,
    *,
    nodes: str = "",
    tasks: int = 0,
    array: str = "",
    cpus: str = "",
    memory: str = "",
    gpus: int = 0,
    exclusive: bool = False,
) -> Script:
    """Return the script with options of the command line in place of its directives.

    A number of tasks counts with the script's number of nodes. Resources are those of each pod, so
    they replace all directives of that resource.
    """
    said = dict(script.said)

    def put(key: str, value: str, option: str, *replaced: str) -> None:
        for one in replaced:
            said.pop(one, None)
        dialect = said[key][-1].dialect if key in said else "slurm"
        said[key] = (Said(value, option, dialect),)

    if nodes:
        put("nodes", nodes, "--nodes")
    if tasks:
        put("ntasks", str(tasks), "--tasks")
    if array:
        put("array", array, "--array")
    if cpus.isdigit():
        put("pod-cpus", cpus, "--cpus", "cpus-per-task", "cpus-per-gpu")
    if memory:
        for one in ("mem", "mem-per-cpu", "mem-per-gpu", "pod-memory", "job-memory"):
            said.pop(one, None)
    if gpus:
        put("pod-gpus", str(gpus), "--gpus", "gres", "gpus", "gpus-per-node", "gpus-per-task")
    if exclusive:
        put("exclusive", "", "--exclusive")
    return replace(script, said=said)


# --- the shape ----------------------------------------------------------------------------------


def _with_shape(
    request: ScriptRequest, asked: WholeHeader, site: SiteNames, where: str, *, is_once: bool
) -> ScriptRequest:
    """Return the request with pods, nodes, cpu, memory and devices."""
    is_exclusive = _is_exclusive(asked)
    allowed, listed = _nodes_allowed(asked, site)
    layout = _layout(asked, listed, where)
    if is_once:
        layout = replace(layout, nodes=max(1, layout.nodes), is_once=True)
    devices, more = devices_of(asked, layout, site)
    gpus = devices.get(GPU, 0)
    cpus = cpus_of(asked, layout, gpus)
    memory, is_whole = memory_of(asked, layout, cpus, gpus, is_exclusive=is_exclusive)
    ratio = asked.last("ntasks-per-gpu")
    if ratio and gpus != 1 and not layout.is_once:
        raise InvalidInput(
            f"--ntasks-per-gpu={ratio.value} does not give each task one GPU",
            where=ratio.where,
            hint="pods do not share GPUs: use --gpus-per-task=1",
        )
    return replace(
        request,
        layout=layout,
        cpus=cpus,
        memory=memory,
        takes_node_memory=is_whole,
        devices=devices,
        nodes_allowed=both(allowed, more, where),
        is_exclusive=is_exclusive,
    )


def _is_exclusive(asked: WholeHeader) -> bool:
    found = asked.last("exclusive")
    if found is not None and found.value:
        raise InvalidInput(
            f"--exclusive={found.value} cannot be kept",
            where=found.where,
            value=found.value,
            hint="use --exclusive: the nodes take no other job",
        )
    # flux batch: nodes without a number of slots are whole nodes.
    nodes = asked.last("nodes")
    is_flux_nodes = nodes is not None and nodes.dialect == "flux"
    return found is not None or (
        is_flux_nodes and not asked.has("ntasks") and not asked.has("ntasks-per-node")
    )


def _layout(asked: WholeHeader, listed: tuple[str, ...], where: str) -> TaskLayout:
    nodes: tuple[int, ...] = asked.read("nodes", read_nodes, ())
    tasks: int | None = asked.read("ntasks", number, None)
    per_node: int | None = asked.read("ntasks-per-node", number, None)
    said_nodes = asked.last("nodes")
    if not nodes and asked.has("gpus") and asked.has("gpus-per-node"):
        nodes = _nodes_of_gpus(asked)
    at = where if said_nodes is None else said_nodes.where
    if tasks is None and (ratio := asked.last("ntasks-per-gpu")) and asked.has("gpus"):
        total = asked.read("gpus", lambda text, at: count_of(text, at)[1], 0)
        tasks = total * number(ratio.value, ratio.where)
    elif tasks is None and asked.has("gpus") and asked.has("gpus-per-task"):
        total = asked.read("gpus", lambda text, at: count_of(text, at)[1], 0)
        each = asked.read("gpus-per-task", lambda text, at: count_of(text, at)[1], 1)
        tasks = max(1, total // each) if each else None
    if said_nodes and said_nodes.dialect == "flux" and tasks is not None and nodes[0] > tasks:
        raise InvalidInput(
            f"{nodes[0]} nodes are more than {tasks} slots", where=at, hint="add slots"
        )
    if listed:
        nodes = _as_listed(nodes, tasks, listed, asked)
    if said := asked.last("spread-job"):
        nodes = _spread(nodes, tasks, said)
    return lay_out(nodes, tasks, per_node, at)


def _nodes_of_gpus(asked: WholeHeader) -> tuple[int, ...]:
    """Return on how many nodes ``--gpus`` are so many ``--gpus-per-node``."""
    said = asked.said["gpus"][-1]
    total = count_of(said.value, said.where)[1]
    each = asked.read("gpus-per-node", lambda text, at: count_of(text, at)[1], 1)
    if not each or not total or total % each:
        raise InvalidInput(
            f"{total} GPUs are not {each} on each of some nodes", where=said.where,
            value=said.value, hint="make --gpus a multiple of --gpus-per-node",
        )  # fmt: skip
    return (total // each,)


def _spread(nodes: tuple[int, ...], tasks: int | None, said: Said) -> tuple[int, ...]:
    """Return the largest number of nodes that is allowed."""
    most = max(nodes, default=0) if tasks is None else min(tasks, max(nodes, default=0))
    if not most:
        raise InvalidInput(
            "--spread-job needs a largest number of nodes", where=said.where, hint="add --nodes=1-8"
        )
    return (most,)


def _as_listed(
    nodes: tuple[int, ...], tasks: int | None, listed: tuple[str, ...], asked: WholeHeader
) -> tuple[int, ...]:
    """Return the number of listed nodes: a job holds all nodes of ``--nodelist``."""
    count, said = len(listed), asked.last("nodelist")
    at = "" if said is None else said.where
    if (nodes and count not in nodes) or (tasks is not None and tasks < count):
        wanted = f"{nodes[0]} nodes" if nodes and count not in nodes else f"{tasks} tasks"
        raise InvalidInput(
            f"--nodelist names {count} nodes for {wanted}, and a job holds all of them",
            where=at,
            hint="name as many nodes as the job uses, or use --exclude or --constraint",
        )
    return (count,)


def _nodes_allowed(asked: WholeHeader, site: SiteNames) -> tuple[Alternatives, tuple[str, ...]]:
    """Return the nodes that are allowed, and those that must all be used."""
    found = ANYWHERE
    listed: tuple[str, ...] = ()
    if said := asked.last("constraint"):
        found = both(found, of_constraint(said.value, site, said.where), said.where)
    for said in asked.said.get("requires", ()):
        found = both(found, of_requires(said.value, site, said.where), said.where)
    for key, operator in (("nodelist", "In"), ("exclude", "NotIn")):
        if said := asked.last(key):
            expression: NodeExpression
            expression, names = of_hosts(said.value, operator, said.where)
            found = both(found, ((expression,),), said.where)
            listed = names if key == "nodelist" else listed
    return found, listed


# --- its turn -----------------------------------------------------------------------------------


def _with_turn(request: ScriptRequest, asked: WholeHeader, site: SiteNames) -> ScriptRequest:
    """Return the request with its priority, by ``--qos``, ``--nice`` or Flux' urgency."""
    asked.only_one_of("priority", "nice", "urgency")
    if said := asked.last("qos"):
        if said.value not in site.qos:
            raise unknown_name(said.value, "qos", tuple(site.qos), site, said.where)
        qos = site.qos[said.value]
        request = replace(
            request,
            queue=request.queue or qos.queue or "",
            priority="" if qos.priority is None else str(qos.priority),
        )
    if said := asked.last("priority"):
        return replace(request, priority=_whole(said))
    if said := asked.last("nice"):
        value = -int(_whole(said) if said.value else 100)
        return replace(request, priority=str(value))
    if said := asked.last("urgency"):
        return _with_urgency(request, said)
    return request


def _with_urgency(request: ScriptRequest, said: Said) -> ScriptRequest:
    named = {"hold": 0, "default": FLUX_URGENCY, "expedite": FLUX_URGENCY_MAX}
    text = str(named.get(said.value.lower(), said.value))
    is_number = text.isascii() and text.isdigit() and len(text) < 3
    if not (is_number and int(text) <= FLUX_URGENCY_MAX):
        raise InvalidInput(
            f"{said.value!r} is not an urgency",
            where=said.where,
            value=said.value,
            hint=f"0 (held) to {FLUX_URGENCY_MAX}, {FLUX_URGENCY} is the default",
        )
    urgency = int(text)
    if not urgency:
        return replace(request, is_held=True)
    return (
        request
        if urgency == FLUX_URGENCY
        else replace(request, priority=str(urgency - FLUX_URGENCY))
    )


def _whole(said: Said) -> str:
    if not re.fullmatch(r"[+-]?\d{1,9}", said.value):
        raise InvalidInput(
            f"{said.value!r} is not a whole number",
            where=said.where,
            value=said.value,
            hint="use a number such as 100",
        )
    return str(int(said.value))


def _queue(asked: WholeHeader) -> str:
    found = asked.last("partition")
    if found is not None and "," in found.value:
        raise InvalidInput(
            f"{found.value!r} names several queues",
            where=found.where,
            value=found.value,
            hint="name one: fluxqueue explain -f SCRIPT --queue NAME compares them",
        )
    if found is None:
        return ""
    from fluxqueue.workload.annotations import parse_queue

    return parse_queue(found.value, found.where)


# --- the rest -----------------------------------------------------------------------------------


def _duration(asked: WholeHeader) -> str:
    """Return the run time. As in Slurm, that of sbatch's directives is rounded up to minutes."""
    said = asked.last("time")
    if said is None:
        return ""
    found = duration(said.value, "time", said.where)
    if said.dialect == "flux" or not found:
        return found
    return f"{-(-int(found.removesuffix('s')) // 60) * 60}s"


def _restarts(asked: WholeHeader, system: str) -> bool:
    """Return whether a lost node starts it again. As in Slurm and PBS, scripts must say if not."""
    asked.only_one_of("requeue", "no-requeue")
    return asked.has("requeue") or (system in {"slurm", "pbs"} and not asked.has("no-requeue"))


def _with_array(request: ScriptRequest, asked: WholeHeader) -> ScriptRequest:
    """Return the request with its array: one pod for each index."""
    said = asked.last("array")
    if said is None:
        return request
    indexes, limit = read_array(said.value, said.where)
    if request.layout.pods != 1:
        raise InvalidInput(
            f"an array of jobs with {request.layout.tasks} pods each cannot be one Job",
            where=said.where,
            value=said.value,
            hint="submit one Job for each index: fluxqueue submit SCRIPT"
            " --env SLURM_ARRAY_TASK_ID=N, without --array",
        )
    return replace(request, array=indexes, array_limit=limit)


def _with_signal(request: ScriptRequest, asked: WholeHeader) -> ScriptRequest:
    """Return the request with its grace period, in which it gets the signal first.

    Kubernetes sends TERM to the first process of a pod. That one sends the signal that was asked
    for: to the script (``B:``), or to what srun started, as Slurm does.
    """
    said = asked.last("signal") or asked.last("flux-signal")
    if said is None:
        return request
    found = re.fullmatch(r"(B:)?(?:SIG)?([A-Z0-9]{1,6})(?:@(\d{1,5}))?", said.value.upper())
    signal = "" if found is None else _SIGNALS.get(found[2], found[2])
    if found is None or signal not in _SIGNALS.values():
        raise InvalidInput(
            f"{said.value!r} is no signal with a time", where=said.where, value=said.value,
            hint="B:USR1@180: the script gets USR1 180 s before the end",
        )  # fmt: skip
    is_for_steps = said.dialect == "slurm" and not found[1]
    if (is_for_steps or signal != "TERM") and not request.is_script:
        raise InvalidInput(
            f"{said.value!r} needs a script", where=said.where, hint="TERM@seconds for a command"
        )
    grace_s = int(found[3] or SIGNAL_BEFORE_S)
    if request.duration:
        # As in Slurm, it comes within the first seconds if the job may not run longer.
        limit_s = int(request.duration.removesuffix("s"))
        grace_s = min(grace_s, limit_s - 1)
        request = replace(request, duration=f"{limit_s - grace_s}s")
    return replace(
        request,
        grace_s=grace_s,
        signal=signal if is_for_steps or signal != "TERM" else "",
        is_for_steps=is_for_steps,
    )


def _environment(asked: WholeHeader) -> tuple[tuple[str, str], ...]:
    found = [pair(said.value, said.where) for said in asked.said.get("env", ())]
    for said in asked.said.get("export", ()):
        for word in said.value.split(","):
            if "=" in word:
                found.append(pair(word, said.where))
            elif word not in {"ALL", "NONE", "NIL", ""}:
                raise InvalidInput(
                    f"{word!r} would be copied from your shell",
                    where=said.where,
                    value=said.value,
                    hint=f'give its value: fluxqueue submit --env {word}="${word}"',
                )
    return tuple(found)


def _ignored_exports(asked: WholeHeader) -> tuple[str, ...]:
    words = {word for said in asked.said.get("export", ()) for word in said.value.split(",")}
    return tuple(f"--export={word}" for word in sorted(words & {"ALL", "NONE", "NIL"}))
