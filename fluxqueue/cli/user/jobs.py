"""``fluxqueue jobs``: what is in the queue and what runs, as squeue shows it.

The list is read in pages, and the API server filters as far as it can. Without ``--sort``, the jobs
of a state are shown by turn if they are few. If they are many, lines come as they are read, in the
API server's order, and none is kept.

``--sort name`` is the API server's order. Any other ``--sort`` reads all jobs first, and says so.
It keeps one line of each, with ``--limit`` only as many as are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluxqueue.cli.messages import complain
from fluxqueue.cli.option_class import with_options
from fluxqueue.cli.user import printing
from fluxqueue.cli.user.access import REFUSED, Access, ClusterAccess, with_access
from fluxqueue.cli.user.complete import complete_jobs, complete_queues, complete_states
from fluxqueue.errors import Gone, InvalidInput

if TYPE_CHECKING:
    from fluxqueue.client.fluxjob_lists import JobLine
    from fluxqueue.client.narrowed import Narrowed

OUTPUTS = "table, wide, json, yaml, name, or custom=JOBID,NAME,WHY:.status.reason"
FULL_NAME = "fluxjob.jobs.converged-computing.org"
BATCH = 500
"""FluxJobs per page."""

ORDERED_MAX = 1000
"""Jobs of a state that are sorted before they are shown, if no order is requested.

