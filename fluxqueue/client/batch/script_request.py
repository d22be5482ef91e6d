"""Translate the directives of a script, as a whole, to the Job that they describe.

``submit`` and ``explain`` call it. Pure: the time and the site's names are arguments. A directive
that changes where or how the job runs is kept exactly or refused with a way out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from fluxqueue.client.batch.begin_time import begin_time
from fluxqueue.client.batch.directive_values import (
    count_of,
    dependency,
    duration,
    folder,
    in_mebibytes,
    mebibytes,
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
    with_labels,
)
from fluxqueue.client.batch.script import Said, Script
from fluxqueue.client.batch.site_names import GPU, SiteNames
from fluxqueue.client.batch.task_layout import (
    TaskLayout,
    device_share_of_job,
    device_share_of_node,
    lay_out,
    read_nodes,
    share_of_node,
)
from fluxqueue.errors import InvalidInput

FLUX_URGENCY, FLUX_URGENCY_MAX = 16, 31
SIGNAL_BEFORE_S = 60
"""sbatch's default time of ``--signal`` before the end (seconds)."""


@dataclass(frozen=True)
class ScriptRequest:
    """What to submit. Empty fields are left to the cluster.

    ``devices``: of each pod, by resource. ``node_memory``: the pod gets all memory of its node.
    ``array``: the indexes of an array, and ``array_limit`` how many of them run at once.
    ``is_slurm``: the script has lines for sbatch, and reads the variables that Slurm sets.
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
    is_slurm: bool = False


def translate(script: Script, site: SiteNames, now: datetime) -> ScriptRequest:
    """Return the request of a script.

    Raises
    ------
    InvalidInput
        A value is invalid, two directives contradict each other, or the combination cannot be kept.
    """
    asked = _WholeHeader(script.said)
    where = next((one[-1].where for one in script.said.values()), "")
    request = ScriptRequest(
        command=script.command,
        is_slurm=script.is_slurm,
        ignored=(*script.ignored, *_ignored_exports(asked)),
        name=asked.text("job-name"),
        image=asked.text("image"),
        within=asked.text("within"),
        folder=asked.read("chdir", folder, ""),
        account=asked.text("account"),
        comment=asked.text("comment"),
        queue=_queue(asked),
        duration=asked.read("time", lambda text, at: duration(text, "time", at), ""),
        begin=asked.read("begin", lambda text, at: begin_time(text, now, at), ""),
        depends_on=asked.read("dependency", dependency, ""),
        is_held=asked.has("hold"),
        restarts_on_loss=asked.has("requeue"),
        waits=asked.has("wait"),
        environment=_environment(asked),
    )
    request = _with_turn(request, asked, site)
    request = _with_shape(request, asked, site, where)
    request = _with_array(request, asked)
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
        put("cpus-per-task", cpus, "--cpus", "cpus-per-gpu")
    if memory:
        for one in ("mem", "mem-per-cpu", "mem-per-gpu", "pod-memory"):
            said.pop(one, None)
    if gpus:
        put("gpus-per-task", str(gpus), "--gpus", "gres", "gpus", "gpus-per-node")
    if exclusive:
        put("exclusive", "", "--exclusive")
    return replace(script, said=said)


@dataclass(frozen=True, slots=True)
class _WholeHeader:
    """The directives, with short ways to read them."""

    said: Mapping[str, tuple[Said, ...]]

    def has(self, key: str) -> bool:
        return key in self.said

    def last(self, key: str) -> Said | None:
        return self.said[key][-1] if key in self.said else None

    def text(self, key: str) -> str:
        found = self.last(key)
        return "" if found is None else found.value

    def read(self, key: str, read: Callable[[str, str], Any], default: Any) -> Any:
        found = self.last(key)
        return default if found is None else read(found.value, found.where)

    def only_one_of(self, *keys: str) -> None:
        found = [key for key in keys if key in self.said]
        if len(found) > 1:
            listed = " and ".join(f"--{key}" for key in found)
            raise InvalidInput(
                f"{listed} contradict each other",
                where=self.said[found[-1]][-1].where,
                hint="take one of the two away",
            )


# --- the shape ----------------------------------------------------------------------------------


def _with_shape(
    request: ScriptRequest, asked: _WholeHeader, site: SiteNames, where: str
) -> ScriptRequest:
    """Return the request with pods, nodes, cpu, memory and devices."""
    is_exclusive = _is_exclusive(asked)
    allowed, listed = _nodes_allowed(asked, site)
    layout = _layout(asked, listed, where)
    devices, more = _devices(asked, layout, site)
    gpus = devices.get(GPU, 0)
    cpus = _cpus(asked, gpus)
    memory, is_whole = _memory(asked, layout, cpus, gpus, is_exclusive=is_exclusive)
    if (ratio := asked.last("ntasks-per-gpu")) and gpus != 1:
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


def _is_exclusive(asked: _WholeHeader) -> bool:
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


def _layout(asked: _WholeHeader, listed: tuple[str, ...], where: str) -> TaskLayout:
    nodes: tuple[int, ...] = asked.read("nodes", read_nodes, ())
    tasks: int | None = asked.read("ntasks", number, None)
    per_node: int | None = asked.read("ntasks-per-node", number, None)
    said_nodes = asked.last("nodes")
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
    return lay_out(nodes, tasks, per_node, at)


def _as_listed(
    nodes: tuple[int, ...], tasks: int | None, listed: tuple[str, ...], asked: _WholeHeader
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


def _cpus(asked: _WholeHeader, gpus: int) -> str:
    asked.only_one_of("cpus-per-task", "cpus-per-gpu")
    if said := asked.last("cpus-per-gpu"):
        if not gpus:
            raise InvalidInput("there are no GPUs", where=said.where, hint="use --cpus-per-task")
        return str(number(said.value, said.where) * gpus)
    return str(asked.read("cpus-per-task", number, 1))


def _memory(
    asked: _WholeHeader, layout: TaskLayout, cpus: str, gpus: int, *, is_exclusive: bool
) -> tuple[str, bool]:
    """Return each pod's memory, and whether it takes all memory of its node."""
    asked.only_one_of("mem", "mem-per-cpu", "mem-per-gpu", "pod-memory")
    if said := asked.last("mem-per-cpu"):
        # 0 is all memory of the node, as with --mem.
        each = mebibytes(said.value, said.where)
        return (
            (in_mebibytes(each * int(cpus)), False)
            if each
            else _all_memory(layout, said, is_exclusive)
        )
    if said := asked.last("mem-per-gpu"):
        if not gpus:
            raise InvalidInput("there are no GPUs", where=said.where, hint="use --mem")
        return in_mebibytes(mebibytes(said.value, said.where) * gpus), False
    if said := asked.last("pod-memory"):
        return in_mebibytes(mebibytes(said.value, said.where)), False
    if said := asked.last("mem"):
        amount = mebibytes(said.value, said.where)
        if not amount:
            return _all_memory(layout, said, is_exclusive)
        return in_mebibytes(share_of_node(amount, layout, "--mem", said.where)), False
    return "", False


