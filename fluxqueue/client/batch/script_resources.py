"""The cpus, the memory and the devices of each pod of a script.

``script_request`` calls it with all directives and the layout that they give. Pure. Slurm counts by
node, by job, by task, by cpu and by GPU.
"""

from __future__ import annotations

from fluxqueue.client.batch.directive_values import count_of, in_mebibytes, mebibytes, number
from fluxqueue.client.batch.node_choice import Alternatives, unknown_name, with_labels
from fluxqueue.client.batch.script import Said, WholeHeader
from fluxqueue.client.batch.site_names import GPU, SiteNames
from fluxqueue.client.batch.task_layout import (
    TaskLayout,
    device_share_of_job,
    device_share_of_node,
    share_of_node,
)
from fluxqueue.errors import InvalidInput


def cpus_of(asked: WholeHeader, layout: TaskLayout, gpus: int) -> str:
    """Return the cpus of each pod."""
    asked.only_one_of("cpus-per-task", "cpus-per-gpu")
    if said := asked.last("pod-cpus"):
        return str(number(said.value, said.where))
    if said := asked.last("cpus-per-gpu"):
        if not gpus:
            raise InvalidInput("there are no GPUs", where=said.where, hint="use --cpus-per-task")
        return str(max(number(said.value, said.where) * gpus, layout.tasks_in_pod))
    return str(asked.read("cpus-per-task", number, 1) * layout.tasks_in_pod)


def memory_of(
    asked: WholeHeader, layout: TaskLayout, cpus: str, gpus: int, *, is_exclusive: bool
) -> tuple[str, bool]:
    """Return each pod's memory, and whether it takes all memory of its node."""
    asked.only_one_of("mem", "mem-per-cpu", "mem-per-gpu", "pod-memory", "job-memory")
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
        each = mebibytes(said.value, said.where)
        return in_mebibytes(each * layout.tasks_in_pod), False
    if said := asked.last("job-memory"):
        return in_mebibytes(-(-mebibytes(said.value, said.where) // layout.pods)), False
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


def devices_of(
    asked: WholeHeader, layout: TaskLayout, site: SiteNames
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
        add(said, _gpu_name(kind), count * layout.tasks_in_pod)
    if said := asked.last("pod-gpus"):
        add(said, "gpu", int(said.value))
    if (said := asked.last("ntasks-per-gpu")) and not asked.has("gpus"):
        add(said, "gpu", -(-layout.tasks_in_pod // number(said.value, said.where)))
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
