"""``fluxqueue nodes``, ``tree`` and ``queues``: free capacity, as sinfo shows it.

OURS is what FluxJobs were allocated, by the R in their status, even if their pods are not there
yet. On a node that a FluxJob holds whole, it is everything that other pods do not use. OTHERS is
what unmanaged bound pods request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluxqueue.cli.user import printing
from fluxqueue.cli.user.access import Access, ClusterAccess, with_access
from fluxqueue.cli.user.complete import complete_nodes, complete_queues
from fluxqueue.client.node_use import STATES, NodeLine, NodeUse, node_record
from fluxqueue.errors import InvalidInput

if TYPE_CHECKING:
    from fluxqueue.fluxjob.levels import Levels

OUTPUTS = ("table", "wide", "json", "yaml", "name")
ROOT = "cluster"
GIB = 1 << 30


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
    printing.check_output(output, OUTPUTS)
    wanted = set(filter(None, states.split(",")))
    if unknown := wanted - set(STATES):
        word = sorted(unknown)[0]
        raise InvalidInput(
            f"{word!r} is not a state", where="--state", value=word, hint=", ".join(STATES)
        )
    lines, levels = access.run(_read)
    if missing := set(names or ()) - {line.name for line in lines}:
        raise InvalidInput(
            "the cluster has no such node",
            where=sorted(missing)[0],
            hint="fluxqueue nodes lists them",
        )
    chosen = [
        line
        for line in lines
        if (not names or line.name in names) and (not wanted or line.state in wanted)
    ]
    if by:
        _print_sums(_sum_by(chosen, levels, by), by, output)
        return
    if _print_data([node_record(one, levels) for one in chosen], output):
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
    printing.check_output(output, OUTPUTS)
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

    printing.check_output(output, OUTPUTS)

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
    from fluxqueue.client.node_use import read_nodes

    return await read_nodes(cluster.client)


def _print_data(found: Sequence[Mapping[str, Any]] | Mapping[str, Any], output: str) -> bool:
    """Print JSON, YAML or names. Return False for a table."""
    listed = [found] if isinstance(found, Mapping) else found
    if output in {"json", "yaml"}:
        printing.document(found, output)
    elif output == "name":
        for one in listed:
            typer.echo(one.get("name") or one["metadata"]["name"])
    return output in {"json", "yaml", "name"}