def _all_memory(layout: TaskLayout, said: Said, is_exclusive: bool) -> tuple[str, bool]:
    if is_exclusive:
        return "", False
    if layout.most_per_node != 1:
        raise InvalidInput(
            "all memory of a node cannot be divided among several pods",
            where=said.where,
            value=said.value,
            hint="add --exclusive: pods of whole nodes may use all of it",
        )
    return "", True


def _devices(
    asked: _WholeHeader, layout: TaskLayout, site: SiteNames
) -> tuple[dict[str, int], Alternatives]:
    """Return each pod's devices, and the nodes that have them."""
    found: dict[str, int] = {}
    labels: dict[str, str] = {}

    def add(said: Said, name: str, count: int) -> None:
        device = site.gres.get(name)
        if device is None and name != "gpu":
            raise unknown_name(name, "gres", tuple(site.gres), site, said.where)
        resource = GPU if device is None else device.resource
        labels.update({} if device is None else device.labels)
        if found.setdefault(resource, count) != count:
            raise InvalidInput(
                f"{resource} is asked for twice, {found[resource]} and {count} for each pod",
                where=said.where,
                hint="take one of the two away",
            )

    for key in ("gres", "gpus-per-node"):
        if said := asked.last(key):
            for name, count in _gres(said, prefix="" if key == "gres" else "gpu"):
                add(said, name, device_share_of_node(count, layout, f"--{key}", said.where))
    if said := asked.last("gpus-per-task"):
        kind, count = count_of(said.value, said.where)
        add(said, _gpu_name(kind), count)
    if said := asked.last("gpus"):
        kind, count = count_of(said.value, said.where)
        add(said, _gpu_name(kind), device_share_of_job(count, layout, said.where))
    return {key: one for key, one in found.items() if one}, (with_labels(labels),)


