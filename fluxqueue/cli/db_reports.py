"""``fluxqueue db list|history|accounting``: what the rows say, whatever state the cluster is in.

``cli.db`` adds them to its commands, for the administrator at the database. They read only. The
commands of users are in ``cli.user``, and so is all steering.

Exit code 0, 1 if nothing has the name, 2 for bad input. The work is in ``db.reading``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluxqueue.cli.check_invariants import database_settings
from fluxqueue.cli.messages import complain
from fluxqueue.cli.user.past_runs import what_happened
from fluxqueue.errors import InvalidInput

if TYPE_CHECKING:
    from fluxqueue.db.database import Database

Row = dict[str, Any]


class Output(StrEnum):
    """Formats of the results."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"


OneName = Annotated[str, typer.Argument(help="name of a Job, Pod or FluxJob, or a jobid")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="namespace of the names")]
Url = Annotated[
    str, typer.Option("--database-url", help="default: DATABASE_URL, or the one of `up`")
]
Form = Annotated[Output, typer.Option("-o", "--output", help="table, wide or json")]


def list_queue(
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="default: all")] = "",
    queue: Annotated[str, typer.Option("--queue", "-q", help="default: all")] = "",
    output: Form = Output.TABLE,
    database_url: Url = "",
) -> None:
    """List running jobs, then waiting jobs by turn."""
    from fluxqueue.db.reading.fluxjobs import Narrow, living

    narrow = Narrow(namespaces=[namespace] if namespace else None, queue=queue or None)
    rows = _run(database_url, lambda db: living(db, narrow))
    first = ("jobid", "namespace", "name", "user", "queue", "state", "size", "nodes", "priority")
    short = (*first, "reason")
    wide = (*first, "expected_start", "held_by", "requeues", "submitted_at", "reason")
    _print([row._asdict() for row in rows], short, wide, output)


def history(
    name: OneName,
    namespace: Namespace = "default",
    output: Form = Output.TABLE,
    database_url: Url = "",
) -> None:
    """Show the history of a workload: what happened, when, and by which actor."""
    from fluxqueue.db.reading import accounting

    rows = _run(database_url, lambda db: accounting.history(db, namespace, name))
    _must_be_known(rows, name, namespace)
    columns = ("at", "jobid", "actor", "event", "what")
    lines = [{**row._asdict(), "what": what_happened(row.detail)} for row in rows]
    _print(lines, columns, columns, output)


def accounting(
    name: Annotated[
        str, typer.Argument(help="show the runs of this name or jobid, without it sums")
    ] = "",
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="default: all")] = "",
    by: Annotated[
        str, typer.Option(help="group by: user, queue, namespace, result, day, month")
    ] = "user,queue,namespace",
    since: Annotated[str, typer.Option(help="only runs that ended since: 2030-01-31, or 7d")] = "",
    until: Annotated[str, typer.Option(help="only runs that ended before")] = "",
    output: Form = Output.TABLE,
    database_url: Url = "",
) -> None:
    """Show sums of usage, or the runs of one workload."""
    from fluxqueue.db.reading import accounting as books

    if name:
        rows = _run(database_url, lambda db: books.runs(db, namespace or "default", name))
        _must_be_known(rows, name, namespace or "default")
        short = ("jobid", "run", "name", "result", "nodes", "allocated_at", "ended_at", "cpu_s")
        wide = (*short, "gpu_s", "slots", "size", "queue", "user", "queued_at", "started_at")
        _print([row._asdict() for row in rows], short, wide, output)
        return
    groups = [one for one in by.split(",") if one]
    period = books.Period(
        _time(since, "--since"), _time(until, "--until"), [namespace] if namespace else None
    )
    rows = _run(database_url, lambda db: books.use(db, period, by=groups))
    columns = (*groups, "runs", "cpu_h", "gpu_h", "wait_s")
    sums = [row._asdict() for row in rows]
    _print([{name: one[name] for name in columns} for one in sums], columns, columns, output)


def _must_be_known(rows: Sequence[Row], name: str, namespace: str) -> None:
    """Exit with 1 and a message if nothing was found: an empty table looks like an answer."""
    if not rows:
        complain(f"{name}: not found in namespace {namespace}")
        raise typer.Exit(1)


def _time(text: str, where: str) -> datetime | None:
    """Read a date, a time, or an age such as ``7d``. None for an empty text."""
    from fluxqueue.clock import SystemClock
    from fluxqueue.workload.annotations import parse_duration

    if not text:
        return None
    with suppress(ValueError):
        return datetime.fromisoformat(text).astimezone()
    with suppress(InvalidInput):
        now = datetime.fromtimestamp(SystemClock().now_s()).astimezone()
        return now - timedelta(seconds=parse_duration(text, where))
    raise InvalidInput(
        f"{text!r} is not a time", where=where, value=text, hint="2030-01-31, or an age: 12h, 7d"
    )


def _run(database_url: str, read: Callable[[Database], Awaitable[list[Any]]]) -> list[Any]:
    from fluxqueue.db.database import Database

    async def body() -> list[Any]:
        async with Database(database_settings(database_url), role="cli") as database:
            return await read(database)

    return asyncio.run(body())


def _print(rows: Sequence[Row], short: Sequence[str], wide: Sequence[str], output: Output) -> None:
    if output is Output.JSON:
        typer.echo(json.dumps(rows, indent=2, default=_plain))
        return
    columns = wide if output is Output.WIDE else short
    table = [[name.upper() for name in columns]]
    table += [[_cell(row[name]) for name in columns] for row in rows]
    widths = [max(len(line[n]) for line in table) for n in range(len(columns))]
    for line in table:
        typer.echo("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip())


def _plain(value: object) -> object:
    if isinstance(value, Decimal):
        return float(value)
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else str(value)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"{value:.2f}" if isinstance(value, float | Decimal) else str(value)


def register(app: typer.Typer) -> None:
    """Add the commands to ``fluxqueue db``."""
    for command in (history, accounting):
        app.command(command.__name__)(command)
    app.command("list")(list_queue)
