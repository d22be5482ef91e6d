"""``fluxqueue nodes``, ``tree`` and ``queues``: free capacity, as sinfo shows it.

OURS is what FluxJobs were allocated, by the R in their status, even if their pods are not there
yet. On a node that a FluxJob holds whole, it is everything that other pods do not use. OTHERS is
what unmanaged bound pods request.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluxqueue.cli.user import printing
from fluxqueue.cli.user.access import Access, ClusterAccess, with_access
from fluxqueue.cli.user.complete import complete_nodes, complete_queues
from fluxqueue.errors import InvalidInput

if TYPE_CHECKING:
    from fluxqueue.cli.user.cluster_view import ClusterView
    from fluxqueue.fluxjob.levels import Levels
    from fluxqueue.fluxjob.node import NodeFact

STATES = ("idle", "mixed", "allocated", "draining", "drained", "down")
OUTPUTS = ("table", "wide", "json", "yaml", "name")
ROOT = "cluster"
GIB = 1 << 30


@dataclass
class NodeUse:
    """Amounts in base units: capacity, our use, the use of unmanaged pods."""

    nodes: int = 0
    has: dict[str, int] = field(default_factory=dict)
    ours: dict[str, int] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)

    def free(self, name: str) -> int:
        """Return what is left, at least 0: a node may be promised more than it has."""
        taken = self.ours.get(name, 0) + self.others.get(name, 0)
        return max(0, self.has.get(name, 0) - taken)

    def take_whole(self) -> None:
        """Count everything that unmanaged pods do not use as ours: one FluxJob holds the node."""
        self.ours = {
            name: has - min(has, self.others.get(name, 0)) for name, has in self.has.items()
        }

    def add(self, more: NodeUse) -> None:
        """Add the amounts of ``more``."""
        self.nodes += more.nodes
        for into, amounts in (
            (self.has, more.has), (self.ours, more.ours), (self.others, more.others),
            (self.states, more.states),
        ):  # fmt: skip
            for name, amount in amounts.items():
                into[name] = into.get(name, 0) + amount

    def to_json(self) -> dict[str, Any]:
        """Return the form of ``-o json``."""
        names = sorted(self.has)
        return {
            "nodes": self.nodes,
            "states": self.states,
            "resources": {
                name: {
                    "total": self.has[name],
                    "ours": self.ours.get(name, 0),
                    "others": self.others.get(name, 0),
                    "free": self.free(name),
                }
                for name in names
            },
        }


@dataclass(frozen=True)
class NodeLine:
    """One node: its place in the levels, its state, and its use."""

    name: str
    path: tuple[str | None, ...]
    state: str
    why: str
    use: NodeUse


def node_lines(view: ClusterView, levels: Levels, why: Mapping[str, str]) -> list[NodeLine]:
    """Return a line for each node. ``why`` is node -> reason for its drain."""
    from fluxqueue.fluxjob.levels import path_of

    ours, whole = _allocated(view.fluxjobs)
    lines = []
    for node in view.nodes:
        held = ours.get(node.name, {})
        use = NodeUse(1, dict(node.capacity), held, view.foreign.get(node.name, {}))
        if node.name in whole:
            use.take_whole()
        state = _state(node, use)
        use.states = {state: 1}
        lines.append(
            NodeLine(node.name, path_of(levels, node.labels), state, why.get(node.name, ""), use)
        )
    return lines


def _allocated(
    fluxjobs: Iterable[Mapping[str, Any]],
) -> tuple[dict[str, dict[str, int]], set[str]]:
    """Return node -> resource -> what FluxJobs hold, and the nodes that one holds whole.

    An unreadable R counts nothing.
    """
    from fluxqueue.errors import InvalidInput as Unreadable
    from fluxqueue.scheduler.resource_set import read_resource_set

    found: dict[str, dict[str, int]] = {}
    whole: set[str] = set()
    for one in fluxjobs:
        try:
            given = read_resource_set((one.get("status") or {}).get("R"))
        except Unreadable:
            continue
        for node, resources in given.slots:
            on_node = found.setdefault(node, {})
            for name, amount in resources.items():
                on_node[name] = on_node.get(name, 0) + amount
        whole.update(given.held)
        if _is_exclusive(one):
            whole.update(node for node, _ in given.slots)
    return found, whole


def _is_exclusive(fluxjob: Mapping[str, Any]) -> bool:
    from fluxqueue.errors import InvalidInput as Unreadable
    from fluxqueue.jobspec.shape import takes_whole_nodes
    from fluxqueue.jobspec.stored import read_stored

    try:
        return takes_whole_nodes(read_stored(fluxjob["spec"].get("jobspec") or {}))
    except Unreadable:
        return False


def _state(node: NodeFact, use: NodeUse) -> str:
    if not node.is_up:
        return "down"
    if not node.is_schedulable:
        return "draining" if use.ours else "drained"
    if not use.free("cpu"):
        return "allocated"
    return "mixed" if use.ours else "idle"


@with_access(is_namespaced=False)
def nodes(
    access: Access,
    names: Annotated[
        list[str] | None, typer.Argument(help="only these", autocompletion=complete_nodes)
    ] = None,
    states: Annotated[
        str, typer.Option("--state", "-t", help=f"only these: {', '.join(STATES)}")
    ] = "",
    by: Annotated[
        str, typer.Option(help="group by state, or by a level of the cluster: zone, rack, ...")
    ] = "",
    output: Annotated[str, typer.Option("--output", "-o", help=", ".join(OUTPUTS))] = "table",
) -> None:
    """List nodes with their state, our use, the use of unmanaged pods, and what is free."""
    _check_output(output)
    wanted = set(filter(None, states.split(",")))
    if unknown := wanted - set(STATES):
        word = sorted(unknown)[0]
        raise InvalidInput(
            f"{word!r} is not a state", where="--state", value=word, hint=", ".join(STATES)
        )
    lines, levels = access.run(_read)
    if missing := set(names or ()) - {line.name for line in lines}:
        raise InvalidInput("the cluster has no such node", where=sorted(missing)[0])
    chosen = [
        line
        for line in lines
        if (not names or line.name in names) and (not wanted or line.state in wanted)
    ]
    if by:
        _print_sums(_sum_by(chosen, levels, by), by, output)
        return
    if _print_data([_node_json(one, levels) for one in chosen], output):
        return
    _print_nodes(chosen, levels, output == "wide")


def _print_nodes(lines: Sequence[NodeLine], levels: Levels, wide: bool) -> None:
    used = [n for n, level in enumerate(levels) if any(line.path[n] for line in lines)]
    extended = sorted({name for line in lines for name in line.use.has if _is_device(name)})
    headers = ["NODE", "STATE", *(levels[n].name.upper() for n in used)]
    headers += ["CPU", "OURS", "OTHERS", "FREE", "MEM-FREE", *(f"FREE:{n}" for n in extended)]
    headers += ["MEMORY", "PODS", "REASON"] if wide else []
    rows = []
    for line in lines:
        use = line.use
        cells = [line.name, line.state, *(line.path[n] or "" for n in used), *_cpu_cells(use)]
        cells += [_gib(use.free("memory"))]
        cells += [f"{use.free(n)}/{use.has.get(n, 0)}" for n in extended]
        if wide:
            cells += [_gib(use.has.get("memory", 0)), str(use.free("pods")), line.why]
        rows.append(tuple(cells))
    printing.TextTable(headers).write(rows)


def _cpu_cells(use: NodeUse) -> list[str]:
    amounts = (use.has.get("cpu", 0), use.ours.get("cpu", 0), use.others.get("cpu", 0))
    return [_cores(amount) for amount in (*amounts, use.free("cpu"))]


def _cores(millicores: int) -> str:
    return f"{millicores / 1000:.3f}".rstrip("0").rstrip(".")


def _gib(amount: int) -> str:
    return f"{amount / GIB:.1f}Gi"


def _is_device(name: str) -> bool:
    return "/" in name and not name.startswith("hugepages")


def _node_json(line: NodeLine, levels: Levels) -> dict[str, Any]:
    where = {level.name: place for level, place in zip(levels, line.path, strict=True) if place}
    return {
        "name": line.name,
        "state": line.state,
        "reason": line.why,
        "levels": where,
        "resources": line.use.to_json()["resources"],
    }


def _sum_by(lines: Sequence[NodeLine], levels: Levels, by: str) -> dict[str, NodeUse]:
    from fluxqueue.fluxjob.levels import find_level

    sums: dict[str, NodeUse] = {}
    level = find_level(levels, by)
    if by != "state" and level is None:
        known = ", ".join(["state", *(one.name for one in levels)])
        raise InvalidInput(f"{by!r} is not a level", where="--by", value=by, hint=known)
    depth = levels.index(level) if level is not None else 0
    for line in lines:
        place = line.state if level is None else _place(line, depth)
        sums.setdefault(place, NodeUse()).add(line.use)
    return sums


def _place(line: NodeLine, depth: int) -> str:
    """Return the place of a node on a level with the places above, or ``unknown``.

    A node without a label of this level stands in no place there, whatever is above.
    """
    own = line.path[depth]
    return "/".join([*(one for one in line.path[:depth] if one), own]) if own else "unknown"


def _print_sums(sums: Mapping[str, NodeUse], by: str, output: str) -> None:
    if _print_data([{"name": name, **use.to_json()} for name, use in sums.items()], output):
        return
    table = printing.TextTable([by.upper(), *SUMS])
    table.write([(name, *_sum_cells(use)) for name, use in sums.items()])


SUMS = ("NODES", "UP", "CPU", "OURS", "OTHERS", "FREE", "MEM-FREE")


def _sum_cells(use: NodeUse) -> list[str]:
    up = use.nodes - sum(use.states.get(state, 0) for state in ("down", "drained", "draining"))
    return [str(use.nodes), str(up), *_cpu_cells(use), _gib(use.free("memory"))]


@with_access(is_namespaced=False)
def tree(
    access: Access,
    depth: Annotated[int, typer.Option(min=0, help="number of levels, 0: down to the nodes")] = 0,
    output: Annotated[str, typer.Option("--output", "-o", help=", ".join(OUTPUTS))] = "table",
) -> None:
    """Show the cluster as a tree of its levels, with the use of each place."""
    _check_output(output)
    lines, levels = access.run(_read)
    used = [n for n in range(len(levels)) if any(line.path[n] for line in lines)]
    root = Branch(ROOT)
    for line in lines:
        root.add([line.path[n] or "unknown" for n in used] + [line.name], line)
    if _print_data(root.to_json(depth or len(used) + 1), output):
        return
    rows = [
        (label, *_sum_cells(branch.use), branch.state, _bar(branch.use))
        for label, branch in root.walk(depth or len(used) + 1)
    ]
    printing.TextTable(["PLACE", *SUMS, "STATE", "CPU-USED"]).write(rows)


@dataclass
class Branch:
    """A place with everything below it. A node is a leaf."""

    name: str
    use: NodeUse = field(default_factory=NodeUse)
    state: str = ""
    below: dict[str, Branch] = field(default_factory=dict)

    def add(self, path: Sequence[str], line: NodeLine) -> None:
        """Count a node here and at every place on its path."""
        self.use.add(line.use)
        if not path:
            self.state = line.state
            return
        self.below.setdefault(path[0], Branch(path[0])).add(path[1:], line)

    def walk(self, depth: int, prefix: str = "", own: str = "") -> Iterable[tuple[str, Branch]]:
        """Yield every place with its label, drawn as a tree, down to ``depth`` below this one."""
        yield own + self.name, self
        children = list(self.below.values()) if depth else []
        for number, child in enumerate(children, 1):
            is_last = number == len(children)
            mark, line = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
            yield from child.walk(depth - 1, prefix + line, prefix + mark)

    def to_json(self, depth: int) -> dict[str, Any]:
        """Return the form of ``-o json``."""
        below = [child.to_json(depth - 1) for child in self.below.values()] if depth else []
        found: dict[str, Any] = {"name": self.name, **self.use.to_json()}
        return {**found, **({"below": below} if below else {})}


def _bar(use: NodeUse) -> str:
    width, has = 10, use.has.get("cpu", 0)
    if not has:
        return ""
    ours = min(width, round(width * use.ours.get("cpu", 0) / has))
    others = min(width - ours, round(width * use.others.get("cpu", 0) / has))
    return "#" * ours + "o" * others + "." * (width - ours - others)


@with_access(is_namespaced=False)
def queues(
    access: Access,
    names: Annotated[
        list[str] | None, typer.Argument(help="only these", autocompletion=complete_queues)
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help=", ".join(OUTPUTS))] = "table",
) -> None:
    """List queues with their policy and the number of waiting and running jobs."""
    from fluxqueue.kube.resources import FLUXQUEUES

    _check_output(output)

    async def read(cluster: ClusterAccess) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await cluster.client.list(FLUXQUEUES)).items
        return found

    found = access.run(read)
    if missing := set(names or ()) - {one["metadata"]["name"] for one in found}:
        known = ", ".join(one["metadata"]["name"] for one in found)
        raise InvalidInput(
            "the cluster has no such queue", where=sorted(missing)[0], hint=f"known: {known}"
        )
    chosen = [one for one in found if not names or one["metadata"]["name"] in names]
    if _print_data(chosen, output):
        return
    wide = output == "wide"
    headers = ["QUEUE", "POLICY", "TAKES", "STARTS", "PRIORITY", "PENDING", "RUNNING", "HELD"]
    headers += ["NEVER", "DURATION", "WEIGHT", "WHY"] if wide else ["NEVER"]
    printing.TextTable(headers).write([_queue_cells(one, wide) for one in chosen])


def _queue_cells(queue: Mapping[str, Any], wide: bool) -> printing.Cells:
    spec, status = queue.get("spec") or {}, queue.get("status") or {}
    counts = [str(status.get(key, "")) for key in ("pending", "running", "held", "unsatisfiable")]
    cells = [queue["metadata"]["name"], spec.get("policy", "")]
    cells += ["yes" if spec.get(key, True) else "no" for key in ("enabled", "started")]
    cells += [str(spec.get("priority", 0)), *counts]
    if wide:
        refused = [
            one["message"]
            for one in status.get("conditions") or ()
            if one["type"] == "Valid" and one["status"] == "False"
        ]
        cells += [spec.get("defaultDuration", ""), str(spec.get("weight", 1)), " ".join(refused)]
    return tuple(cells)


async def _read(cluster: ClusterAccess) -> tuple[list[NodeLine], Levels]:
    from fluxqueue.cli.user.cluster_view import view_cluster
    from fluxqueue.kube.resources import NODES
    from fluxqueue.workload.labels import DRAIN_REASON

    def reason(node: Mapping[str, Any]) -> tuple[str, str]:
        annotations = node["metadata"].get("annotations") or {}
        return node["metadata"]["name"], annotations.get(DRAIN_REASON, "")

    view = await view_cluster(cluster.client)
    why, _ = await cluster.client.collect(NODES, keep=reason)
    levels = await read_levels(cluster)
    return node_lines(view, levels, dict(why)), levels


async def read_levels(cluster: ClusterAccess) -> Levels:
    """Return the levels that the cluster's FluxQueues show, or the defaults if none does."""
    from fluxqueue.errors import ApiError
    from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, Level
    from fluxqueue.kube.resources import FLUXQUEUES

    try:
        found = (await cluster.client.list(FLUXQUEUES)).items
    except ApiError as error:
        if error.code not in {403, 404}:
            raise
        return DEFAULT_LEVELS
    for queue in found:
        if told := (queue.get("status") or {}).get("levels"):
            return tuple(Level(one["name"], tuple(one["labels"])) for one in told)
    return DEFAULT_LEVELS


def _check_output(output: str) -> None:
    if output not in OUTPUTS:
        raise InvalidInput(
            f"invalid output format {output!r}", where="-o", value=output, hint=", ".join(OUTPUTS)
        )


def _print_data(found: Sequence[Mapping[str, Any]] | Mapping[str, Any], output: str) -> bool:
    """Print JSON, YAML or names. Return False for a table."""
    listed = [found] if isinstance(found, Mapping) else found
    if output == "json":
        typer.echo(json.dumps(found, indent=2))
    elif output == "yaml":
        import yaml

        typer.echo(yaml.safe_dump(json.loads(json.dumps(found)), sort_keys=False), nl=False)
    elif output == "name":
        for one in listed:
            typer.echo(one.get("name") or one["metadata"]["name"])
    return output in {"json", "yaml", "name"}