They are read in a fraction of a second.
"""

RESTARTS_MAX = 3
"""Restarts of a list that took too long, while nothing of it is shown."""

Narrow = Callable[["JobLine"], bool]


@dataclass(frozen=True, slots=True)
class JobsOptions:
    """The options of ``fluxqueue jobs``."""

    names: Annotated[
        list[str] | None,
        typer.Argument(help="only these, in any state", autocompletion=complete_jobs),
    ] = None
    states: Annotated[
        str,
        typer.Option(
            "--state",
            "-t",
            help="only these states, or live, waiting, started, ended, all",
            autocompletion=complete_states,
        ),
    ] = ""
    queue: Annotated[
        str, typer.Option("--queue", "-q", help="only this queue", autocompletion=complete_queues)
    ] = ""
    user: Annotated[str, typer.Option("--user", "-u", help="only jobs of this user")] = ""
    sort: Annotated[
        str,
        typer.Option(
            help="turn, name, age, jobid, priority, queue, size, start, state, user. With - "
            "descending. All except name read all jobs first. Default: by turn for few jobs, else "
            "as read"
        ),
    ] = ""
    limit: Annotated[int, typer.Option(min=0, help="maximum number of lines (0: all)")] = 0
    watch: Annotated[bool, typer.Option("--watch", "-w", help="then print changes")] = False
    output: Annotated[str, typer.Option("--output", "-o", help=OUTPUTS)] = "table"


@with_access(may_be_everywhere=True)
@with_options(JobsOptions)
def jobs(access: Access, options: JobsOptions) -> None:
    """List jobs: running jobs with their nodes, then waiting jobs by turn with the reason.

    Examples:

      fluxqueue jobs -A --state held,unsatisfiable

      fluxqueue jobs -u alice -q batch --sort -age

      fluxqueue jobs --watch

      fluxqueue jobs -o custom=JOBID,NAME,UID:.spec.workload.uid
    """
    from fluxqueue.client.fluxjob_lists import parse_order, parse_states

    wanted = parse_states(options.states or ("all" if options.names else "live"))
    asked = set(options.names or ())
    missing = set(asked)

    def narrow(line: JobLine) -> bool:
        meant = asked & {line.name, line.fluxjob, str(line.jobid)}
        missing.difference_update(meant)
        is_named = bool(meant) or not asked
        is_of = (not options.queue or line.queue == options.queue) and (
            not options.user or line.user == options.user
        )
        return is_named and is_of and line.state in wanted

    order = parse_order(options.sort or "turn")
    printer = make_printer(options.output, access.is_everywhere, options.watch)

    async def work(cluster: ClusterAccess) -> None:
        from fluxqueue.client.fluxjob_lists import check_namespace
        from fluxqueue.client.narrowed import Narrowed

        source = Narrowed(cluster.client, cluster.namespace, options.user)
        view = _JobsView(source, printer, narrow, wanted, options.limit)
        if not options.sort:
            await view.by_turn()
        elif options.sort == "name":
            await view.as_read()
        else:
            await view.sorted_by(*order)
        if options.watch:
            await _follow(cluster, printer, narrow, source.version)
        printer.close()
        if not view.count and cluster.namespace is not None:
            await check_namespace(cluster.client, cluster.namespace)
        where = (
            "" if cluster.namespace is None else f" in namespace {cluster.namespace} (-A: in all)"
        )
        if missing and not options.limit:
            for name in sorted(missing):
                complain(f"{name}: no such job{where}")
            raise typer.Exit(REFUSED)
        if not view.count:
            ended = "" if options.states else "; --state all: also those that have ended"
            complain(f"no jobs found{where}{ended}")

    access.run(work)


@dataclass(slots=True)
class _JobsView:
    """One list of FluxJobs, printed while it is read. ``count`` is the lines so far."""

    source: Narrowed
    printer: printing.Printer
    narrow: Narrow
    states: frozenset[str]
    limit: int
    count: int = 0

    async def by_turn(self) -> None:
        """Show one page in order. If there are more, show them state by state."""
        from fluxqueue.client.fluxjob_lists import STAGES

        is_shown = await self._show(self.states, most=BATCH, is_all_or_nothing=True)
        if not is_shown and not self.source.is_selecting:
            self._tell_order(self.states, BATCH)
            await self._show(self.states, most=0)
        elif not is_shown:
            for stage in STAGES:
                states = frozenset(map(str, stage)) & self.states
                if states and not self._is_full():
                    await self._show(states, most=ORDERED_MAX)

    async def as_read(self) -> None:
        """Show all in the API server's order."""
        await self._show(self.states, most=0)

    async def sorted_by(self, key: Callable[[JobLine], Any], is_backwards: bool) -> None:
        """Show all in an order that the API server does not have."""
        for attempt in range(RESTARTS_MAX + 1):
            try:
                found = await self._sort(key, is_backwards)
                break
            except Gone:
                self.source.version = ""
                if attempt == RESTARTS_MAX:
                    raise
        self._write(found)

    async def _sort(
        self, key: Callable[[JobLine], Any], is_backwards: bool
    ) -> list[tuple[Any, Any]]:
        from fluxqueue.client.fluxjob_lists import read_line

        found: list[tuple[Any, Any]] = []
        read, is_told = 0, False

        def cut() -> None:
            found.sort(key=lambda one: one[0], reverse=is_backwards)
            if self.limit:
                del found[self.limit :]

        async with aclosing(self.source.pages(self.states, limit=BATCH)) as pages:
            async for page in pages:
                if read >= ORDERED_MAX and not is_told:
                    is_told = True
                    self._tell_reading()
                read += len(page.items)
                lines = [(read_line(one), one) for one in page.items]
                found += [
                    (key(line), self.printer.prepare(one))
                    for line, one in lines
                    if self.narrow(line)
                ]
                if self.limit and len(found) > self.limit + BATCH:
                    cut()
        cut()
        return found

    def _is_full(self) -> bool:
        return bool(self.limit) and self.count >= self.limit

    async def _show(
        self, states: frozenset[str], *, most: int, is_all_or_nothing: bool = False
    ) -> bool:
        """Show jobs in ``states``: up to ``most`` by turn, more than that as they are read.

        ``is_all_or_nothing``: if there are more than ``most``, show nothing and return False.
        """
        from fluxqueue.client.fluxjob_lists import read_line, turn

        waiting: list[tuple[Any, Any]] | None = [] if most else None
        read = 0
        async with aclosing(self.source.pages(states, limit=BATCH)) as pages:
            async for page in pages:
                if waiting is not None and read >= most:
                    if is_all_or_nothing:
                        return False
                    self._tell_order(states, most)
                    self._write(waiting)
                    waiting = None
                read += len(page.items)
                found = [
                    (turn(line), self.printer.prepare(one))
                    for one in page.items
                    if (line := read_line(one)).state in states and self.narrow(line)
                ]
                if waiting is None:
                    self._write(found)
                else:
                    waiting += found
                if self._is_full():
                    return True
        self._write(sorted(waiting or (), key=lambda one: one[0]))
        return True

    def _write(self, found: Sequence[tuple[Any, Any]]) -> None:
        shown = [one for _, one in found]
        shown = shown[: self.limit - self.count] if self.limit else shown
        if shown:
            self.printer.write(shown)
        self.count += len(shown)

    @staticmethod
    def _tell_order(states: frozenset[str], most: int) -> None:
        words = " or ".join(sorted(states))
        complain(
            f"more than {most:,} are {words}: shown by name as they are read "
            "(--sort turn reads all of them first)"
        )

    @staticmethod
    def _tell_reading() -> None:
        complain(
            f"more than {ORDERED_MAX:,}: all are read before the first is shown "
            "(--sort name shows them as they are read)"
        )


