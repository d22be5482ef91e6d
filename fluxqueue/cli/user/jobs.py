"""``fluxqueue jobs``: what is in the queue and what runs, as squeue shows it.

Read in pages: of 50,000 FluxJobs one line each is kept, or nothing at all where the order is the
API server's own (``--sort name``), and lines appear with the first page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluxqueue.cli.user import printing
from fluxqueue.cli.user.access import Access, Cluster, with_access
from fluxqueue.cli.user.complete import complete_jobs, complete_queues, complete_states
from fluxqueue.errors import Gone, InvalidInput

if TYPE_CHECKING:
    from fluxqueue.cli.user.fluxjobs import JobLine

OUTPUTS = "table, wide, json, yaml, name, or custom=JOBID,NAME,WHY:.status.reason"
FULL_NAME = "fluxjob.jobs.converged-computing.org"
BATCH = 500
"""FluxJobs a page."""

Narrow = Callable[["JobLine"], bool]


@with_access(may_be_everywhere=True)
def jobs(
    access: Access,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="only these, whatever their state", autocompletion=complete_jobs),
    ] = None,
    states: Annotated[
        str,
        typer.Option(
            "--state",
            "-t",
            help="states, or live, waiting, started, ended, all",
            autocompletion=complete_states,
        ),
    ] = "",
    queue: Annotated[
        str, typer.Option("--queue", "-q", help="of this queue", autocompletion=complete_queues)
    ] = "",
    user: Annotated[str, typer.Option("--user", "-u", help="submitted by this user")] = "",
    sort: Annotated[
        str,
        typer.Option(
            help="turn, name, age, jobid, priority, queue, size, start, state, user; -NAME: "
            "backwards. `name` prints as it reads"
        ),
    ] = "turn",
    limit: Annotated[int, typer.Option(min=0, help="at most so many; 0: all")] = 0,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="then print what changes")] = False,
    output: Annotated[str, typer.Option("--output", "-o", help=OUTPUTS)] = "table",
) -> None:
    """List jobs: what runs, and where; then what waits in the order of its turn, and why.

    Examples:

      fluxqueue jobs -A --state held,unsatisfiable

      fluxqueue jobs -u alice -q batch --sort -age

      fluxqueue jobs --watch

      fluxqueue jobs -o custom=JOBID,NAME,UID:.spec.workload.uid
    """
    from fluxqueue.cli.user.fluxjobs import parse_order, parse_states

    wanted = parse_states(states or ("all" if names else "live"))
    asked = set(names or ())

    def narrow(line: JobLine) -> bool:
        is_named = not asked or bool(asked & {line.name, line.fluxjob, str(line.jobid)})
        is_of = (not queue or line.queue == queue) and (not user or line.user == user)
        return is_named and is_of and line.state in wanted

    order = parse_order(sort)
    printer = make_printer(output, access.is_everywhere, watch)

    async def work(cluster: Cluster) -> int:
        if sort == "name" and not watch:
            return await _stream(cluster, printer, narrow, limit)
        return await _sorted(cluster, printer, narrow, order, limit, watch)

    if not access.run(work):
        where = "" if access.is_everywhere else " in this namespace; -A: in all"
        typer.echo(f"no jobs found{where}", err=True)


async def _stream(cluster: Cluster, printer: printing.Printer, narrow: Narrow, limit: int) -> int:
    from fluxqueue.cli.user.fluxjobs import read_line
    from fluxqueue.kube.resources import FLUXJOBS

    count = 0
    async with aclosing(cluster.client.pages(FLUXJOBS, cluster.namespace, limit=BATCH)) as pages:
        async for page in pages:
            found = [printer.prepare(one) for one in page.items if narrow(read_line(one))]
            found = found[: limit - count] if limit else found
            if found:
                printer.write(found)
            count += len(found)
            if limit and count >= limit:
                break
    printer.close()
    return count


async def _sorted(
    cluster: Cluster,
    printer: printing.Printer,
    narrow: Narrow,
    order: tuple[Callable[[JobLine], Any], bool],
    limit: int,
    watch: bool,
) -> int:
    from fluxqueue.cli.user.fluxjobs import read_line
    from fluxqueue.kube.resources import FLUXJOBS

    key, is_backwards = order

    def keep(one: dict[str, Any]) -> tuple[Any, Any] | None:
        line = read_line(one)
        return (key(line), printer.prepare(one)) if narrow(line) else None

    kept, version = await cluster.client.collect(FLUXJOBS, cluster.namespace, keep=keep)
    found = sorted(filter(None, kept), key=lambda one: one[0], reverse=is_backwards)
    if limit:
        found = found[:limit]
    if found:
        printer.write([prepared for _, prepared in found])
    if watch:
        await _follow(cluster, printer, narrow, version)
    printer.close()
    return len(found)


async def _follow(
    cluster: Cluster, printer: printing.Printer, narrow: Narrow, version: str
) -> None:
    """Print each FluxJob that changes in what is shown of it; one that leaves the filter once."""
    from fluxqueue.cli.user.fluxjobs import read_line
    from fluxqueue.kube.resources import FLUXJOBS

    shown: dict[str, Any] = {}
    while True:
        try:
            events = cluster.client.watch(FLUXJOBS, cluster.namespace, resource_version=version)
            async with aclosing(events) as events:
                async for event in events:
                    version = event.object["metadata"]["resourceVersion"]
                    if event.type == "BOOKMARK":
                        continue
                    uid, now = event.object["metadata"]["uid"], printer.prepare(event.object)
                    is_wanted = narrow(read_line(event.object))
                    if (is_wanted or uid in shown) and shown.get(uid) != now:
                        printer.write([now])
                    shown.pop(uid, None)
                    if is_wanted and event.type != "DELETED":
                        shown[uid] = now
        except Gone:
            _, version = await cluster.client.collect(
                FLUXJOBS, cluster.namespace, keep=lambda _: None
            )


def make_printer(output: str, is_everywhere: bool, watch: bool) -> printing.Printer:
    """The form that ``-o`` names.

    Raises
    ------
    InvalidInput
        There is no such form.
    """
    word, _, custom = output.partition("=")
    if word == "custom" and custom:
        headers, cells = _custom(custom)
        return printing.Columns(headers, cells)
    if output == "json":
        return printing.Json(is_lines=watch)
    if output == "yaml":
        return printing.Yaml()
    if output == "name":
        return printing.Names(FULL_NAME)
    if output not in {"table", "wide"}:
        raise InvalidInput(f"{output!r} is no form", where="-o", value=output, hint=OUTPUTS)
    chosen = WIDE if output == "wide" else SHORT
    headers = [*(["NAMESPACE"] if is_everywhere else []), *chosen]
    return printing.Columns(headers, _cells(headers))


def _cells(headers: Sequence[str]) -> Callable[[Mapping[str, Any]], printing.Cells]:
    from fluxqueue.cli.user.fluxjobs import read_line

    now = _now()
    readers = [CELLS[header] for header in headers]

    def cells(item: Mapping[str, Any]) -> printing.Cells:
        line = read_line(item)
        return tuple(read(line, now) for read in readers)

    return cells


def _custom(
    text: str,
) -> tuple[list[str], Callable[[Mapping[str, Any]], printing.Cells]]:
    """Columns by our names, or by a header and a path of the object."""
    headers: list[str] = []
    readers: list[Callable[[Mapping[str, Any]], str]] = []
    for part in text.split(","):
        header, _, path = part.partition(":")
        headers.append(header.upper())
        if path:
            readers.append(printing.read_path(path, "-o custom"))
        elif header.upper() in CELLS:
            readers.append(_one_cell(header.upper()))
        else:
            raise InvalidInput(
                f"{header!r} is no column",
                where="-o custom",
                value=header,
                hint=f"{', '.join(CELLS)}, or HEADER:.path.in.the.object",
            )
    return headers, lambda item: tuple(read(item) for read in readers)


def _one_cell(header: str) -> Callable[[Mapping[str, Any]], str]:
    cells = _cells([header])
    return lambda item: cells(item)[0]


def _now() -> int:
    from fluxqueue.clock import SystemClock

    return SystemClock().now_s()


def _clock_time(at_s: int | None) -> str:
    from datetime import datetime

    if at_s is None:
        return ""
    return datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%dT%H:%M:%S")


def _elapsed(line: JobLine, now: int) -> str:
    if line.started is None:
        return ""
    return printing.span((line.ended or now) - line.started)


def _start(line: JobLine, _: int) -> str:
    if line.started is None and line.expected is not None:
        return f"~{_clock_time(line.expected)}"
    return _clock_time(line.started)


CELLS: dict[str, Callable[[JobLine, int], str]] = {
    "NAMESPACE": lambda line, _: line.namespace,
    "JOBID": lambda line, _: "" if line.jobid is None else str(line.jobid),
    "NAME": lambda line, _: line.name,
    "KIND": lambda line, _: line.kind,
    "FLUXJOB": lambda line, _: line.fluxjob,
    "USER": lambda line, _: line.user,
    "QUEUE": lambda line, _: line.queue,
    "STATE": lambda line, _: line.state,
    "PRIORITY": lambda line, _: str(line.priority),
    "SIZE": lambda line, _: str(line.size),
    "NODES": lambda line, _: line.nodes,
    "TIME": _elapsed,
    "START": _start,
    "END": lambda line, _: _clock_time(line.ended),
    "AGE": lambda line, now: printing.span(now - line.submitted),
    "REASON": lambda line, _: line.reason,
}
SHORT = ("JOBID", "NAME", "USER", "QUEUE", "STATE", "TIME", "SIZE", "NODES", "START", "REASON")
WIDE = (
    "JOBID", "NAME", "KIND", "USER", "QUEUE", "STATE", "PRIORITY", "TIME", "SIZE", "NODES",
    "START", "END", "AGE", "REASON",
)  # fmt: skip
