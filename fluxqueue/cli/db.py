"""``fluxqueue db``: migrate the database, compare it with the code, wait for it, read it.

The functions here print and choose exit codes. The work is in ``fluxqueue.db.migrate``. Our own
errors pass through to ``cli/main.py``, which prints one line and exits with 2 (bad input) or 1.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from fluxqueue.cli import db_reports
from fluxqueue.cli.step_line import StepLine
from fluxqueue.errors import InvalidSettings
from fluxqueue.process import logs
from fluxqueue.process.settings import Settings

app = typer.Typer(
    help="The queue database: migrate it, check it, and read the queue without the cluster.",
    no_args_is_help=True,
)

UrlOption = Annotated[
    str,
    typer.Option(help="postgresql://user:password@host/database (default: DATABASE_URL)"),
]
RevisionArgument = Annotated[str, typer.Argument(help="a revision number, head or base")]


def _url(given: str) -> str:
    settings = Settings.from_env(os.environ)
    logs.set_up(settings.log_level, as_json=settings.log_json)
    url = given or settings.database_url
    if not url:
        raise InvalidSettings(
            "no database is configured",
            where="DATABASE_URL",
            hint="set it or use --database-url (`fluxqueue up` starts its own database)",
        )
    return url


@app.command()
def upgrade(
    revision: RevisionArgument = "head",
    database_url: UrlOption = "",
    pre: Annotated[
        bool,
        typer.Option(
            "--pre",
            help="only the migrations that this release needs, so that older code still works",
        ),
    ] = False,
) -> None:
    """Wait for the database and apply migrations. Safe to run in several places at once."""
    from fluxqueue.db import migrate

    if pre and revision != migrate.HEAD:
        raise InvalidSettings(
            f"revision {revision} and --pre cannot be combined",
            where="--pre",
            hint="give one of them",
        )
    url = _url(database_url)
    with StepLine("upgrading") as steps:
        steps.begin("waiting for the database")
        migrate.wait_for_database(url)
        steps.begin(f"migrations from {migrate.current(url) or 'an empty database'} on")
        migrate.upgrade(url, migrate.PRE if pre else revision)
        found = migrate.current(url)
    typer.echo(f"revision {found}")
    _tell_left_out(found)


def _tell_left_out(found: str | None) -> None:
    from fluxqueue.db import migrate

    if later := migrate.left_out(found):
        typer.echo(
            f"left out: {', '.join(later)} (post). This release works without them. The next "
            "release applies them, or `fluxqueue db upgrade` once no older code runs"
        )


@app.command()
def downgrade(revision: RevisionArgument, database_url: UrlOption = "") -> None:
    """Undo migrations down to REVISION. `base` undoes all of them and drops all data."""
    from fluxqueue.db import migrate

    url = _url(database_url)
    migrate.downgrade(url, revision)
    typer.echo(f"revision {migrate.current(url) or 'none'}")


@app.command()
def current(database_url: UrlOption = "") -> None:
    """Print the database's revision and the newest one."""
    from fluxqueue.db import migrate
    from fluxqueue.db.revisions import head

    found = migrate.current(_url(database_url))
    typer.echo(f"revision {found or 'none'}, newest {head()}")
    _tell_left_out(found)


@app.command()
def check(database_url: UrlOption = "") -> None:
    """Compare the database with the code. Exit code 1 and a list if they differ."""
    from fluxqueue.db import migrate

    url = _url(database_url)
    found = migrate.check(url)
    for line in found:
        typer.echo(line)
    if found:
        raise typer.Exit(1)
    typer.echo("the database and the code agree")
    _tell_left_out(migrate.current(url))


@app.command("adopt-cluster")
def adopt_cluster(
    former: Annotated[
        str, typer.Option("--from", help="UID of the cluster that the database belongs to now")
    ],
    database_url: UrlOption = "",
) -> None:
    """Move the database to the cluster of KUBECONFIG. Refused while parts are connected."""
    import asyncio

    url = _url(database_url)
    uid, server = asyncio.run(_adopt(url, former))
    typer.echo(f"the database belongs to the cluster {uid} ({server})")


async def _adopt(url: str, former: str) -> tuple[str, str]:
    import asyncio
    import dataclasses

    from fluxqueue.db import cluster_identity
    from fluxqueue.db.database import Database
    from fluxqueue.kube.client import KubeClient
    from fluxqueue.kube.cluster import read_cluster_uid
    from fluxqueue.kube.config import load_config

    settings = dataclasses.replace(Settings.from_env(os.environ), database_url=url)
    config = load_config(settings.kubeconfig or None)
    async with KubeClient(config, timeout_s=settings.kube_timeout_s) as client:
        uid = await read_cluster_uid(client, asyncio.sleep)
    async with Database(settings, role="admin") as database:
        await cluster_identity.adopt(database, former=former, uid=uid, server=config.server)
    return uid, config.server


@app.command()
def wait(
    database_url: UrlOption = "",
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", help="seconds (default: no limit)")
    ] = None,
) -> None:
    """Wait until the database answers and is migrated. Exit code 1 after the timeout."""
    from fluxqueue.db import migrate

    migrate.wait_for_head(_url(database_url), timeout_s=timeout_s)


@app.command(hidden=True)
def revision(kind: str, slug: str, database_url: UrlOption = "") -> None:
    """For developers: write the next revision from the differences (migrations/README.md)."""
    from fluxqueue.db import migrate

    typer.echo(migrate.create_revision(_url(database_url), slug, kind))


db_reports.register(app)