def _gres(said: Said, prefix: str) -> list[tuple[str, int]]:
    """Read ``gpu:a100:2,fpga:1``: names with their types, and counts."""
    if said.value.lower() == "none":
        return []
    found = []
    for word in said.value.split(","):
        if prefix:
            kind, count = count_of(word, said.where)
            found.append((_gpu_name(kind), count))
            continue
        name, _, rest = word.removeprefix("gres:").removeprefix("gres/").partition(":")
        kind, count = count_of(rest, said.where) if rest else ("", 1)
        found.append((f"{name}:{kind}" if kind else name, count))
    return found


def _gpu_name(kind: str) -> str:
    return f"gpu:{kind}" if kind else "gpu"


def _nodes_allowed(asked: _WholeHeader, site: SiteNames) -> tuple[Alternatives, tuple[str, ...]]:
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


def _with_turn(request: ScriptRequest, asked: _WholeHeader, site: SiteNames) -> ScriptRequest:
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


def _queue(asked: _WholeHeader) -> str:
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


def _with_array(request: ScriptRequest, asked: _WholeHeader) -> ScriptRequest:
    """Return the request with its array: one pod for each index."""
    said = asked.last("array")
    if said is None:
        return request
    indexes, limit = read_array(said.value, said.where)
    if request.layout.tasks != 1:
        raise InvalidInput(
            f"an array of jobs with {request.layout.tasks} tasks each cannot be one Job",
            where=said.where,
            value=said.value,
            hint="submit one Job for each index: fluxqueue submit SCRIPT"
            " --env SLURM_ARRAY_TASK_ID=N, without --array",
        )
    return replace(request, array=indexes, array_limit=limit)


def _with_signal(request: ScriptRequest, asked: _WholeHeader) -> ScriptRequest:
    """Return the request with its grace period: SIGTERM comes first, SIGKILL after it."""
    said = asked.last("signal") or asked.last("flux-signal")
    if said is None:
        return request
    found = re.fullmatch(r"(B:)?(?:SIG)?(?:TERM|15)(?:@(\d{1,5}))?", said.value)
    # sbatch signals the shell of the script with B: only. In a pod nothing else gets a signal.
    if not found or bool(found[1]) != (said.dialect == "slurm"):
        raise InvalidInput(
            f"{said.value!r} cannot be kept: Kubernetes sends SIGTERM to the script alone",
            where=said.where,
            value=said.value,
            hint="trap TERM in the script, and use --signal=B:TERM@seconds",
        )
    grace_s = int(found[2] or SIGNAL_BEFORE_S)
    if not request.duration:
        return replace(request, grace_s=grace_s)
    seconds = int(request.duration.removesuffix("s")) - grace_s
    if seconds < 1:
        raise InvalidInput(
            f"{grace_s} s before the end is before the start",
            where=said.where,
            value=said.value,
            hint="use fewer seconds, or a longer --time",
        )
    return replace(request, grace_s=grace_s, duration=f"{seconds}s")


def _environment(asked: _WholeHeader) -> tuple[tuple[str, str], ...]:
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


def _ignored_exports(asked: _WholeHeader) -> tuple[str, ...]:
    words = {word for said in asked.said.get("export", ()) for word in said.value.split(",")}
    return tuple(f"--export={word}" for word in sorted(words & {"ALL", "NONE", "NIL"}))