async def _follow(
    cluster: ClusterAccess, printer: printing.Printer, narrow: Narrow, version: str
) -> None:
    """Print each FluxJob when its shown line changes, and once when it leaves the filter."""
    from fluxqueue.client.fluxjob_lists import read_line
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
            version = await _present_version(cluster)


async def _present_version(cluster: ClusterAccess) -> str:
    from fluxqueue.kube.resources import FLUXJOBS

    async with aclosing(cluster.client.pages(FLUXJOBS, cluster.namespace, limit=1)) as pages:
        async for page in pages:
            return page.resource_version
    raise AssertionError("unreachable: a list has a page")


def make_printer(output: str, is_everywhere: bool, watch: bool) -> printing.Printer:
    """Return the printer for ``-o``.

    Raises
    ------
    InvalidInput
        There is no such output format.
    """
    word, _, custom = output.partition("=")
    if word == "custom" and custom:
        headers, cells = _custom(custom)
        return printing.TextColumns(headers, cells)
    if output == "json":
        return printing.Json(is_lines=watch)
    if output == "yaml":
        return printing.Yaml()
    if output == "name":
        return printing.Names(FULL_NAME)
    if output not in {"table", "wide"}:
        raise InvalidInput(
            f"invalid output format {output!r}", where="-o", value=output, hint=OUTPUTS
        )
    chosen = WIDE if output == "wide" else SHORT
    headers = [*(["NAMESPACE"] if is_everywhere else []), *chosen]
    return printing.TextColumns(headers, _cells(headers, is_short=output == "table"))


def _cells(
    headers: Sequence[str], *, is_short: bool = False
) -> Callable[[Mapping[str, Any]], printing.Cells]:
    from fluxqueue.client.fluxjob_lists import read_line

    now = now_s()
    readers = [(SHORT_CELLS if is_short else CELLS)[header] for header in headers]

    def cells(item: Mapping[str, Any]) -> printing.Cells:
        line = read_line(item)
        return tuple(read(line, now) for read in readers)

    return cells


def _custom(
    text: str,
) -> tuple[list[str], Callable[[Mapping[str, Any]], printing.Cells]]:
    """Return columns by our own names, or by a header and a path in the object."""
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
                f"{header!r} is not a column",
                where="-o custom",
                value=header,
                hint=f"{', '.join(CELLS)}, or HEADER:.path.in.the.object",
            )
    return headers, lambda item: tuple(read(item) for read in readers)


def _one_cell(header: str) -> Callable[[Mapping[str, Any]], str]:
    cells = _cells([header])
    return lambda item: cells(item)[0]


def now_s() -> int:
    """Return the time in epoch seconds."""
    from fluxqueue.clock import SystemClock

    return SystemClock().now_s()


def clock_time(at_s: int | None) -> str:
    """Return a time in the zone of this machine, empty for None."""
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
        return f"~{clock_time(line.expected)}"
    return clock_time(line.started)


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
    "END": lambda line, _: clock_time(line.ended),
    "AGE": lambda line, now: printing.span(now - line.submitted),
    "REASON": lambda line, _: line.reason,
}


def _short_start(line: JobLine, now: int) -> str:
    if line.started is None and line.expected is not None:
        return f"~{printing.short_time(line.expected, now)}"
    return printing.short_time(line.started, now)


SHORT_CELLS = {**CELLS, "START": _short_start}
"""The cells of the plain table: a time of today is a time of day."""

SHORT = ("JOBID", "NAME", "USER", "QUEUE", "STATE", "TIME", "SIZE", "NODES", "START", "REASON")
WIDE = (
    "JOBID", "NAME", "KIND", "USER", "QUEUE", "STATE", "PRIORITY", "TIME", "SIZE", "NODES",
    "START", "END", "AGE", "REASON",
)  # fmt: skip
