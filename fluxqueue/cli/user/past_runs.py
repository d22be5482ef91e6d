"""``fluxqueue history`` and ``acct``: what happened to a job, and usage, as sacct shows it.

Both come from the view server, which shows each user what RBAC lets them list. The administrator's
commands at the database (``fluxqueue db history``) use the same statements.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from fluxqueue.cli.messages import complain
from fluxqueue.cli.option_class import with_options
from fluxqueue.cli.user import printing
from fluxqueue.cli.user.access import REFUSED, Access, ClusterAccess, with_access
from fluxqueue.cli.user.complete import complete_jobs, complete_queues
from fluxqueue.cli.user.view import Token, ViewUrl
from fluxqueue.client.view_server import open_view
from fluxqueue.errors import InvalidInput

Item = Mapping[str, Any]
Columns = Mapping[str, Callable[[Item], str]]

OUTPUTS = ("table", "wide", "csv", "json", "yaml")
Form = Annotated[str, typer.Option("--output", "-o", help=", ".join(OUTPUTS))]


def what_happened(detail: Mapping[str, Any]) -> str:
    """Return the detail of a line of history for people."""
    return detail.get("reason") or ", ".join(
        f"{_words(key)} {_value(key, value)}"
        for key, value in detail.items()
        if key not in {"from", "reason"} and value is not None
    )


def _words(key: str) -> str:
    return key.replace("_", " ")


def _value(key: str, value: Any) -> str:
    """Return a value for people: a time for epoch seconds, and numbers without a tail."""
    if key.endswith("_at") and isinstance(value, (int, float)) and value > 0:
        from fluxqueue.fluxjob.times import to_rfc3339

        return to_rfc3339(int(value))
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)


def _time(name: str) -> Callable[[Item], str]:
    def read(item: Item) -> str:
        from datetime import datetime

        if not item[name]:
            return ""
        at = datetime.fromisoformat(item[name]).astimezone()
        return at.strftime("%Y-%m-%dT%H:%M:%S")

    return read


def _short_ended(item: Item) -> str:
    from fluxqueue.cli.user.jobs import now_s
    from fluxqueue.fluxjob.times import from_rfc3339

    ended = item["endedAt"]
    return printing.short_time(from_rfc3339(ended), now_s()) if ended else ""


def _hours(name: str, of: float = 1.0) -> Callable[[Item], str]:
    return lambda item: f"{item[name] / of:.2f}"


def _text(name: str) -> Callable[[Item], str]:
    return lambda item: "" if item[name] is None else str(item[name])


def _elapsed(item: Item) -> str:
    from fluxqueue.fluxjob.times import from_rfc3339

    if not item["allocatedAt"]:
        return ""
    return printing.span(from_rfc3339(item["endedAt"]) - from_rfc3339(item["allocatedAt"]))


def _waited(item: Item) -> str:
    return "" if item["waitSeconds"] is None else printing.span(round(item["waitSeconds"]))


LINE: Columns = {
    "AT": _time("at"),
    "JOBID": _text("jobid"),
    "ACTOR": _text("actor"),
    "EVENT": _text("event"),
    "WHAT": lambda item: what_happened(item["detail"]),
}
RUN: Columns = {
    "NAMESPACE": _text("namespace"),
    "JOBID": _text("jobid"),
    "RUN": _text("run"),
    "NAME": _text("name"),
    "USER": _text("user"),
    "QUEUE": _text("queue"),
    "RESULT": _text("result"),
    "NODES": _text("nodes"),
    "ALLOCATED": _time("allocatedAt"),
    "ENDED": _time("endedAt"),
    "TIME": _elapsed,
    "CPU-HOURS": _hours("cpuSeconds", 3600),
    "GPU-HOURS": _hours("gpuSeconds", 3600),
    "SIZE": _text("size"),
    "SLOTS": _text("slots"),
    "QUEUED": _time("queuedAt"),
    "STARTED": _time("startedAt"),
    "REASON": _text("reason"),
}
SHORT_RUN = (
    "JOBID", "RUN", "NAME", "USER", "QUEUE", "RESULT", "NODES", "ENDED", "TIME", "CPU-HOURS",
    "GPU-HOURS",
)  # fmt: skip
SUM: Columns = {
    "RUNS": _text("runs"),
    "CPU-HOURS": _hours("cpuHours"),
    "GPU-HOURS": _hours("gpuHours"),
    "MEAN-WAIT": _waited,
}


@with_access()
def history(
    access: Access,
    name: Annotated[
        str, typer.Argument(help="name of a workload, or a jobid", autocompletion=complete_jobs)
    ],
    output: Form = "table",
    view: ViewUrl = "",
    token: Token = "",
) -> None:
    """Show what happened to a job, and which user or part did it. It may have ended long ago.

    Examples:

      fluxqueue history train

      fluxqueue history 17 -o json
    """
    printer = make_printer(output, LINE)

    async def work(cluster: ClusterAccess) -> int:
        query = {"namespace": cluster.one_namespace, "job": name}
        return await _print(cluster, "/history", query, printer, view, token)

    _must_be_known(access.run(work), name)


@dataclass(frozen=True, slots=True)
class AcctOptions:
    """The options of ``fluxqueue acct``."""

    name: Annotated[
        str,
        typer.Argument(
            help="show the runs of this workload or jobid, without it sums",
            autocompletion=complete_jobs,
        ),
    ] = ""
    by: Annotated[
        str, typer.Option(help="group by: user, queue, namespace, result, day, month")
    ] = "user,queue,namespace"
    runs: Annotated[bool, typer.Option("--runs", "-X", help="single runs instead of sums")] = False
    user: Annotated[str, typer.Option("--user", "-u", help="only jobs of this user")] = ""
    queue: Annotated[
        str, typer.Option("--queue", "-q", help="only this queue", autocompletion=complete_queues)
    ] = ""
    since: Annotated[
        str, typer.Option("--since", "-S", help="only ended since: 2030-01-31, 7d")
    ] = ""
    until: Annotated[str, typer.Option("--until", "-E", help="only ended before")] = ""
    limit: Annotated[int, typer.Option(min=0, help="maximum number of lines (0: all)")] = 0
    output: Form = "table"
    view: ViewUrl = ""
    token: Token = ""


@with_access(may_be_everywhere=True)
@with_options(AcctOptions)
def acct(access: Access, options: AcctOptions) -> None:
    """Show sums of usage (runs, core-hours, GPU-hours, mean wait), or list ended runs.

    They are for the namespace of the context, or with -A for all that you may see.

    Examples:

      fluxqueue acct -A --by user,month --since 90d

      fluxqueue acct --runs -u alice -S 1d -o csv > runs.csv

      fluxqueue acct train
    """
    narrowed = (options.runs, options.user, options.queue, options.since, options.until)
    if options.name and (any(narrowed) or access.is_everywhere):
        raise InvalidInput(
            "one workload is shown with all its runs in one namespace", where="NAME",
            value=options.name, hint="leave the other options out",
        )  # fmt: skip
    groups = [one.strip() for one in options.by.split(",") if one.strip()]
    is_sum = not (options.name or options.runs)
    columns = {**{g.upper(): _text(g) for g in groups}, **SUM} if is_sum else RUN
    printer = make_printer(options.output, columns, None if is_sum else SHORT_RUN)

    async def work(cluster: ClusterAccess) -> int:
        query = {
            "namespace": cluster.namespace or "",
            "job": options.name,
            "user": options.user,
            "queue": options.queue,
        }
        query |= {
            "since": options.since,
            "until": options.until,
            "by": ",".join(groups) if is_sum else "",
        }
        path = "/accounting" if is_sum else "/history/runs" if options.name else "/accounting/runs"
        return await _print(
            cluster, path, query, printer, options.view, options.token, options.limit
        )

    found = access.run(work)
    if options.name:
        _must_be_known(found, options.name)
    elif not found:
        where = "" if access.is_everywhere else " in this namespace (-A: in all that you may see)"
        complain(f"no runs found{where}")


def _must_be_known(count: int, name: str) -> None:
    """Exit with 1 and a message if nothing was found: an empty table looks like an answer."""
    if not count:
        complain(f"fluxqueue: {name}: not found in this namespace. Fix: fluxqueue acct --runs -A")
        raise typer.Exit(REFUSED)


async def _print(
    cluster: ClusterAccess,
    path: str,
    query: Mapping[str, str],
    printer: printing.Printer,
    view: str,
    token: str,
    limit: int = 0,
) -> int:
    count = 0
    async with (
        open_view(cluster.client, view, token, impersonated=cluster.impersonated) as opened,
        aclosing(opened.lists(path, query, limit)) as pages,
    ):
        async for page in pages:
            count += len(page)
            if page:
                printer.write([printer.prepare(one) for one in page])
    printer.close()
    return count


def make_printer(
    output: str, columns: Columns, short: Sequence[str] | None = None
) -> printing.Printer:
    """Return the printer for ``-o``. CSV has all columns, and times with their zone.

    Raises
    ------
    InvalidInput
        There is no such output format.
    """
    if output == "json":
        return Items()
    if output == "yaml":
        return YamlItems()
    if output == "csv":
        return Csv()
    printing.check_output(output, OUTPUTS)
    is_short = short is not None and output == "table"
    names = short if short is not None and is_short else list(columns)
    shown = {**columns, "ENDED": _short_ended} if is_short else columns
    readers = [shown[one] for one in names]
    return printing.TextColumns(names, lambda item: tuple(read(item) for read in readers))


class Items:
    """A JSON list of items as the view server sends them."""

    def __init__(self) -> None:
        self._is_first = True

    def prepare(self, item: Item) -> Item:
        """Return the item unchanged."""
        return item

    def write(self, prepared: Sequence[Item]) -> None:
        """Print items."""
        for one in prepared:
            typer.echo("[" if self._is_first else ",")
            typer.echo(json.dumps(one, indent=2), nl=False)
            self._is_first = False

    def close(self) -> None:
        """End the list."""
        typer.echo("[]" if self._is_first else "\n]")


class YamlItems:
    """A YAML list of items as the view server sends them."""

    def __init__(self) -> None:
        self._is_empty = True

    def prepare(self, item: Item) -> Item:
        """Return the item unchanged."""
        return item

    def write(self, prepared: Sequence[Item]) -> None:
        """Print items. Lists that follow each other are one list."""
        self._is_empty = self._is_empty and not prepared
        if prepared:
            printing.document(list(prepared), "yaml")

    def close(self) -> None:
        """End the list."""
        if self._is_empty:
            typer.echo("[]")


class Csv:
    """RFC 4180 with the field names in the first line. Nested values are JSON."""

    def __init__(self) -> None:
        self._fields: list[str] = []

    def prepare(self, item: Item) -> dict[str, Any]:
        """Return the fields of an item."""
        return {
            key: json.dumps(one)
            if isinstance(one, dict | list)
            else round(one, 3)
            if isinstance(one, float)
            else one
            for key, one in item.items()
        }

    def write(self, prepared: Sequence[dict[str, Any]]) -> None:
        """Print lines, the first ones below the field names."""
        writer = csv.DictWriter(sys.stdout, self._fields or list(prepared[0]))
        if not self._fields:
            self._fields = list(prepared[0])
            writer.writeheader()
        writer.writerows(prepared)

    def close(self) -> None:
        """CSV needs no end."""
