"""``fluxqueue sim --from-history``: a recorded time once more, with changes.

``sim`` calls it. The day comes from the database, or from a file that ``--save-history`` wrote. The
functions here read and print. ``fluxqueue.simulation`` replays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fluxqueue.errors import InvalidInput, InvalidSettings

if TYPE_CHECKING:
    from fluxqueue.cli.sim_options import SimOptions
    from fluxqueue.simulation.learning import DurationSource
    from fluxqueue.simulation.recorded_day import RecordedDay
    from fluxqueue.simulation.replay import Replay

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None] | None]]
JSON_MAX = 512 * 2**20


def replay_history(
    options: SimOptions,
    policies: Sequence[str],
    durations: Sequence[DurationSource],
    progress: Progress,
) -> None:
    """Read the day, replay it for each policy and source of durations, and print what differs."""
    from fluxqueue.graph.match.policy import parse_policy
    from fluxqueue.simulation.comparison import LeftOut, render_table
    from fluxqueue.simulation.gantt import check_format
    from fluxqueue.simulation.replay import as_recorded
    from fluxqueue.simulation.what_changes import parse_changes

    parse_policy(options.match_policy)
    changes = [
        parse_changes(policy, options.add_nodes or (), options.queue_weight or (), source)
        for policy, source in product(policies or ("",), durations)
    ]
    if options.out is not None:
        check_format(options.out)
    day = _day(options)
    recorded = as_recorded(day)
    replays = []
    for one in changes:
        with progress(one.describe(), len(day.jobs)) as tell:
            replays.append(_replay(day, one, options, tell))
    typer.echo(render_table(day, recorded, [one.outcome for one in replays]))
    for line in LeftOut.of(day).tell():
        typer.echo(line)
    if options.save is not None:
        from fluxqueue.simulation.swf import from_day, render

        options.save.write_text(render(from_day(day)), encoding="utf-8")
        typer.echo(f"wrote {options.save}")
    if options.out is not None:
        _draw(day, replays, options.out)
        typer.echo(f"wrote {options.out}")


def _replay(
    day: RecordedDay, changes: Any, options: SimOptions, tell: Callable[[int], None] | None
) -> Replay:
    from fluxqueue.fluxjob.levels import parse_levels
    from fluxqueue.policy.queue_policy import queue_policy
    from fluxqueue.process.settings import Settings
    from fluxqueue.simulation.replay import replay

    settings = Settings.from_env(os.environ)
    return replay(
        day,
        queue_policy(settings.queue_policy, queue_depth=options.depth),
        changes,
        name=changes.describe(),
        match_policy=options.match_policy,
        levels=parse_levels(settings.levels),
        tell=tell,
    )


def _day(options: SimOptions) -> RecordedDay:
    import orjson

    from fluxqueue.simulation.recorded_day import parse_day

    if options.history is not None:
        if options.since or options.until:
            raise InvalidSettings(
                "does not go with --history: the file has its own times",
                where="--from" if options.since else "--until",
                hint="leave it out",
            )
        return parse_day(_read_file(options.history), options.history.name)
    data = _read_database(options)
    if options.save_history is not None:
        options.save_history.write_bytes(orjson.dumps(data, default=float))
        typer.echo(f"wrote {options.save_history}")
    return parse_day(orjson.loads(orjson.dumps(data, default=float)), "history")


def _read_file(path: Path) -> Any:
    import orjson

    try:
        if path.stat().st_size > JSON_MAX:
            raise InvalidInput("is too large", where=str(path), hint="take a shorter time")
        return orjson.loads(path.read_bytes())
    except OSError as error:
        raise InvalidInput(
            f"cannot be read: {error.strerror}", where=str(path), hint="name another file"
        ) from None
    except orjson.JSONDecodeError as error:
        raise InvalidInput(
            f"is not JSON: {error}",
            where=str(path),
            hint="write it with `fluxqueue sim --from-history --save-history FILE`",
        ) from None


def _read_database(options: SimOptions) -> dict[str, Any]:
    import asyncio

    from fluxqueue.process.settings import Settings
    from fluxqueue.simulation.period import check_period

    now = datetime.now(tz=UTC)
    since_s = read_time(options.since or "1d", "--from", now)
    until_s = read_time(options.until, "--until", now) if options.until else int(now.timestamp())
    check_period(since_s, until_s, int(now.timestamp()))
    settings = Settings.from_env(os.environ)
    url = options.database_url or settings.database_url
    if not url:
        raise InvalidSettings(
            "no database is configured",
            where="DATABASE_URL",
            hint="set it, use --database-url, or read a file with --history",
        )
    return asyncio.run(_fetch(replace(settings, database_url=url), since_s, until_s))


async def _fetch(settings: Any, since_s: int, until_s: int) -> dict[str, Any]:
    from fluxqueue.db.reader import DatabaseReader
    from fluxqueue.db.reading.recorded_days import read_day
    from fluxqueue.simulation.period import JOBS_MAX

    async with DatabaseReader(settings, role="admin") as reader:
        return await read_day(reader, since_s=since_s, until_s=until_s, limit=JOBS_MAX)


def read_time(text: str, where: str, now: datetime) -> int:
    """Read a time or an age as epoch seconds.

    Raises
    ------
    InvalidInput
        It is neither, or is outside the times of a computer.
    """
    from fluxqueue.simulation.recorded_day import EPOCH_MAX_S
    from fluxqueue.view.parameters import read_moment

    try:
        found = int(read_moment(text, where, now).timestamp())
    except (OverflowError, OSError, ValueError):
        found = -1
    if not 0 <= found < EPOCH_MAX_S:
        raise InvalidInput(
            "is not a time of a cluster",
            where=where,
            value=text,
            hint="write 2030-01-31T08:00:00Z, or an age: 12h",
        )
    return found


def _draw(day: RecordedDay, replays: Sequence[Replay], out: Path) -> None:
    from fluxqueue.simulation.gantt import Panel, draw
    from fluxqueue.simulation.replay import from_begin, recorded_runs
    from fluxqueue.simulation.schedule_figures import figures

    past = recorded_runs(day)
    panels = [Panel(figures("recorded", past, day.nodes), past, day.nodes)]
    for one in replays:
        runs = [replace(record, spans=from_begin(record.spans)) for record in one.records]
        panels.append(Panel(figures(one.outcome.name, runs, one.nodes), runs, one.nodes))
    draw(panels, out)
